"""A vLLM server over HTTP: started and stopped here, or already running elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo.backends.vllm.calls import http, json_of, send_request, shown, within
from gspo.backends.vllm.errors import EngineError, Refused
from gspo.backends.vllm.process import EngineHost, EngineProcess, LocalEngine, listened_at
from gspo.safe import without_logins

logger = logging.getLogger(__name__)

SIDE = Path(__file__).with_name("plugin") / "gspo_vllm.py"
START = 900.0  # seconds until a server must answer: it loads weights, and may compile
CONTROL = 300.0  # timeout of a weight update or a reset, in seconds
PORTS = 3  # ports that a server started here tries
TAKEN = b"ddress already in use"
GENERATE = "/inference/v1/generate"
WORKERS = "/collective_rpc"
ADAPTER = "policy"  # the name that the adapter is served under
KEY = "GSPO_KEY"  # the variable with the key that a server started here requires
LATER = (408, 425, 429)  # statuses that mean "retry later" rather than a wrong request
IDLE = 2.0  # seconds until an idle connection is dropped: the server closes it after 5, possibly during a request


class Swap:
    """One attempt to load weights into an engine, from a Hugging Face folder or sent to the process group of this name. Once
    given up it makes no further call, since the next attempt may be running.
    """

    def __init__(self, version: int, folder: Path | None = None, group: str = "") -> None:
        self.version, self.folder, self.group = version, folder, group
        self._over = threading.Event()

    def give_up(self) -> None:
        """Cancels the attempt for its caller; an HTTP call may still be running."""
        self._over.set()

    def check(self) -> None:
        """Raises EngineError if the attempt was given up."""
        if self._over.is_set():
            raise EngineError("it took so long over new weights that they were given up")


class Server:
    """A client of one vLLM server, and its process if it is started here.

    Args:
        command: Starts it; None for a server that is not ours.
        log: The file with its output.
        variables: Environment variables to add to those of its machine.
        key: The bearer token that it requires.
        host: Starts the process, and finds another port if another program has taken the server's; None: this machine, with
            this port only.

    Attributes:
        adapters: Whether it takes LoRA adapters instead of whole weights.
    """

    def __init__(
        self,
        url: str,
        command: Sequence[str] | None = None,
        log: Path | None = None,
        variables: Mapping[str, str] | None = None,
        key: str = "",
        host: EngineHost | None = None,
    ) -> None:
        self.url, self.command, self.log, self.variables = url.rstrip("/"), command, log, dict(variables or {})
        self.host = host
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.process: EngineProcess | None = None
        self.adapters = False
        self._client: Any = None
        self._over = self._asleep = False
        self._begun = 0  # offset in the log of the current process's output

    @property
    def name(self) -> str:
        """Its address, without credentials."""
        return without_logins(self.url)

    @property
    def ours(self) -> bool:
        """Whether it is started here."""
        return self.command is not None

    def start(self) -> None:
        """Starts a server of ours, and waits until the server answers. Raises EngineError with the end of its log."""
        if self.command is None:
            self._wait(None)
            self._asleep = self._sleeps()
            return
        self._end()
        self._log().parent.mkdir(parents=True, exist_ok=True)
        self._log().touch()  # created here, since a file created on another machine may appear late
        for left in reversed(range(PORTS)):
            if self.host is not None and listened_at(self.url):
                self._move(self.host.another_port())
            self._begun, self._asleep = self._log().stat().st_size, False
            try:
                begin = LocalEngine if self.host is None else self.host.begin
                self.process = process = begin(self.command, self._log(), self.variables)
            except OSError as error:  # the program is missing, or this machine cannot start another process
                raise EngineError(f"it cannot be started: {error}") from error
            try:
                self._wait(process)
                return
            except EngineError:  # another program may take the port before the server listens
                if not left or self.host is None or TAKEN not in self._output():
                    raise
                self._move(self.host.another_port())

    def _move(self, port: int) -> None:
        """Moves the server to another port of its machine."""
        assert self.command is not None
        machine, _, before = self.url.rpartition(":")
        logger.warning(f"vLLM: another program listens at {self.url}: it gets port {port}")
        at = self.command.index(before)
        self.command = [*self.command[:at], str(port), *self.command[at + 1 :]]
        self.url, self._client = f"{machine}:{port}", None

    def _wait(self, process: EngineProcess | None) -> None:
        """Waits until it answers. process: the server's, if it is ours. Raises EngineError."""
        deadline = time.monotonic() + (START if process else 10.0)
        while not self.answers():
            status = process.poll() if process is not None else None
            if status is not None:
                raise EngineError(f"vLLM ended with status {status}: {self.last_words()}")
            engine_died = self.ours and b"EngineDeadError" in self._output()  # the server may wait for it forever
            if self._over or time.monotonic() > deadline or engine_died:
                self._end()
                raise EngineError(f"nothing answers at {self.name}: {self.last_words()}")
            time.sleep(0.3)

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            return self._request("GET", "/health", 5.0).status_code == 200
        except EngineError:
            return False

    def call(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """Sends a POST, or a GET if there is no body. Returns the decoded JSON, or the text of any other response. Raises
        EngineError unless the status is 200.
        """
        at = f"{self.name}{path}"
        try:
            options = {} if body is None else {"json": body, "params": params}
            response = self._request("GET" if body is None else "POST", path, CONTROL, **options)
        except EngineError as error:
            raise EngineError(f"{at}: {error}. {self.last_words()}") from None
        if response.status_code != 200:
            raise EngineError(f"{at}: status {response.status_code}: {response.text[:500]}")
        try:
            return json_of(response) if "json" in response.headers.get("content-type", "") else response.text
        except EngineError as error:
            raise EngineError(f"{at}: {error}") from None

    def _command(self, path: str, body: Mapping[str, Any], **params: str) -> None:
        """A call with an empty result. Raises EngineError if the answer is no object, for example a proxy's."""
        answer = self.call(path, body, **params)
        if not isinstance(answer, dict):
            raise EngineError(f"{self.name}{path}: it answered {shown(answer)} where vLLM answers with an object")

    def check(self) -> None:
        """Raises ValueError with the remedy if the address is not a vLLM server, or the server lacks a required route."""
        remedy = f"start it with `python {SIDE} --model MODEL --port PORT` in vLLM's environment (0.32 or newer)"
        for method, path, body in (("GET", "/weight_info", None), ("POST", GENERATE, {})):
            try:
                answer = send_request(method, f"{self.url}{path}", 10.0, json=body)
            except EngineError as error:
                raise ValueError(f"sampler.urls: {self.name!r}: nothing answers ({error}): {remedy}") from None
            if answer.status_code in (403, 404, 405, 501):
                raise ValueError(f"sampler.urls: {self.name!r}: {path} answers with {answer.status_code}: {remedy}")

    async def ask(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one. Raises EngineError, or Refused if the server rejects the request."""
        httpx = http()
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE)
            self._client = httpx.AsyncClient(
                base_url=self.url, timeout=None, limits=limits, headers=self.headers, trust_env=not self.ours
            )  # fmt: skip
        request = {**body, **({"model": ADAPTER} if self.adapters else {})}
        try:
            response = await within(timeout, lambda: self._client.post(GENERATE, json=request))
        except EngineError as error:
            raise EngineError(f"{error}. {self.last_words()}") from None
        if 400 <= response.status_code < 500 and response.status_code not in LATER:
            raise Refused(f"{self.name}: vLLM refuses a request (status {response.status_code}): {response.text[:500]}")
        if response.status_code != 200:
            raise EngineError(f"status {response.status_code}: {response.text[:500]}")
        answer = json_of(response)
        if not isinstance(answer, dict):
            raise EngineError(f"it answered what cannot be read, no object: {shown(answer)}")
        return answer

    async def hang_up(self) -> None:
        """Closes the client."""
        if self._client is not None:
            await self._client.aclose()

    def takes_adapters(self) -> bool:
        """Whether it was started with LoRA support: the route exists, for POST only. Raises EngineError."""
        return bool(self._request("GET", "/v1/load_lora_adapter", 10.0).status_code == 405)

    def workers(self, method: str, *arguments: str) -> list[Any]:
        """Calls a method of plugin/gspo_vllm.py on every worker and returns their results. Raises EngineError."""
        answer = self.call(WORKERS, {"method": method, "args": arguments})
        results = answer.get("results") if isinstance(answer, dict) else None
        if answer == "":
            return [None]  # no worker returned anything
        if not isinstance(results, list) or not results:
            raise EngineError(f"{self.name}{WORKERS}: {method}: there are no results of its workers in {shown(answer)}")
        return results

    def sleep(self, level: int) -> None:
        """Frees memory until the next swap, as sampler.sleep_level says. Raises EngineError."""
        self._asleep = True
        self._command("/sleep", {}, level=str(level), mode="abort")

    def swap(self, swap: Swap) -> int:
        """Puts weights or an adapter in place. A sleeping server gets back memory for the weights only. Running completions
        end early ("abort"), new ones wait, and later tokens carry the new version. Returns the number of workers that took
        the weights. Raises EngineError.
        """
        asleep = self._asleep
        if asleep:
            self._command("/wake_up", {}, tags="weights")
        self._command("/pause", {}, mode="abort")  # last: /wake_up also resumes a paused server, which vLLM counts as asleep
        swap.check()
        taken = self._take(swap)
        for path, body in (("/reset_prefix_cache", {}), ("/update_weight_version", {"new_version": str(swap.version)})):
            swap.check()
            self._command(path, body)
        swap.check()
        if not asleep:
            self._command("/resume", {})
        return taken

    def wake(self) -> None:
        """Resumes sampling after a swap if the server slept until then. Raises EngineError."""
        if self._asleep:
            self._command("/wake_up", {}, tags="kv_cache")
            self._command("/resume", {})
            self._asleep = False

    def _sleeps(self) -> bool:
        """Whether a server that is not ours sleeps: a killed run may have left it asleep."""
        with contextlib.suppress(EngineError):
            answer = self.call("/is_sleeping")
            return isinstance(answer, dict) and answer.get("is_sleeping") is True
        return False

    def _take(self, swap: Swap) -> int:
        if swap.folder is None:
            return len(self.workers("gspo_receive", swap.group))
        if self.adapters:
            self.call("/v1/load_lora_adapter", {"lora_name": ADAPTER, "lora_path": str(swap.folder), "load_inplace": True})
            return 1
        return len(self.workers("gspo_reload", str(swap.folder)))

    def _request(self, method: str, path: str, seconds: float, **options: Any) -> Any:
        # A proxy cannot reach a server of ours.
        return send_request(method, f"{self.url}{path}", seconds, not self.ours, headers=self.headers, **options)

    def _log(self) -> Path:
        assert self.log is not None, "a server of ours has a log"
        return self.log

    def _output(self) -> bytes:
        """The output of its current process."""
        return self._log().read_bytes()[self._begun :]

    def last_words(self) -> str:
        """The first and last error lines of its log, or its last lines if there are none."""
        if self.log is None or not self.log.exists():
            return "it runs elsewhere: look at its log"
        lines = self._output().decode("utf-8", errors="replace").strip().splitlines()
        # The first error is the cause, the last ones are consequences.
        errors = [line for line in lines if re.search(r"rror[:,] ", line) and " WARNING " not in line]
        quoted = [*errors[:1], *errors[1:][-2:]] or lines[-3:]
        return f"{self.log} says: " + " | ".join(line[-300:] for line in quoted)

    def stop(self) -> None:
        """Ends a server of ours for good; a start in progress gives up. Wakes a server that is not ours."""
        self._over = True
        self._end()
        if self._asleep and self.command is None:
            with contextlib.suppress(EngineError):
                self._command("/wake_up", {})

    def _end(self) -> None:
        process, self.process = self.process, None  # `start` and `stop` may both get here, from two threads
        if process is not None:
            process.end()


def serving(
    folder: Path,
    python: str | None,
    dtype: str,
    arguments: Mapping[str, Any],
    log: Path,
    host: EngineHost,
    variables: Mapping[str, str] | None = None,
) -> Server:
    """A server of ours for the model in `folder`, not yet started.

    Args:
        folder: A Hugging Face folder with the first weights.
        python: An interpreter whose environment has vLLM; None for the current one.
        arguments: Additional vLLM arguments, such as `{gpu_memory_utilization = 0.4}`; true becomes a flag, false its
            `--no-` form.
        variables: Additional environment variables.
    """
    options: dict[str, Any] = {"model": str(folder), "host": host.address, "port": host.port, "dtype": dtype}
    command = [python or sys.executable, str(SIDE)]
    for name, value in (options | dict(arguments)).items():
        flag = name.replace("_", "-")
        values = value if isinstance(value, (list, tuple)) else [] if isinstance(value, bool) else [value]
        command += [f"--no-{flag}" if value is False else f"--{flag}"]
        command += [json.dumps(each) if isinstance(each, dict) else str(each) for each in values]
    at = f"[{host.address}]" if ":" in host.address else host.address
    key = secrets.token_urlsafe(32)  # the server also swaps weights, and others may be able to reach its port
    own = {**(variables or {}), KEY: key}
    return Server(f"http://{at}:{host.port}", command, log, own, key, host)
