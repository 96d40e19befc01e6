"""The vLLM sampler: token ids in and out, log-probabilities from the engines, weights swapped in place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gspo.agents.loop_thread import cancelled
from gspo.backends.hf.model import HFModel
from gspo.backends.vllm.errors import EngineError, Refused, blamed
from gspo.backends.vllm.fleet import STRIKES, Fleet, LeftOut, Member
from gspo.backends.vllm.request import Request
from gspo.backends.vllm.routed_experts import Routers
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import FolderTransfer, Transfer, each_of
from gspo.backends.vllm.weight_check import PROBE_TOKENS, ROUNDS, Check, Gap, compare, repeated
from gspo.interfaces import Job, SamplerError, Weights, seed_of
from gspo.types import Prompt, Rollout, Sampling


class OtherWeights(EngineError):
    """An engine samples from weights that differ from the trainer's."""


class VLLMSampler:
    """Samples through vLLM engines. `load` swaps the weights of each engine, and each one proves with a few sampled tokens
    that it holds the policy's weights.

    Requests run in a separate thread. A completion that a weight update interrupts continues with the new weights.

    Args:
        model: Provides the tokenizer and the limits for the prompts.
        exchange: A folder that the engines can read too.
        batch_size: Concurrent completions per engine.
        timeout: Timeout of a request, in seconds.
        tell: Called with a message when an engine is evicted or comes back.
        routers: Routers whose expert choices are requested; reset to None as soon as an engine does not report them.
        sleep_level: As in sampler.sleep_level.
    """

    def __init__(
        self,
        model: HFModel,
        engines: Sequence[Server],
        exchange: Path,
        temperature: float,
        batch_size: int = 256,
        timeout: float = 600.0,
        tell: Callable[[str], None] = lambda text: None,
        routers: Routers | None = None,
        sleep_level: int = 0,
    ) -> None:
        self.routers, self.sleep_level = routers, sleep_level
        self.model = model
        self.temperature, self.timeout = temperature, timeout
        self.version = 0
        self.still: AbstractContextManager[Any] = contextlib.nullcontext()  # a weight update never waits for completions
        self.probes: list[Rollout] = []  # one engine's, from the last check; the others sample the same
        self._round = 0  # the round of the check that `probes` come from
        self._room = asyncio.Semaphore(batch_size * len(engines))  # started completions finish before others start
        self._control = threading.Lock()  # held during a weight update, and when a returning engine claims the weights
        self._loop = asyncio.new_event_loop()
        proofs = [Check(model.compute_dtype, model.config.vocab_size) for _ in engines]
        members = [Member(*each) for each in zip(engines, proofs)]
        self.fleet = Fleet(members, batch_size, self._loop, self._welcome, tell)
        self.transfer: Transfer = FolderTransfer(exchange, self.fleet.adapters)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def close(self) -> None:
        """Cancels running completions and closes the transfer."""

        async def end() -> None:
            self.fleet.over()  # first, so that a cancelled request does not count as an engine failure
            await cancelled(asyncio.all_tasks() - {asyncio.current_task()})  # asyncio warns about unfinished tasks
            await self.fleet.hang_up()

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.transfer.close()

    def counts(self) -> dict[str, float]:
        """Number of serving engines; since the last call: evictions, retried requests, and the cost of weight transfers."""
        return self.fleet.counts() | self.transfer.counts()

    def rest(self) -> None:
        """Puts the engines to sleep until the next `load`, if sampler.sleep_level is set. Evicts engines that fail to."""
        if not self.sleep_level:
            return
        with self._control:
            serving = {member: member.life for member in self.fleet.serving}
            self.fleet.rest()
            for member, error in each_of(serving, lambda member: member.engine.sleep(self.sleep_level))[1].items():
                self.fleet.evict(member, serving[member], error)

    def load(self, weights: Weights) -> None:
        """Loads these weights and their version into all engines. Evicts engines that fail; raises EngineError if all do."""
        self._make_room()
        try:
            self.transfer.take(weights)
        except SamplerError:
            self.version = weights.version  # as Sampler requires: a checkpoint already has the weights of this version
            raise
        with self._control:
            self.fleet.pause_all()
            self.transfer.put(weights)
            self.version, self.temperature = weights.version, weights.temperature
            while not self.fleet.serving:
                self._update(weights, self.fleet.waiting())

    def _make_room(self) -> None:
        """Frees torch's cached GPU memory, which an engine needs to wake up."""
        if self.sleep_level and torch.cuda.is_initialized():
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()

    def _update(self, weights: Weights, members: Mapping[Member, int]) -> None:
        """Gives the current weights to several engines at once, and admits those that prove it. members: each engine with
        its life.
        """
        errors = self.transfer.give(members, self.version)
        self._make_room()  # the transfer used some
        given = [member for member in members if member not in errors]
        for member, error in (errors | each_of(given, lambda member: member.engine.wake())[1]).items():
            self.fleet.evict(member, members[member], error)
        ready = [member for member in members if member.life == members[member]]
        _, errors = self._judge(weights, ready)
        for member in ready:
            if member not in errors:
                self.fleet.admit(member, members[member])
        for member, error in errors.items():
            # If every engine has wrong weights or rejects the probes, a restart does not help.
            final = isinstance(error, (OtherWeights, Refused)) and not self.fleet.any_recoverable(errors)
            self.fleet.evict(member, members[member], error, final)

    def _welcome(self, member: Member, life: int) -> None:
        """Gives a returning engine the current weights, and admits it once it is proven. It must reproduce what a proven
        engine sampled with the same seeds, because the trainer may be changing its own weights now. Raises EngineError.
        """
        with self._control:  # after any weight update that has begun
            update = self.fleet.claim(member, life)
            version, known = self.version, (self.probes, self._round)
        if update is None:
            return  # that update has already given it the weights
        # Without the lock: the engine may be slow or hang, and must not delay a weight update.
        try:
            self._prove(member, life, version, *known)
        except Exception:
            if not self.fleet.outdated(member, life, update):
                raise  # otherwise a new update removed the weights while it read them
        else:
            if self.fleet.admit(member, life, update):
                return
        # A proof may outlast the time between updates, so hold the lock: the next update waits, and a failure is its own.
        with self._control:
            update = self.fleet.claim(member, life)
            if update is not None:
                self._prove(member, life, self.version, self.probes, self._round)
                self.fleet.admit(member, life, update)

    def _prove(self, member: Member, life: int, version: int, known: Sequence[Rollout], number: int) -> None:
        """Gives it the current weights and compares its samples with `known`, another engine's in round `number`. Raises
        EngineError.
        """
        for error in self.transfer.give({member: life}, version, again=True).values():
            raise error
        member.engine.wake()
        if not known:
            return
        (sampled,) = self._probed([member], number)
        if isinstance(sampled, EngineError):
            raise sampled
        gap, limit = repeated(sampled, known), member.proof.limit
        if not gap <= limit:
            raise OtherWeights(
                f"vLLM took over version {version} of the weights, and samples otherwise than an engine that was proven: "
                f"log-probabilities differ by {gap:.2g} on average, above {limit:.2g}. Its weights are stale or corrupt"
            )

    def check(self, weights: Weights) -> float:
        """The largest mean |log mu - log pi| among the engines, over a few tokens that each samples now. Raises EngineError
        if an engine exceeds its limit in every round of prompts: its weights are not the policy's, but stale or corrupt.
        """
        worst, errors = self._judge(weights, self.fleet.serving)
        for error in errors.values():
            raise error
        return worst

    def _judge(self, weights: Weights, members: Iterable[Member]) -> tuple[float, dict[Member, EngineError]]:
        """Has each engine sample probes, which the trainer scores. Returns the largest accepted gap, and the error of each
        engine that failed.
        """
        worst, errors, unproven, none_yet = 0.0, dict[Member, EngineError](), list(members), True
        for number in range(ROUNDS):
            probes = dict[Member, list[Rollout]]()
            for member, sampled in zip(unproven, self._probed(unproven, number)):
                if isinstance(sampled, EngineError):
                    errors[member] = sampled
                else:
                    probes[member] = sampled
            unproven = []
            for member, gap in zip(probes, compare(weights, list(probes.values()))):
                limit = member.proof.limit
                if not member.proof.accepts(gap):
                    errors[member] = OtherWeights(self._disagreement(gap, limit))
                    unproven.append(member)
                    continue
                errors.pop(member, None)
                worst = max(worst, gap.mean)
                if none_yet:
                    self.probes, self._round, none_yet = probes[member], number, False
        return worst, errors

    def _disagreement(self, gap: Gap, limit: float) -> str:
        others = f", and {gap.other:.0%} of its experts are others" if gap.other else ""
        return (
            f"vLLM and the trainer disagree about version {self.version} of the weights: the log-probabilities of "
            f"{gap.tokens} tokens differ by {gap.mean:.2g} on average, above {limit:.2g}{others}. Its weights are stale or "
            "corrupt, or it serves another model"
        )

    def _probed(self, members: Sequence[Member], number: int) -> list[list[Rollout] | EngineError]:
        """Samples the prompts of one round of the check on each engine. Returns the completions, or the error, of each."""
        sampling = Sampling(PROBE_TOKENS, self.temperature, seed=self.version, routes=True)

        async def sampled() -> list[Any]:
            return await asyncio.gather(*[self._probe(member, number, sampling) for member in members])

        found = asyncio.run_coroutine_threadsafe(sampled(), self._loop).result()
        told = [one for one in found if not isinstance(one, EngineError)]
        if self.routers is not None and not all(any(int(p.routes.max()) >= 0 for p in one) for one in told):
            self.routers = None
        if self.routers is None:
            return [one if isinstance(one, EngineError) else [replace(p, routes=None) for p in one] for one in found]
        return found

    async def _probe(self, member: Member, number: int, sampling: Sampling) -> list[Rollout] | EngineError:
        """Bypasses the queue, which may be full of long completions."""

        async def one(completion: Request) -> Rollout:
            while not completion.so_far.stop:
                before = self.fleet.updates, member.life
                answer = await member.engine.ask(completion.request(), self.timeout)
                interrupted = (self.fleet.updates, member.life) != before
                completion.add(answer, self.version, self.version, interrupted)
            return completion.so_far

        prompts = member.proof.prompts(self.version, number)
        begun = [(Rollout.begun(prompt), seed_of(self.version, i, number)) for i, prompt in enumerate(prompts)]
        try:
            async with asyncio.timeout(self.timeout):
                return await asyncio.gather(*[one(self._request(*each, sampling)) for each in begun])
        except TimeoutError:
            return EngineError(f"it has not answered for {self.timeout:g} s")
        except Exception as error:  # possibly limited to this engine
            return blamed(error)

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:
        """`n` completions per prompt, in the order of the prompts."""
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
        """Starts or continues a completion. If an engine fails, another engine continues from the same token."""
        completion = self._request(so_far, seed, sampling)
        return Job(asyncio.run_coroutine_threadsafe(self._sample(completion), self._loop), lambda: completion.so_far)

    def _request(self, so_far: Rollout, seed: int, sampling: Sampling) -> Request:
        routers = self.routers if sampling.routes else None
        return Request(so_far, seed, sampling, self.model.tokenizer, self.model.config.vocab_size, routers)

    async def _sample(self, completion: Request) -> Rollout:
        failures, refused = 0, dict[Member, tuple[int, Refused]]()
        async with self._room:
            while not completion.so_far.stop:
                updates = self.fleet.updates  # read first: any later update interrupts the request
                member = await self.fleet.free({one: life for one, (life, _) in refused.items()})
                if member is None:  # the request is wrong, not the engines
                    raise Refused("; ".join(str(error) for _, error in refused.values()))
                earliest, life = self.version, member.life
                try:
                    answer = await self.fleet.ask(member, completion.request(), self.timeout)
                    completion.add(answer, earliest, self.version, interrupted=self.fleet.updates != updates)
                except LeftOut:
                    self.fleet.moved += 1
                except Refused as error:
                    self.fleet.moved += 1
                    refused[member] = life, error
                except Exception as error:  # possibly limited to this engine
                    self.fleet.moved += 1
                    self.fleet.evict(member, life, error)
                    failures += 1
                    if failures >= max(STRIKES, len(self.fleet.members)):
                        raise (failure := blamed(error)) from failure.__cause__
                else:
                    failures = member.strikes = 0
                    for one, (then, refusal) in refused.items():  # another engine accepted it, so the request is not wrong
                        self.fleet.evict(one, then, refusal)
                    refused.clear()
        return completion.so_far
