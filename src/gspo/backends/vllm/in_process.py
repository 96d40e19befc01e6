"""vLLM's engine in this process: no server, no HTTP, one environment for both."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from gspo.backends.vllm.errors import EngineError, Refused
from gspo.backends.vllm.process import GRACE, ROOM
from gspo.backends.vllm.server import ADAPTER, CONTROL, SIDE, START
from gspo.backends.vllm.weight_update_request import Swap

QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **ROOM}
CallQueue = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
Requests = dict[str, tuple[Future[dict[str, Any]], Any]]  # of each request: who waits, and what came until now


class Inside:
    """An engine that a thread of its own steps; everything else is done between two steps. As ports.Engine.

    folder: its first weights. arguments: vLLM's own.
    """

    name, ours = "in this process", True

    def __init__(self, folder: Path, dtype: str, arguments: Mapping[str, Any]) -> None:
        self.arguments = {
            "model": str(folder), "dtype": dtype, "logprobs_mode": "processed_logprobs", "generation_config": "vllm",
            "worker_extension_cls": "gspo_vllm.Extension", "disable_log_stats": True, **arguments,
        }  # fmt: skip
        self.log: Path | None = None
        self.adapters = False
        self._engine: Any = None
        self._adapter: Any = None
        self._version = ""  # that the engine was told last
        self._requests: Requests = {}
        self._calls: CallQueue = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._asleep = False

    def start(self) -> None:
        """Makes the engine, anew where there was one. Raises EngineError."""
        self.stop()
        os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
        self._calls, self._requests, self._asleep = queue.SimpleQueue(), {}, False  # one that hangs keeps its own
        self._thread = threading.Thread(target=self._run, args=(self._calls, self._requests), daemon=True)
        self._thread.start()
        try:
            self._do(self._make, START)
        except EngineError:
            self.stop()
            raise

    def _make(self) -> None:
        if str(SIDE.parent) not in sys.path:
            sys.path.append(str(SIDE.parent))  # where the worker finds its extension
        import vllm

        side = importlib.import_module("gspo_vllm")
        side.allow_routes()
        self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**self.arguments))

    def answers(self) -> bool:
        """Whether it is up."""
        return self._engine is not None

    def workers(self, method: str, *arguments: str) -> list[Any]:
        """See Engine.workers."""
        return self._do(lambda: self._engine.collective_rpc(method, args=arguments))

    def sleep(self, level: int) -> None:
        """See Engine.sleep."""
        self._asleep = True
        self._do(lambda: self._sleep(level))

    def _sleep(self, level: int) -> None:
        self._interrupt()
        self._engine.sleep(level)

    def wake(self) -> None:
        """See Engine.wake."""
        if self._asleep:
            self._do(lambda: self._engine.wake_up(["kv_cache"]))
            self._asleep = False

    def _interrupt(self) -> None:
        """Ends all that is being sampled, and tells who waits."""
        self._engine.abort_request(list(self._requests))
        for future, last in self._requests.values():
            give(future, answered(last, "abort", self._version))
        self._requests.clear()

    def swap(self, swap: Swap) -> int:
        """See Engine.swap."""
        folder = swap.folder
        assert folder is not None, "the trainer and a worker in its own process are no process group"
        try:
            return self._do(lambda: self._swap(folder, swap))
        except EngineError:
            swap.give_up()  # its thread may come to it later
            raise

    def _swap(self, folder: Path, swap: Swap) -> int:
        swap.goes_on()
        engine = self._engine
        if self._asleep:
            engine.wake_up(["weights"])
        self._interrupt()
        taken = 1
        if self.adapters:
            from vllm.lora.request import LoRARequest

            self._adapter = LoRARequest(ADAPTER, 1, str(folder), load_inplace=True)
            engine.add_lora(self._adapter)
            self._adapter = LoRARequest(ADAPTER, 1, str(folder))
        else:
            taken = len(engine.collective_rpc("gspo_reload", args=(str(folder),)))
        engine.reset_prefix_cache()
        swap.goes_on()
        self._version = str(swap.version)
        engine.set_weight_version(self._version)
        return taken

    async def ask(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one. Raises EngineError, Refused for a request that it refuses."""
        response: Future[dict[str, Any]] = Future()
        self._post(lambda: self._add(body, response), response)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(response), timeout)
        except TimeoutError:
            raise EngineError(f"it has not answered for {timeout:g} s") from None

    def _add(self, body: Mapping[str, Any], response: Future[dict[str, Any]]) -> None:
        from vllm import SamplingParams

        if self._engine is None:
            raise EngineError("vLLM's engine in this process has ended")
        name = str(next(self._numbers))
        try:
            params = SamplingParams(**body["sampling_params"])
            prompt = {"prompt_token_ids": body["token_ids"]}
            self._engine.add_request(name, prompt, params, lora_request=self._adapter)
        except (ValueError, TypeError) as error:
            give(response, Refused(f"vLLM refuses a request: {error}"))
            return
        self._requests[name] = response, None

    async def hang_up(self) -> None:
        """No more is asked."""

    def stop(self) -> None:
        """Ends it."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(GRACE)
            self._thread, self._engine = None, None

    def _do(self, call: Callable[[], Any], seconds: float = CONTROL) -> Any:
        """CallQueue it in the engine's thread."""
        future: Future[Any] = Future()
        self._post(lambda: give(future, call()), future)
        try:
            return future.result(seconds)
        except EngineError:
            raise
        except TimeoutError:
            raise EngineError(f"vLLM, in this process, has hung for {seconds:g} s") from None
        except Exception as error:  # vLLM raises many kinds
            raise EngineError(f"vLLM, in this process: {type(error).__name__}: {error}") from error

    def _post(self, call: Callable[[], Any], waiting: Future[Any]) -> None:
        if self._thread is None or not self._thread.is_alive():
            raise EngineError("vLLM's engine in this process has ended")
        self._calls.put((call, waiting))

    def _run(self, calls: CallQueue, requests: Requests) -> None:
        """An engine's thread: calls between steps, and steps while there is something to sample."""
        try:
            while (call := self._next(calls, requests)) is not None:
                self._call(*call)
        finally:
            ended = EngineError("vLLM's engine in this process has ended")
            fail(requests, ended)
            while not calls.empty():
                if (call := calls.get()) is not None:
                    give(call[1], ended)
            if calls is self._calls:
                self._unmake()

    def _next(self, calls: CallQueue, requests: Requests) -> tuple[Callable[[], Any], Future[Any]] | None:
        """The next call; steps until there is one."""
        while requests:
            try:
                return calls.get_nowait()
            except queue.Empty:
                self._step(requests)
        return calls.get()

    def _call(self, call: Callable[[], Any], waiting: Future[Any]) -> None:
        try:
            call()
        except Exception as error:  # whoever waits hears of it
            give(waiting, error)

    def _step(self, requests: Requests) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:  # the engine is lost, and all that it was asked
            fail(requests, EngineError(f"vLLM, in this process: {type(error).__name__}: {error}"))
            return
        for output in outputs:
            if output.request_id not in requests:
                continue
            future, _ = requests[output.request_id]
            requests[output.request_id] = future, output
            if output.finished:
                del requests[output.request_id]
                give(future, answered(output))
            elif future.cancelled():
                del requests[output.request_id]
                self._engine.abort_request([output.request_id])

    def _unmake(self) -> None:
        """Ends the engine, so that another can be made."""
        engine, self._engine = self._engine, None
        if engine is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            engine.engine_core.shutdown()
            cleanup_dist_env_and_memory()


def fail(requests: Requests, error: EngineError) -> None:
    """Tells all who wait."""
    for future, _ in requests.values():
        give(future, error)
    requests.clear()


def give(waiting: Future[Any], outcome: Any) -> None:
    """Ends the wait, with an answer or an exception; nobody may be waiting any more."""
    with contextlib.suppress(InvalidStateError):
        waiting.set_exception(outcome) if isinstance(outcome, BaseException) else waiting.set_result(outcome)


def answered(output: Any, reason: str = "", version: str = "") -> dict[str, Any]:
    """What vLLM's server would answer. output: a RequestOutput, or None where nothing came. reason, version: of one that is
    interrupted, of which vLLM itself has not said them; no request outlives a swap, so that it has one version.
    """
    if output is None:
        return {"choices": [{"token_ids": [], "logprobs": None, "weight_versions": [], "finish_reason": reason}]}
    (completion,) = output.outputs
    tokens = list(completion.token_ids)
    entries = [{"logprob": each[token].logprob} for token, each in zip(tokens, completion.logprobs or [])]
    spans = [{"version": s.version, "start": s.start, "end": s.end} for s in completion.weight_versions or []]
    choice = {
        "token_ids": tokens, "logprobs": {"content": entries}, "finish_reason": reason or completion.finish_reason,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}] if reason else spans,
        "routed_experts": None if reason else completion.routed_experts,
    }  # fmt: skip
    return {"choices": [choice]}
