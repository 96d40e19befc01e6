"""Several engines as one sampler: routes requests, evicts failed engines and takes them back."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from gspo.agents.threads import begin
from gspo.backends.vllm.errors import EngineError, blamed
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.weight_check import Check

logger = logging.getLogger(__name__)

MAX_FAILURES = 3  # consecutive failures, without an answer in between, after which an engine is given up
PAUSE = 0.5  # seconds before a failed engine is restarted or polled again
POLL = 5.0  # poll interval, in seconds, of an unresponsive engine that is not ours


class Evicted(EngineError):
    """The engine was evicted during this request, because of another request's failure."""


class State(Enum):
    """The state of an engine. `Fleet` has the transitions."""

    SERVING = "answers requests"
    PAUSED = "is up, and waits for weights"
    READMITTING = "gets the current weights on its own, while the others serve"
    STARTING = "is being restarted or polled"
    AWAY = "does not answer, and is somebody else's to start"
    LOST = "is given up"


RECOVERABLE = {State.SERVING, State.PAUSED, State.READMITTING, State.STARTING}  # without manual help


@dataclass(eq=False)
class Member:
    """An engine of a fleet, and the acceptance test of its weights."""

    engine: Server
    check: Check
    state: State = State.PAUSED
    generation: int = 0  # evictions so far; simultaneous failures in one generation count once
    failures: int = 0  # consecutive
    error: EngineError | None = None  # the last failure
    evicted_at: float = 0.0  # time.monotonic(); 0 while it serves
    update: int = 0  # the weight update whose weights it gets while READMITTING
    requests: set[asyncio.Task[dict[str, Any]]] = field(default_factory=set)  # running


class Fleet:
    """Engines that all hold the same weights. An engine goes through these states:

        PAUSED       its weights are loaded and verified     `admit`      SERVING
        SERVING      a weight update begins                  `pause_all`  PAUSED
        any          it fails; its requests move to others   `evict`      STARTING, or LOST after MAX_FAILURES
        STARTING     it is up again                                       PAUSED
        STARTING     it is not ours and does not answer                   AWAY, until it answers
        PAUSED       no update is loading weights: `readmit` gives it     `claim`      READMITTING
        READMITTING  its weights are loaded and verified     `admit`      SERVING
        READMITTING  an update began meanwhile               `superseded` PAUSED

    Each change names the member's generation, and is ignored if the member was evicted since.

    Args:
        most: Concurrent requests per engine.
        loop: The event loop of the requests.
        readmit: Called with an engine that is up again, and its generation: gives it the current weights and verifies them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        most: int,
        loop: asyncio.AbstractEventLoop,
        readmit: Callable[[Member, int], None],
        notify: Callable[[str], None],
    ) -> None:
        self.members, self.most, self.notify = members, most, notify
        self.lost: EngineError | None = None  # set once no engine is left: the reason
        self.retried = self.evicted = 0  # requests and engines since the last `counts`
        self.updates = 0  # weight updates begun so far
        self._resting = False
        self._loop, self._readmit = loop, readmit
        self._changed = threading.Condition(threading.RLock())  # held during a state change
        self._news = asyncio.Event()  # in the loop: a state changed, or a request ended
        self._over = threading.Event()

    @property
    def serving(self) -> list[Member]:
        """The engines that serve completions."""
        return [member for member in self.members if member.state is State.SERVING]

    def counts(self) -> dict[str, float]:
        """Metrics since the last call, and the number of serving engines."""
        found = {"engines/serving": float(len(self.serving)), "engines/evicted": float(self.evicted)}
        found["engines/requests_retried"] = float(self.retried)
        self.retried = self.evicted = 0
        return found

    def start(self) -> None:
        """Starts the engines that are ours, and waits until all answer. Raises EngineError if one does not."""
        try:
            for started in wait([begin(m.engine.start) for m in self.members], return_when=FIRST_EXCEPTION).done:
                started.result()
        except BaseException:
            self.stop()  # do not wait for the others
            raise

    def stop(self) -> None:
        """Ends the engines that are ours, for good."""
        self.over()
        for stopped in [begin(member.engine.stop) for member in self.members]:
            stopped.result()

    def over(self) -> None:
        """Ignores all engine failures from now on."""
        self._over.set()

    def any_recoverable(self, without: Collection[Member] = ()) -> bool:
        """Whether any other engine than `without` serves, or may serve again without manual help."""
        return any(member.state in RECOVERABLE for member in self.members if member not in without)

    async def free(self, without: Mapping[Member, int]) -> Member | None:
        """The serving engine with the fewest running requests; waits for one. Returns None if all engines have refused the
        request; raises EngineError if none is left. without: engines that refused it, each with its generation then.
        """
        while True:
            if self.lost is not None:
                raise self.lost
            others = [m for m in self.members if m.state in RECOVERABLE and without.get(m) != m.generation]
            able = [m for m in others if m.state is State.SERVING and len(m.requests) < self.most]
            if able:
                return min(able, key=lambda member: len(member.requests))
            if self.serving and not others:
                return None
            await self._news.wait()

    async def ask(self, member: Member, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one, from this engine. Raises Evicted, and the errors of Server.ask."""
        generation, task = member.generation, asyncio.ensure_future(member.engine.ask(body, timeout))
        member.requests.add(task)
        try:
            answer = await task
            while member.state is State.PAUSED:  # the answer may come from new, unverified weights
                await self._news.wait()
            if member.generation != generation:
                raise Evicted
            return answer
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise Evicted from None
        finally:
            task.cancel()
            member.requests.discard(task)
            self._wake_requests()

    def rest(self) -> None:
        """Suspends requests, restarts and weight transfers until `pause_all`: the memory is needed elsewhere."""
        with self._changed:
            self.pause_all()
            self._resting = True

    def pause_all(self) -> None:
        """Begins a weight update: serving engines and requests wait. Returning engines get the old weights meanwhile."""
        with self._changed:
            for member in self.serving:
                self._set(member, State.PAUSED)
            # Incremented last, so that a reader of the new value never sees an engine that still serves old weights.
            self.updates, self._resting = self.updates + 1, False

    def paused(self) -> dict[Member, int]:
        """The engines that wait for weights, each with its generation. Waits for one. Raises EngineError if none is left."""
        with self._changed:
            while not (found := {m: m.generation for m in self.members if m.state is State.PAUSED}):
                if self.lost is not None:
                    raise self.lost
                self._changed.wait()  # an engine's start has a timeout
            return found

    def claim(self, member: Member, generation: int) -> bool:
        """Whether a paused engine is to get the current weights on its own: not if an update has given them, or will."""
        with self._changed:
            if member.generation != generation or member.state is not State.PAUSED or self._resting:
                return False
            member.update = self.updates
            self._set(member, State.READMITTING)
            return True

    def superseded(self, member: Member, generation: int) -> bool:
        """Whether an update has begun since `claim`, so that the engine got old weights: it then waits for the new."""
        with self._changed:
            late = member.state is State.READMITTING and member.generation == generation and member.update != self.updates
            if late:
                self._set(member, State.PAUSED)
            return late

    def admit(self, member: Member, generation: int) -> bool:
        """Puts a verified engine back into service, unless it was evicted meanwhile. Returns False if it is superseded."""
        with self._changed:
            if self.superseded(member, generation):
                return False
            if member.generation == generation and member.state in (State.PAUSED, State.READMITTING):
                if member.evicted_at:
                    away = time.monotonic() - member.evicted_at
                    self._report(f"the vLLM engine {member.engine.name} is back after {away:.1f} s, and was proven")
                member.evicted_at = 0.0
                self._set(member, State.SERVING)
            return True

    def evict(self, member: Member, generation: int, failure: Exception, final: bool = False) -> None:
        """Evicts an engine, once for all failures in this generation. It comes back unless `final`, or failed too often."""
        error = blamed(failure)
        with self._changed:
            if member.generation != generation or member.state is State.LOST or self._over.is_set():
                return
            member.generation, member.failures, member.error = generation + 1, member.failures + 1, error
            member.evicted_at = member.evicted_at or time.monotonic()
            self.evicted += 1
            again = member.failures < MAX_FAILURES and not final
            then = "given up" if not again else "started again" if member.engine.ours else "taken back once it answers"
            self._set(member, State.STARTING if again else State.LOST)
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in member.requests])
        count = f"failure {member.failures} in a row"
        if again:
            begin(partial(self._bring_back, member, generation + 1))
        self._report(f"the vLLM engine {member.engine.name} is left out and {then} ({count}): {error}")

    def _report(self, text: str) -> None:
        """Calls `notify`. If that fails, as with a full disk, the engine must come back nevertheless."""
        try:
            self.notify(text)
        except Exception as error:
            logger.debug(f"{text}; this could not be reported: {error}")

    def _bring_back(self, member: Member, generation: int) -> None:
        """Restarts the engine, or waits until it answers, and readmits it."""
        try:
            while self._over.wait(PAUSE) or self._resting:
                if self._over.is_set():
                    return
            if member.engine.ours:
                member.engine.start()
            while not member.engine.ours and not member.engine.answers():
                self._set(member, State.AWAY)
                if self._over.wait(POLL):
                    return
            self._set(member, State.PAUSED)
            self._readmit(member, generation)
        except Exception as error:  # any error: waiting callers must learn that this engine is not coming back
            self.evict(member, generation, error)

    def _set(self, member: Member, state: State) -> None:
        with self._changed:
            member.state = state
            if self.lost is None and not self.any_recoverable():
                errors = "; ".join(f"{member.engine.name}: {member.error}" for member in self.members)
                all_lost = EngineError(f"all {len(self.members)} vLLM engines are lost: {errors}")
                self.lost = member.error if len(self.members) == 1 else all_lost
            self._changed.notify_all()
        self._loop.call_soon_threadsafe(self._wake_requests)

    def _wake_requests(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
