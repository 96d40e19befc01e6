"""A vLLM server over HTTP: started and stopped here, or already running elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gspo.backends.vllm.calls import engine_errors, json_of, send_request, shown
from gspo.backends.vllm.errors import EngineError, Refused
from gspo.backends.vllm.process import EngineHost, EngineProcess, LocalHost
from gspo.safe import without_logins

SIDE = Path(__file__).with_name("plugin") / "gspo_vllm.py"
GENERATE = "/inference/v1/generate"
WORKERS = "/collective_rpc"
ADAPTER = "policy"  # the name that the adapter is served under
KEY = "GSPO_KEY"  # the variable with the key that a server requires
LATER = (408, 425, 429)  # statuses that mean "retry later" rather than a wrong request
SAMPLED = re.compile(r"^vllm:generation_tokens_total\b.* (\S+)$", re.MULTILINE)  # in the answer of /metrics
DRAFTS = [
    re.compile(rf"^vllm:spec_decode_num_{kind}_tokens_total\b.* (\S+)$", re.MULTILINE) for kind in ("draft", "accepted")
]  # in the same answer
TAIL = 1 << 18  # bytes of a log that are looked at, from its end
IDLE = 2.0  # seconds until an idle connection is dropped: the server closes it after 5, possibly during a request


@dataclass(frozen=True)
class Swap:
    """One attempt to load weights into an engine, from a Hugging Face folder or sent to the process group of this name. Once
    it is `given_up` it makes no further call, since the next attempt may be running.
    """

    version: int
    folder: Path | None = None
    group: str = ""
    given_up: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises EngineError if the attempt was given up."""
        if self.given_up.is_set():
            raise EngineError("it took so long over new weights that they were given up")


class Server:
    """A client of one vLLM server, and its process if it is started here.

    Args:
        url: The address; that of a server of ours gets another port at each start.
        command: Starts it, without the port; None for a server that is not ours.
        variables: Environment variables to add to those of its machine.
        key: The bearer token that it requires.
        start_timeout: Seconds until it must answer: it loads weights, and may compile.
        sync_timeout: Timeout of each step of a weight update, in seconds.
    """

    def __init__(
        self,
        url: str,
        command: Sequence[str] | None = None,
        log: Path | None = None,
        variables: Mapping[str, str] | None = None,
        key: str = "",
        host: EngineHost | None = None,
        start_timeout: float = 900.0,
        sync_timeout: float = 300.0,
    ) -> None:
        self.url, self.command, self.log, self.variables = url.rstrip("/"), command, log, dict(variables or {})
        self.host: EngineHost = host or LocalHost()
        self.start_timeout, self.sync_timeout = start_timeout, sync_timeout
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.process: EngineProcess | None = None
        self.adapters = False  # whether it takes LoRA adapters instead of whole weights
        self._client: httpx.AsyncClient | None = None
        self._over = self._asleep = False
        self._drafts = 0.0, 0.0  # at the last look
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
            self._wait(10.0)
            self._asleep = self._sleeps()
            return
        self._end()
        assert self.log is not None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()  # created here, since a file created on another machine may appear late
        self._begun, self._asleep = self.log.stat().st_size, False
        try:
            port = str(self.host.free_port())
            address = f"[{self.host.address}]" if ":" in self.host.address else self.host.address
            self.url = f"http://{address}:{port}"
            self.process = self.host.begin([*self.command, "--port", port], self.log, self.variables)
        except OSError as error:  # the program is missing, or this machine cannot start another process
            raise EngineError(f"it cannot be started: {error}") from error
        self._wait(self.start_timeout)

    def _wait(self, seconds: float) -> None:
        """Waits until it answers. Raises EngineError."""
        process, deadline = self.process, time.monotonic() + seconds
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
        with contextlib.suppress(EngineError):
            return self._request("GET", "/health", 5.0).status_code == 200
        return False

    def call(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """Sends a POST, or a GET if there is no body. Returns the decoded JSON, or else the text. Raises EngineError."""
        method, options = ("GET", {}) if body is None else ("POST", {"json": body, "params": params})
        try:
            response = self._request(method, path, self.sync_timeout, setting="sampler.sync_timeout", **options)
            if response.status_code != 200:
                raise EngineError(f"status {response.status_code}: {response.text[:500]}")
            return json_of(response) if "json" in response.headers.get("content-type", "") else response.text
        except EngineError as error:
            raise EngineError(f"{self.name}{path}: {error}. {self.last_words()}") from None

    def check(self) -> None:
        """Raises ValueError with the remedy if the address is not a vLLM server, or the server lacks a required route."""
        remedy = f"start it with `python {SIDE} --model MODEL --port PORT` in vLLM's environment (0.32 or newer)"
        for method, path, body in (("GET", "/weight_info", None), ("POST", GENERATE, {})):
            try:
                answer = self._request(method, path, 10.0, json=body)
            except EngineError as error:
                raise ValueError(f"sampler.urls: {self.name!r}: nothing answers ({error}): {remedy}") from None
            if answer.status_code == 401:
                raise ValueError(f"sampler.urls: {self.name!r} requires a key: set {KEY} here to the one that it was given")
            if answer.status_code in (403, 404, 405, 501):
                raise ValueError(f"sampler.urls: {self.name!r}: {path} answers with {answer.status_code}: {remedy}")

    def context(self) -> int | None:
        """Tokens that a prompt and its completion may have together; None if the server does not say."""
        try:
            limits = [card.get("max_model_len") for card in self.call("/v1/models")["data"]]
        except (EngineError, LookupError, TypeError, AttributeError):
            return None
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    async def ask(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one. Raises Refused if the server rejects the request, and EngineError for other
        failures: also if the server samples no token for `timeout` seconds, which is found within twice that time.
        """
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE)
            self._client = httpx.AsyncClient(timeout=None, limits=limits, headers=self.headers, trust_env=not self.ours)
        request = {**body, **({"model": ADAPTER} if self.adapters else {})}
        try:
            with engine_errors(timeout, "sampler.timeout"):
                response = await self._response(self._client, request, timeout)
        except EngineError as error:
            raise EngineError(f"{error}. {self.last_words()}") from None
        if 400 <= response.status_code < 500 and response.status_code not in LATER:
            raise Refused(f"{self.name}: vLLM refuses a request (status {response.status_code}): {response.text[:500]}")
        if response.status_code != 200:
            raise EngineError(f"status {response.status_code}: {response.text[:500]}")
        found: dict[str, Any] = json_of(response)
        return found

    async def _response(self, client: httpx.AsyncClient, request: Mapping[str, Any], timeout: float) -> httpx.Response:
        """The response. Raises TimeoutError once the count of sampled tokens, of all requests, is the same at two looks,
        `timeout` apart, and EngineError if the server does not count them.
        """
        sent = asyncio.ensure_future(client.post(f"{self.url}{GENERATE}", json=request))
        counts: list[str] = []
        try:
            while not (await asyncio.wait([sent], timeout=timeout))[0]:
                async with asyncio.timeout(timeout):
                    before, counts = counts, SAMPLED.findall((await client.get(f"{self.url}/metrics")).text)
                if not counts:
                    why = "and its /metrics counts no tokens: was it started with --disable-log-stats?"
                    raise EngineError(f"it has not answered for {timeout:g} s (sampler.timeout), {why}")
                if counts == before:
                    raise TimeoutError
            return sent.result()
        finally:
            sent.cancel()

    async def hang_up(self) -> None:
        """Closes the client."""
        if self._client is not None:
            await self._client.aclose()

    def takes_adapters(self) -> bool:
        """Whether it was started with LoRA support: the route exists, for POST only. Raises EngineError."""
        return self._request("GET", "/v1/load_lora_adapter", 10.0).status_code == 405

    def drafts(self) -> tuple[float, float]:
        """Tokens that speculative decoding has drafted, and accepted, since the last call. Raises EngineError."""
        text, before = self._request("GET", "/metrics", 10.0).text, self._drafts
        drafted, accepted = (sum(map(float, pattern.findall(text))) for pattern in DRAFTS)
        self._drafts = drafted, accepted
        began_anew = drafted < before[0]
        return self._drafts if began_anew else (drafted - before[0], accepted - before[1])

    def workers(self, method: str, *arguments: str) -> list[Any]:
        """Calls a method of plugin/gspo_vllm.py on every worker and returns their results. Raises EngineError."""
        answer = self.call(WORKERS, {"method": method, "args": arguments})
        try:
            return list(answer["results"])
        except (TypeError, KeyError):
            raise EngineError(f"{self.name}{WORKERS}: there are no results of {method} in {shown(answer)}") from None

    def sleep(self, level: int) -> None:
        """Frees memory until the next swap, as sampler.sleep_level says. Raises EngineError."""
        self._asleep = True
        self.call("/sleep", {}, level=str(level), mode="abort")

    def swap(self, swap: Swap) -> int:
        """Puts weights or an adapter in place. A sleeping server gets back memory for the weights only. Running completions
        end early ("abort"), new ones wait, and later tokens carry the new version. Returns the number of workers that took
        the weights. Raises EngineError.
        """
        asleep = self._asleep
        if asleep:
            self.call("/wake_up", {}, tags="weights")
        self.call("/pause", {}, mode="abort")  # last: /wake_up also resumes a paused server, which vLLM counts as asleep
        swap.check()
        taken = self._take(swap)
        for path, body in (("/reset_prefix_cache", {}), ("/update_weight_version", {"new_version": str(swap.version)})):
            swap.check()
            self.call(path, body)
        swap.check()
        if not asleep:
            self.call("/resume", {})
        return taken

    def wake(self) -> None:
        """Resumes sampling after a swap if the server slept until then. Raises EngineError."""
        if self._asleep:
            self.call("/wake_up", {}, tags="kv_cache")
            self.call("/resume", {})
            self._asleep = False

    def _sleeps(self) -> bool:
        """Whether a server that is not ours sleeps: a killed run may have left it asleep."""
        with contextlib.suppress(EngineError):  # it cannot sleep, so it has no such route
            return bool(self.call("/is_sleeping")["is_sleeping"])
        return False

    def _take(self, swap: Swap) -> int:
        if swap.folder is None:
            return len(self.workers("gspo_receive", swap.group))
        if self.adapters:
            self.call("/v1/load_lora_adapter", {"lora_name": ADAPTER, "lora_path": str(swap.folder), "load_inplace": True})
            return 1
        return len(self.workers("gspo_reload", str(swap.folder)))

    def _request(self, method: str, path: str, seconds: float, **options: Any) -> httpx.Response:
        # A proxy cannot reach a server of ours.
        return send_request(method, f"{self.url}{path}", seconds, not self.ours, headers=self.headers, **options)

    def _output(self) -> bytes:
        """The end of its current process's output; nothing if it runs elsewhere."""
        if self.log is None or not self.log.exists():
            return b""
        with open(self.log, "rb") as file:
            file.seek(max(self._begun, file.seek(0, os.SEEK_END) - TAIL))
            return file.read(TAIL)

    def last_words(self) -> str:
        """The first and last error lines at the end of its log, or its last lines if there are none."""
        if self.log is None:
            return "it runs elsewhere: look at its log"
        lines = self._output().decode("utf-8", errors="replace").strip().splitlines()
        # The first error is the cause, the last ones are consequences.
        errors = [line for line in lines if re.search(r"rror[:,] ", line) and " WARNING " not in line]
        quoted = [*errors[:1], *errors[1:][-2:]] or lines[-3:]
        return f"{self.log} says: " + " | ".join(line[-300:] for line in quoted)

    def stop(self) -> None:
        """Stops a server of ours for good, even during its start. Wakes a server that is not ours."""
        self._over = True
        self._end()
        if self._asleep and not self.ours:
            with contextlib.suppress(EngineError):
                self.call("/wake_up", {})

    def _end(self) -> None:
        process, self.process = self.process, None  # `start` and `stop` may both get here, from two threads
        if process is not None:
            process.end()
