"""Several engines as one: which is asked, which is left out, and how it comes back."""

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

STRIKES = 3  # failures of an engine in a row, with no answer in between, before it is given up
PAUSE = 0.5  # seconds before an engine that failed is started or asked again
LOOK = 5.0  # seconds between two looks at an engine of somebody else's that does not answer


class LeftOut(EngineError):
    """The engine was left out while it was asked, for what another request has shown."""


class State(Enum):
    """Where an engine of a fleet stands."""

    SERVES = "is asked for completions"
    WAITS = "is up, and waits for the weights of now and their proof"
    COMES = "is given the weights of now beside all else, and proves them"
    STARTS = "is being started, or asked whether it is up"
    AWAY = "does not answer, and is somebody else's to start"
    LOST = "is given up"


HOPE = {State.SERVES, State.WAITS, State.COMES, State.STARTS}  # it serves, or may without anybody's help


class Member:
    """An engine of a fleet. proof: the check of its weights. life: how often it was left out, so that what fails together
    counts once. strikes: failures in a row. error: the last. left: when it was left out. asked: the requests under way.
    """

    def __init__(self, engine: Server, proof: Check) -> None:
        self.engine, self.proof = engine, proof
        self.state, self.life, self.strikes = State.WAITS, 0, 0
        self.error: EngineError | None = None
        self.left = 0.0
        self.asked: set[asyncio.Task[dict[str, Any]]] = set()


class Fleet:
    """Engines that all hold the same weights, or are left out.

    One that fails is left out at once, and what it was asked for moves to the others. If it is ours it is started again,
    else looked at until it answers; `welcome` then gives it the weights of now and proves it, and raises EngineError where
    that fails. most: requests that one engine is asked at the same time. tell: hears who is left out, why, and who is back.
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
        self.lost: EngineError | None = None  # why no engine is left
        self.moved = self.left_out = 0  # requests, and engines, since they were last counted
        self.updates = 0  # of the weights, that were begun
        self._resting = False
        self._loop, self._welcome = loop, welcome
        self._turn = threading.Condition(threading.RLock())  # held while a state changes
        self._news = asyncio.Event()  # of the loop: a state has changed, or a request has ended
        self._over = threading.Event()

    @property
    def adapters(self) -> bool:
        """Whether they take LoRA adapters in place of whole weights."""
        return all(member.engine.adapters for member in self.members)

    @property
    def serving(self) -> list[Member]:
        """Those that are asked for completions."""
        return [member for member in self.members if member.state is State.SERVES]

    def counts(self) -> dict[str, float]:
        """Metrics since this was last asked, and how many engines serve now."""
        found = {"engines/serving": len(self.serving), "engines/left_out": self.left_out, "engines/moved": self.moved}
        self.moved = self.left_out = 0
        return {name: float(count) for name, count in found.items()}

    def start(self) -> None:
        """Starts all, those that are ours, and waits until they answer. Raises EngineError where one does not."""
        try:
            for started in wait(at_once([m.engine.start for m in self.members]), return_when=FIRST_EXCEPTION).done:
                started.result()
        except BaseException:
            self.stop()  # the others need not be waited for
            raise

    def stop(self) -> None:
        """Ends those that are ours, for good."""
        self._over.set()
        for stopped in at_once([member.engine.stop for member in self.members]):
            stopped.result()

    def over(self) -> None:
        """From here on no failure of an engine counts."""
        self._over.set()

    def any_recoverable(self, without: Collection[Member] = ()) -> bool:
        """Whether an engine serves, or may without anybody's help, beside these."""
        return any(member.state in HOPE for member in self.members if member not in without)

    async def hang_up(self) -> None:
        """No more is asked."""
        self._over.set()
        for member in self.members:
            await member.engine.hang_up()

    async def free(self, without: Mapping[Member, int] = MappingProxyType({})) -> Member | None:
        """Who is asked next: the engine with the fewest requests under way. without: those that have refused the request,
        with the numbers of their lives. Waits for one with room, or that comes back; None where all have refused it. Raises
        EngineError where none is left.
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
        """A completion, or a part of one, from this engine. Raises as Server.ask, and LeftOut."""
        life, task = member.life, asyncio.ensure_future(member.engine.ask(body, timeout))
        member.asked.add(task)
        try:
            answer = await task
            while member.state is State.WAITS:  # it may have answered with new weights that it has not proven yet
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
        """Until `recall` nobody is asked, and none is started or given weights: its memory is needed elsewhere."""
        with self._turn:
            self.pause_all()
            self._resting = True

    def pause_all(self) -> None:
        """Those that serve wait for new weights; who asks for a completion waits too. Those that come back just now are not
        waited for: what they are given is of before.
        """
        with self._turn:
            for member in self.serving:
                self._turn_to(member, State.WAITS)
            # Last: whoever reads this number finds none that serves but is about to be interrupted by this update.
            self.updates, self._resting = self.updates + 1, False

    def waiting(self) -> dict[Member, int]:
        """Those that wait for weights, with the number of their life; waits for the first of those that are being started.
        Raises EngineError where none is left.
        """
        with self._turn:
            while not (found := {m: m.life for m in self.members if m.state is State.WAITS}):
                if self.lost is not None:
                    raise self.lost
                self._turn.wait()  # an engine's start has a time limit
            return found

    def claim(self, member: Member, life: int) -> int | None:
        """It is given the weights of now beside all else, if it still waits for them. Returns the number of their update."""
        with self._turn:
            if member.life != life or member.state is not State.WAITS or self._resting:
                return None  # where they rest, it gets them with the next update
            self._turn_to(member, State.COMES)
            return self.updates

    def outdated(self, member: Member, life: int, update: int) -> bool:
        """Whether another update has begun since it came: whatever has come of it, it then waits for those weights."""
        with self._turn:
            late = member.life == life and member.state is State.COMES and update != self.updates
            if late:
                self._turn_to(member, State.WAITS)
            return late

    def admit(self, member: Member, life: int, update: int | None = None) -> bool:
        """It was proven with the weights of now: it serves from now on, if it was not left out meanwhile. Returns False
        where they were of an earlier update than now's, by whose number it came: it then waits for those of now.
        """
        with self._turn:
            if update is not None and self.outdated(member, life, update):
                return False
            if member.life != life or member.state not in (State.WAITS, State.COMES):
                return True
            if member.left:  # who sees it serve has heard of it
                away = time.monotonic() - member.left
                self.tell(f"the vLLM engine {member.engine.name} is back after {away:.1f} s, and was proven")
            member.left = 0.0
            self._turn_to(member, State.SERVES)
        return True

    def evict(self, member: Member, life: int, failure: Exception, final: bool = False) -> None:
        """Takes an engine out of service, once for all that fails in this `life`. It comes back if it can and may."""
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
        except RuntimeError as error:  # this process has no threads left: nothing would ever end the wait
            self.evict(member, life, error, final=True)

    def _bring_back(self, member: Member, life: int) -> None:
        """Starts it again, or waits until it answers, and gives it back its place."""
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
        except Exception as error:  # whatever it is: those who wait for this engine must hear that it does not come
            self.evict(member, life, error)

    def _answers(self, member: Member) -> bool:
        """Waits until it does; False where the fleet ends before."""
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
    """What ends a run that has no engine left."""
    errors = {member.engine.name: member.error for member in members if member.error is not None}
    if len(members) == 1:
        return next(iter(errors.values()))
    return EngineError(f"all {len(members)} vLLM engines are lost: " + "; ".join(f"{k}: {v}" for k, v in errors.items()))
