"""The vLLM sampler: token ids in and out, log-probabilities from the engines, weights swapped in place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gspo.agents.loop_thread import cancelled
from gspo.backends.hf.model import HFModel
from gspo.backends.vllm.errors import EngineError, Refused, blamed
from gspo.backends.vllm.fleet import MAX_FAILURES, Evicted, Fleet, Member, State
from gspo.backends.vllm.request import Request
from gspo.backends.vllm.routed_experts import Routers
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import FolderTransfer, Transfer, each_of
from gspo.backends.vllm.weight_check import PROBE_TOKENS, ROUNDS, Check, compare, precision_of, repeated
from gspo.config.rollout import SamplerConfig
from gspo.interfaces import Job, SamplerError, Weights, seed_of
from gspo.types import Prompt, Rollout, Sampling


class OtherWeights(EngineError):
    """An engine samples from weights that differ from the trainer's."""


class VLLMSampler:
    """Samples through vLLM engines. `load` swaps the weights of each engine, and each one proves with a few sampled tokens
    that it holds the policy's weights. `Fleet` has the states of an engine.

    Requests run in a separate thread. A completion that a weight update interrupts continues with the new weights.

    Args:
        exchange: A folder that the engines can read too.
        batch_size: Concurrent completions per engine.
        timeout: Timeout of a request, in seconds.
        notify: Called with a message when an engine is evicted or comes back.
        routers: Routers whose expert choices are requested; reset to None if an engine does not report them at first.
        given: The settings that say how precise the engines are, and whether they decode speculatively.
    """

    def __init__(
        self,
        model: HFModel,
        engines: Sequence[Server],
        exchange: Path,
        temperature: float,
        batch_size: int = 256,
        timeout: float = 600.0,
        notify: Callable[[str], None] = lambda text: None,
        routers: Routers | None = None,
        sleep_level: int = 0,
        given: SamplerConfig | None = None,
    ) -> None:
        self.model, self.temperature, self.timeout = model, temperature, timeout
        self.routers, self.sleep_level, self.version = routers, sleep_level, 0
        self.given = given = given or SamplerConfig()
        self.still: AbstractContextManager[Any] = contextlib.nullcontext()  # a weight update never waits for completions
        self.probes: list[Rollout] = []  # one engine's, from the last check; the others sample the same
        self._round = 0  # the round of the check that `probes` come from
        self._slots = asyncio.Semaphore(batch_size * len(engines))  # started completions finish before others start
        self._control = threading.Lock()  # held during a weight update, and when a returning engine claims the weights
        self._loop = asyncio.new_event_loop()
        proof = precision_of(given, model.compute_dtype), model.config.vocab_size, given.weight_check_limit
        members = [Member(engine, Check(*proof)) for engine in engines]
        self.fleet = Fleet(members, batch_size, self._loop, self._readmit, notify)
        self.transfer: Transfer = FolderTransfer(exchange, adapters=False)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def close(self) -> None:
        """Cancels running completions and closes the transfer."""

        async def end() -> None:
            self.fleet.over()  # first, so that a cancelled request does not count as an engine failure
            await cancelled(asyncio.all_tasks() - {asyncio.current_task()})  # asyncio warns about unfinished tasks
            for member in self.fleet.members:
                await member.engine.hang_up()

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.transfer.close()

    def counts(self) -> dict[str, float]:
        """Number of serving engines; since the last call: evictions, retried requests, the cost of weight transfers, and the
        share of drafted tokens that were accepted.
        """
        drafts = [(0.0, 0.0)]
        up = [each for each in self.fleet.members if each.state in (State.SERVING, State.PAUSED)]  # paused: also asleep
        for member in up if self.given.speculative_config else ():
            with contextlib.suppress(EngineError):
                drafts.append(member.engine.drafts())
        drafted, accepted = map(sum, zip(*drafts))
        acceptance = {"engines/draft_acceptance": accepted / drafted} if drafted else {}
        return self.fleet.counts() | self.transfer.counts() | acceptance

    def rest(self) -> None:
        """Puts the engines to sleep until the next `load`, if sampler.sleep_level is set. Evicts engines that fail to."""
        if not self.sleep_level:
            return
        with self._control:
            serving = {member: member.generation for member in self.fleet.serving}
            self.fleet.rest()
            for member, error in each_of(serving, lambda member: member.engine.sleep(self.sleep_level))[1].items():
                self.fleet.evict(member, serving[member], error)

    def load(self, weights: Weights) -> None:
        """Loads these weights and their version into all engines. Evicts engines that fail; raises EngineError if all do."""
        try:
            self.transfer.prepare(weights)
        except SamplerError:
            self.version = weights.version  # as Sampler requires: a checkpoint already has the weights of this version
            raise
        if self.sleep_level and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # an engine needs the memory to wake up
        with self._control:
            self.fleet.pause_all()
            self.version, self.temperature = weights.version, weights.temperature  # first, since `commit` may fail
            self.transfer.commit(weights)
            while not self.fleet.serving:
                self._update(weights, self.fleet.paused())

    def _update(self, weights: Weights, members: Mapping[Member, int]) -> None:
        """Sends the current weights to several engines, each with its generation, and admits those that prove it."""
        errors = self.transfer.send(members, self.version)
        sent = [member for member in members if member not in errors]
        for member, error in (errors | each_of(sent, lambda member: member.engine.wake())[1]).items():
            self.fleet.evict(member, members[member], error)
        ready = [member for member in members if member.generation == members[member]]
        _, errors = self._verify(weights, ready)
        for member in ready:
            if member not in errors:
                self.fleet.admit(member, members[member])
        for member, error in errors.items():
            # If every engine has wrong weights or rejects the probes, a restart does not help.
            final = isinstance(error, (OtherWeights, Refused)) and not self.fleet.any_recoverable(errors)
            self.fleet.evict(member, members[member], error, final)

    def _readmit(self, member: Member, generation: int) -> None:
        """Sends the current weights to an engine that is up again, and admits it once it has proven them."""
        with self._control:  # after any weight update that has begun
            claimed, current = self.fleet.claim(member, generation), (self.version, self.probes, self._round)
        if not claimed:
            return  # the update has given it the weights, or will
        # Without the lock: the engine may be slow or hang, and must not delay a weight update.
        try:
            self._send_and_compare(member, generation, *current)
        except Exception:
            if not self.fleet.superseded(member, generation):
                raise  # otherwise a new update removed the weights while it read them
        else:
            if self.fleet.admit(member, generation):
                return
        # This may outlast the time between updates, so hold the lock: the next update waits, and a failure is its own.
        with self._control:
            if self.fleet.claim(member, generation):
                self._send_and_compare(member, generation, self.version, self.probes, self._round)
                self.fleet.admit(member, generation)

    def _send_and_compare(
        self, member: Member, generation: int, version: int, known: Sequence[Rollout], number: int
    ) -> None:
        """Sends the current weights to one engine. It must reproduce `known`, what another engine sampled in round `number`
        with the same seeds: the trainer itself may be changing its weights now. Raises EngineError.
        """
        for error in self.transfer.send({member: generation}, version, again=True).values():
            raise error
        member.engine.wake()
        if not known:
            return
        probes, errors = self._probed([member], number)
        for error in errors.values():
            raise error
        gap, limit = repeated(probes[member], known), member.check.limit
        if not gap <= limit:
            raise OtherWeights(
                f"vLLM took over version {version} of the weights, and samples otherwise than an engine that was proven: "
                f"log-probabilities differ by {gap:.2g} on average, above {limit:.2g}. Its weights are stale or corrupt"
            )

    def check(self, weights: Weights) -> float:
        """The largest mean |log mu - log pi| among the engines, of tokens sampled now. Raises
        EngineError if an engine is above its limit.
        """
        worst, errors = self._verify(weights, self.fleet.serving)
        for error in errors.values():
            raise error
        return worst

    def _verify(self, weights: Weights, members: Iterable[Member]) -> tuple[float, dict[Member, EngineError]]:
        """Has engines sample probes, which the trainer scores. Returns the largest accepted gap, and the errors."""
        worst, errors, unproven, first = 0.0, dict[Member, EngineError](), list(members), True
        for number in range(ROUNDS):
            probes, failed = self._probed(unproven, number)
            errors, unproven = errors | failed, []
            for (member, sampled), gap in zip(probes.items(), compare(weights, list(probes.values()))):
                limit = member.check.limit
                if not member.check.accepts(gap):
                    others = f", and {gap.other:.0%} of its experts are others" if gap.other else ""
                    errors[member] = OtherWeights(
                        f"vLLM and the trainer disagree about version {self.version} of the weights: the log-probabilities "
                        f"of {gap.tokens} tokens differ by {gap.mean:.2g} on average, above {limit:.2g}{others}. Its "
                        "weights are stale or corrupt, or it serves another model, or it rounds more than is known here "
                        "(sampler.weight_check_limit)"
                    )
                    unproven.append(member)
                else:
                    errors.pop(member, None)
                    worst = max(worst, gap.mean)
                    if first:
                        self.probes, self._round, first = sampled, number, False
        return worst, errors

    def _probed(
        self, members: Sequence[Member], number: int
    ) -> tuple[dict[Member, list[Rollout]], dict[Member, EngineError]]:
        """Samples the prompts of one round of the check on each engine. Returns the completions of each, or its error."""

        async def sampled() -> list[Any]:
            return await asyncio.gather(*[self._probe(member, number) for member in members])

        found = dict(zip(members, asyncio.run_coroutine_threadsafe(sampled(), self._loop).result()))
        errors = {member: error for member, error in found.items() if isinstance(error, EngineError)}
        probes = {member: sampled for member, sampled in found.items() if member not in errors}
        silent = [m for m, one in probes.items() if self.routers is not None and all(int(p.routes.max()) < 0 for p in one)]
        if silent and not self.probes:  # the first weights
            self.routers = None
        for member in silent if self.routers is not None else ():
            errors[member] = EngineError("it no longer reports experts: start it with --enable-return-routed-experts")
            del probes[member]
        if self.routers is None:
            probes = {member: [replace(p, routes=None) for p in one] for member, one in probes.items()}
        return probes, errors

    async def _probe(self, member: Member, number: int) -> list[Rollout] | EngineError:
        """Bypasses the queue, which may be full of long completions."""
        sampling = Sampling(PROBE_TOKENS, self.temperature, seed=self.version, routes=True)

        async def one(completion: Request) -> Rollout:
            while not completion.so_far.stop:
                before = self.fleet.updates, member.generation
                answer = await member.engine.ask(completion.request(), self.timeout)
                interrupted = (self.fleet.updates, member.generation) != before
                completion.add(answer, self.version, self.version, interrupted)
            return completion.so_far

        prompts = member.check.prompts(self.version, number)
        begun = [(Rollout.begun(prompt), seed_of(self.version, i, number)) for i, prompt in enumerate(prompts)]
        try:
            async with asyncio.timeout(self.timeout):
                return await asyncio.gather(*[one(self._request(*each, sampling)) for each in begun])
        except TimeoutError:
            return EngineError(f"it has not answered for {self.timeout:g} s (sampler.timeout)")
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
            for done, future in enumerate(as_completed(job.future for job in jobs), 1):
                future.result()
                if progress is not None:
                    progress(done)
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
        async with self._slots:
            while not completion.so_far.stop:
                updates = self.fleet.updates  # read first: any later update interrupts the request
                member = await self.fleet.free({one: then for one, (then, _) in refused.items()})
                if member is None:  # the request is wrong, not the engines
                    raise Refused("; ".join(str(error) for _, error in refused.values()))
                earliest, generation = self.version, member.generation
                try:
                    answer = await self.fleet.ask(member, completion.request(), self.timeout)
                    completion.add(answer, earliest, self.version, interrupted=self.fleet.updates != updates)
                except Evicted:
                    self.fleet.retried += 1
                except Refused as error:
                    self.fleet.retried += 1
                    refused[member] = generation, error
                except Exception as error:  # possibly limited to this engine
                    self.fleet.retried += 1
                    self.fleet.evict(member, generation, error)
                    failures += 1
                    if failures >= max(MAX_FAILURES, len(self.fleet.members)):
                        raise blamed(error) from None
                else:
                    failures = member.failures = 0
                    for one, (then, refusal) in refused.items():  # another engine accepted it, so the request is not wrong
                        self.fleet.evict(one, then, refusal)
                    refused.clear()
        return completion.so_far
