"""vLLM as the sampler: token ids in and out, the engine's own likelihoods, weights swapped in place."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gspo.backends.hf.model import HFModel
from gspo.backends.vllm.request import Request
from gspo.backends.vllm.routes import Routers
from gspo.backends.vllm.server import Engine, EngineError
from gspo.backends.vllm.weight_check import PROBE_TOKENS, ROUNDS, Check
from gspo.ports import Job, SamplerError, Weights, seed_of
from gspo.types import Prompt, Rollout, Sampling

WEIGHTS, NEXT = "weights", "next"  # the folders of the exchange: of now, and while they are written
TRIES = 3  # failures in a row before the engine is given up
PAUSE = 0.5  # seconds before another try


class VLLMSampler:
    """Samples through a vLLM server. `load` swaps its weights and proves by a few sampled tokens that it holds the policy's.

    Requests run in a thread of their own; a completion that a weight update interrupts goes on with the new weights. model:
    whose tokenizer and limits the prompts have. exchange: a folder that the server reads too. batch_size: completions asked
    for at once. timeout: seconds that a request may take. tell: hears of a server that had to be started again. routers:
    whose choices of experts are asked for; None once the engine has not told any.
    """

    def __init__(
        self, model: HFModel, server: Engine, exchange: Path, temperature: float, batch_size: int = 256,
        timeout: float = 600.0, tell: Callable[[str], None] = lambda text: None, routers: Routers | None = None,
    ) -> None:  # fmt: skip
        self.routers = routers
        self.model, self.server, self.exchange = model, server, exchange
        self.temperature, self.timeout, self.tell = temperature, timeout, tell
        self.version = 0
        self.still: AbstractContextManager[Any] = contextlib.nullcontext()  # a weight update waits for no completion
        self.proof = Check(model.compute_dtype, model.config.vocab_size)
        self.probes: list[Rollout] = []  # those of the last check
        self._room = asyncio.Semaphore(batch_size)
        self._starts, self._control = 0, threading.Lock()
        self._lost: EngineError | None = None  # why the engine was given up
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()  # closed while weights are swapped
        self._open.set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def close(self) -> None:
        """Gives up what is being sampled."""

        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await self.server.hang_up()

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def load(self, weights: Weights) -> None:
        """Takes over these weights and their version. Raises EngineError where the engine then has others."""
        try:
            self.write(weights)
        except SamplerError:
            self.version = weights.version  # as the port has it: the weights of this version are in a checkpoint
            raise
        self._gate(self._open.clear)
        with self._control:  # an engine that is started again meanwhile reads the old ones, whole
            shutil.rmtree(self.exchange / WEIGHTS, ignore_errors=True)
            (self.exchange / NEXT).rename(self.exchange / WEIGHTS)
            self.version = weights.version
            try:
                self._swap()
            except EngineError as error:
                self._restart(error)
        self._gate(self._open.set)
        self.check(weights)

    def write(self, weights: Weights) -> None:
        """Writes the weights, or the adapter where the server takes one, beside those that the server has."""
        folder = str(self.exchange / NEXT)
        try:
            weights.save(folder, merged=not self.server.adapters)
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self.exchange).free / 2**20
            raise SamplerError(
                f"the weights cannot be written to {self.exchange}, which has {free:,.0f} MiB left ({error}): name a folder "
                "with room for them as sampler.exchange"
            ) from None

    def _gate(self, turn: Callable[[], None]) -> None:
        """Opens or closes the gate that requests go through, and waits until it is."""

        async def turned() -> None:
            turn()

        asyncio.run_coroutine_threadsafe(turned(), self._loop).result()

    def _swap(self) -> None:
        self.server.swap(self.exchange / WEIGHTS, self.version)

    def _restart(self, error: EngineError) -> None:
        """Starts the server again where it is ours, or waits for it, and gives it the weights of now."""
        if not self.server.ours and not self.server.answers():
            raise error
        self.tell(f"the vLLM engine {'is started' if self.server.ours else 'is asked'} again: {error}")
        time.sleep(PAUSE)
        self.server.start()
        self._starts += 1
        self._swap()

    def _recover(self, error: EngineError, starts: int) -> None:
        """What follows a failed request, once for all that failed with it: `starts` is the number when it was sent."""
        with self._control:
            if self._lost is not None:
                raise self._lost
            if self._starts > starts:
                return
            try:
                self._restart(error)
            except EngineError as lost:
                self._lost = lost
                raise

    def check(self, weights: Weights) -> float:
        """Mean |log mu - log pi| of a few tokens sampled now. Raises EngineError where it is too large, for other prompts
        too: the engine holds other weights than the policy, stale or corrupt ones.
        """
        for number in range(ROUNDS):
            limit = self.proof.limit
            gap = self.proof.compare(weights, self._probed(number))
            if self.proof.accepts(gap):
                return gap.mean
        others = f", and {gap.other:.0%} of its experts are others" if gap.other else ""
        raise EngineError(
            f"vLLM and the trainer disagree about version {self.version} of the weights: the log-probabilities of "
            f"{gap.tokens} tokens differ by {gap.mean:.2g} on average, above {limit:.2g}{others}. Its weights are stale or "
            "corrupt, or it serves another model"
        )

    def _probed(self, number: int) -> list[Rollout]:
        """Completions sampled now, to the prompts of a round of the check."""
        sampling = Sampling(PROBE_TOKENS, self.temperature, seed=self.version, routes=True)
        prompts = self.proof.prompts(self.version, number)
        begun = [(Rollout.begun(prompt), seed_of(self.version, i, number)) for i, prompt in enumerate(prompts)]
        # Beside the queue: it may be full of completions that take long.
        self.probes = [job.result() for job in [self._begin(*one, sampling, contextlib.nullcontext()) for one in begun]]
        if self.routers is not None and not any(int(one.routes.max()) >= 0 for one in self.probes):  # type: ignore[union-attr]
            self.routers, self.probes = None, [replace(one, routes=None) for one in self.probes]
        return self.probes

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:  # fmt: skip
        """`n` completions to each prompt, in the order of the prompts."""
        jobs = [
            self.begin(Rollout.begun(prompt), seed_of(sampling.seed, i, j), sampling)
            for i, prompt in enumerate(prompts)
            for j in range(n)
        ]
        try:
            waiting = {job.future for job in jobs}
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                if progress is not None:
                    progress(len(jobs) - len(waiting))
            return [job.result() for job in jobs]
        finally:
            for job in jobs:
                job.cancel()

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Begins a completion, or goes on with one. A server of ours that fails is started again with the weights of now,
        and goes on where it was.
        """
        return self._begin(so_far, seed, sampling, self._room)

    def _begin(self, so_far: Rollout, seed: int, sampling: Sampling, room: AbstractAsyncContextManager[Any]) -> Job:
        routers = self.routers if sampling.routes else None
        completion = Request(so_far, seed, sampling, self.model.tokenizer, self.model.config.vocab_size, routers)
        return Job(asyncio.run_coroutine_threadsafe(self._sample(completion, room), self._loop), lambda: completion.so_far)

    async def _sample(self, completion: Request, room: AbstractAsyncContextManager[Any]) -> Rollout:
        failures = 0
        async with room:
            while not completion.so_far.stop:
                await self._open.wait()
                earliest, starts = self.version, self._starts
                try:
                    completion.add(await self.server.ask(completion.request(), self.timeout), earliest, self.version)
                    failures = 0
                except EngineError as error:
                    failures += 1
                    if failures == TRIES:
                        raise
                    await asyncio.get_running_loop().run_in_executor(None, self._recover, error, starts)
        return completion.so_far
