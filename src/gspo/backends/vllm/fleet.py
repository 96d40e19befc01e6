"""Several engines as one sampler: routes requests, evicts failed engines and takes them back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from enum import Enum
from types import MappingProxyType
from typing import Any

from gspo.backends.vllm.errors import EngineError, blamed
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.threads import at_once
from gspo.backends.vllm.weight_check import Check

STRIKES = 3  # consecutive failures, without an answer in between, after which an engine is given up
PAUSE = 0.5  # seconds before a failed engine is restarted or polled again
LOOK = 5.0  # poll interval, in seconds, of an unresponsive engine that is not ours


class LeftOut(EngineError):
    """The engine was evicted during this request, because of another request's failure."""


class State(Enum):
    """The state of an engine in a fleet."""

    SERVES = "is asked for completions"
    WAITS = "is up, and waits for the weights of now and their proof"
    COMES = "is given the weights of now beside all else, and proves them"
    STARTS = "is being started, or asked whether it is up"
    AWAY = "does not answer, and is somebody else's to start"
    LOST = "is given up"


HOPE = {State.SERVES, State.WAITS, State.COMES, State.STARTS}  # it serves, or may serve again without manual help


class Member:
    """An engine of a fleet.

    Attributes:
        proof: The check of its weights.
        life: Number of evictions so far; simultaneous failures in one life count once.
        strikes: Consecutive failures.
        error: The last failure.
        left: When it was evicted (time.monotonic()); 0 while it serves.
        asked: Running requests.
    """

    def __init__(self, engine: Server, proof: Check) -> None:
        self.engine, self.proof = engine, proof
        self.state, self.life, self.strikes = State.WAITS, 0, 0
        self.error: EngineError | None = None
        self.left = 0.0
        self.asked: set[asyncio.Task[dict[str, Any]]] = set()


class Fleet:
    """Engines that all hold the same weights, or are evicted.

    A failed engine is evicted at once and its requests move to the others. An engine of ours is then restarted; another one
    is polled until it answers. Then `welcome` gives it the current weights and proves it, or raises EngineError.

    Args:
        most: Concurrent requests per engine.
        loop: The event loop of the requests.
        welcome: Called with a returning engine and its life.
        tell: Called with a message when an engine is evicted, with the reason, or is back.
    """

    def __init__(
        self,
        members: Sequence[Member],
        most: int,
        loop: asyncio.AbstractEventLoop,
        welcome: Callable[[Member, int], None],
        tell: Callable[[str], None],
    ) -> None:
        self.members, self.most, self.tell = members, most, tell
        self.lost: EngineError | None = None  # set once no engine is left: the reason
        self.moved = self.left_out = 0  # moved requests and evicted engines since the last `counts`
        self.updates = 0  # weight updates begun so far
        self._resting = False
        self._loop, self._welcome = loop, welcome
        self._turn = threading.Condition(threading.RLock())  # held during a state change
        self._news = asyncio.Event()  # in the loop: a state changed, or a request ended
        self._over = threading.Event()

    @property
    def adapters(self) -> bool:
        """Whether all engines take LoRA adapters instead of whole weights."""
        return all(member.engine.adapters for member in self.members)

    @property
    def serving(self) -> list[Member]:
        """The engines that serve completions."""
        return [member for member in self.members if member.state is State.SERVES]

    def counts(self) -> dict[str, float]:
        """Metrics since the last call, and the number of serving engines."""
        found = {"engines/serving": len(self.serving), "engines/left_out": self.left_out, "engines/moved": self.moved}
        self.moved = self.left_out = 0
        return {name: float(count) for name, count in found.items()}

    def start(self) -> None:
        """Starts the engines that are ours, and waits until all answer. Raises EngineError if one does not."""
        try:
            for started in wait(at_once([m.engine.start for m in self.members]), return_when=FIRST_EXCEPTION).done:
                started.result()
        except BaseException:
            self.stop()  # do not wait for the others
            raise

    def stop(self) -> None:
        """Ends the engines that are ours, for good."""
        self._over.set()
        for stopped in at_once([member.engine.stop for member in self.members]):
            stopped.result()

    def over(self) -> None:
        """Ignores all engine failures from now on."""
        self._over.set()

    def any_recoverable(self, without: Collection[Member] = ()) -> bool:
        """Whether any other engine than `without` serves, or may serve again without manual help."""
        return any(member.state in HOPE for member in self.members if member not in without)

    async def hang_up(self) -> None:
        """Closes all clients; no more requests."""
        self._over.set()
        for member in self.members:
            await member.engine.hang_up()

    async def free(self, without: Mapping[Member, int] = MappingProxyType({})) -> Member | None:
        """The serving engine with the fewest running requests. Waits until one has capacity or comes back. Returns None if
        all engines have refused the request; raises EngineError if no engine is left. without: engines that refused it, each
        with its life then.
        """
        while True:
            if self.lost is not None:
                raise self.lost
            others = [m for m in self.members if m.state in HOPE and without.get(m) != m.life]
            able = [m for m in others if m.state is State.SERVES and len(m.asked) < self.most]
            if able:
                return min(able, key=lambda member: len(member.asked))
            if self.serving and not others:
                return None
            await self._news.wait()

    async def ask(self, member: Member, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one, from this engine. Raises LeftOut, and the errors of Server.ask."""
        life, task = member.life, asyncio.ensure_future(member.engine.ask(body, timeout))
        member.asked.add(task)
        try:
            answer = await task
            while member.state is State.WAITS:  # the answer may come from new, unproven weights
                await self._news.wait()
            if member.life != life:
                raise LeftOut
            return answer
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise LeftOut from None
        finally:
            task.cancel()
            member.asked.discard(task)
            self._tell_waiting()

    def rest(self) -> None:
        """Suspends requests, restarts and weight transfers until `pause_all`: the memory is needed elsewhere."""
        with self._turn:
            self.pause_all()
            self._resting = True

    def pause_all(self) -> None:
        """Moves serving engines to WAITS for new weights; requests wait too. Does not wait for returning engines, which get
        the old weights.
        """
        with self._turn:
            for member in self.serving:
                self._turn_to(member, State.WAITS)
            # Incremented last, so that a reader of the new value never sees an engine that still serves old weights.
            self.updates, self._resting = self.updates + 1, False

    def waiting(self) -> dict[Member, int]:
        """The engines that wait for weights, each with its life. Waits for the first one if all are being started. Raises
        EngineError if none is left.
        """
        with self._turn:
            while not (found := {m: m.life for m in self.members if m.state is State.WAITS}):
                if self.lost is not None:
                    raise self.lost
                self._turn.wait()  # an engine's start has a timeout
            return found

    def claim(self, member: Member, life: int) -> int | None:
        """Moves an engine that still waits to COMES, to get the current weights on its own. Returns the number of their
        update, or None.
        """
        with self._turn:
            if member.life != life or member.state is not State.WAITS or self._resting:
                return None  # a resting engine gets them with the next update
            self._turn_to(member, State.COMES)
            return self.updates

    def outdated(self, member: Member, life: int, update: int) -> bool:
        """Whether another update has begun since `claim` returned `update`. If so, the engine waits for the new weights."""
        with self._turn:
            late = member.life == life and member.state is State.COMES and update != self.updates
            if late:
                self._turn_to(member, State.WAITS)
            return late

    def admit(self, member: Member, life: int, update: int | None = None) -> bool:
        """Puts a proven engine back into service, unless it was evicted meanwhile. Returns False if its weights are
        outdated: another update has begun since `update`, the number from `claim`. It then waits for the new weights.
        """
        with self._turn:
            if update is not None and self.outdated(member, life, update):
                return False
            if member.life != life or member.state not in (State.WAITS, State.COMES):
                return True
            if member.left:  # told before it is seen to serve
                away = time.monotonic() - member.left
                self.tell(f"the vLLM engine {member.engine.name} is back after {away:.1f} s, and was proven")
            member.left = 0.0
            self._turn_to(member, State.SERVES)
        return True

    def evict(self, member: Member, life: int, failure: Exception, final: bool = False) -> None:
        """Evicts an engine, once for all failures in this `life`. It comes back unless `final`, or failed too often."""
        error = blamed(failure)
        with self._turn:
            if member.life != life or member.state is State.LOST or self._over.is_set():
                return
            member.life, member.strikes, member.error = life + 1, member.strikes + 1, error
            member.left = member.left or time.monotonic()
            self.left_out += 1
            again = member.strikes < STRIKES and not final
            ours = member.engine.ours
            then = "given up" if not again else "started again" if ours else "taken back once it answers"
            self._turn_to(member, State.STARTS if again else State.LOST)
        self._loop.call_soon_threadsafe(self._end_requests, member)
        number = f"failure {member.strikes} in a row"
        try:
            self.tell(f"the vLLM engine {member.engine.name} is left out and {then} ({number}): {error}")
        finally:
            if again:
                self._begin_to_bring_back(member, life + 1)

    def _begin_to_bring_back(self, member: Member, life: int) -> None:
        try:
            threading.Thread(target=self._bring_back, args=(member, life), daemon=True).start()
        except RuntimeError as error:  # out of threads: without one, the engine would never leave STARTS
            self.evict(member, life, error, final=True)

    def _bring_back(self, member: Member, life: int) -> None:
        """Restarts the engine, or waits until it answers, and welcomes it back."""
        try:
            while self._over.wait(PAUSE) or self._resting:
                if self._over.is_set():
                    return
            if member.engine.ours:
                member.engine.start()
            elif not self._answers(member):
                return
            self._turn_to(member, State.WAITS)
            self._welcome(member, life)
        except Exception as error:  # any error: waiting callers must learn that this engine is not coming back
            self.evict(member, life, error)

    def _answers(self, member: Member) -> bool:
        """Waits until it answers. Returns False if the fleet ends first."""
        while not member.engine.answers():
            self._turn_to(member, State.AWAY)
            if self._over.wait(LOOK):
                return False
        return True

    def _turn_to(self, member: Member, state: State) -> None:
        with self._turn:
            member.state = state
            if self.lost is None and not self.any_recoverable():
                self.lost = all_lost(self.members)
            self._turn.notify_all()
        self._loop.call_soon_threadsafe(self._tell_waiting)

    def _tell_waiting(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _end_requests(self, member: Member) -> None:
        for task in member.asked:
            task.cancel()


def all_lost(members: Collection[Member]) -> EngineError:
    """The error that ends a run without any engine left."""
    errors = {member.engine.name: member.error for member in members if member.error is not None}
    if len(members) == 1:
        return next(iter(errors.values()))
    return EngineError(f"all {len(members)} vLLM engines are lost: " + "; ".join(f"{k}: {v}" for k, v in errors.items()))
