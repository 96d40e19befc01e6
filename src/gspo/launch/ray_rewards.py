"""Reward workers on the machines of a Ray cluster: the actors that start them there, and the leader's side."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from gspo.config.import_function import describe
from gspo.config.schema import Config
from gspo.config.source_kind import played
from gspo.distributed.environment import MACHINES
from gspo.launch.processes import ENDS, stay
from gspo.launch.ray_engines import gist, joined_cluster
from gspo.rewards.worker_location import MODULE, Here, MachineLost, Place
from gspo.workers.json_codec import Junk
from gspo.workers.messages import HEADER, STALLED, Frames
from gspo.workers.processes import ASIDE, begin, environment, kill
from gspo.workers.supervisor import LONGEST

ANSWER = 30.0
"""Seconds in which an actor answers, beside those that it waits itself."""
BEGIN = 300.0
"""Seconds from the request in which an actor must have begun."""
MANY = 1 << 18
"""Bytes of messages after which an actor hands over those that have come."""
REST = 5.0
"""Seconds for which an actor goes on to read after the first message, and that each of these may take."""
ALIKE = "all machines need the same folders, and the same Python with gspo"
LOCAL = re.compile(r"PATH|TMPDIR|TEMP|TMP|(?:DY)?LD_LIBRARY_PATH|XDG_\w+")
"""Variables of data.processes.PASSED that a worker has from its own machine, as they name what is there."""
MESSAGE, LATE, JUNK, ENDED = "message", "late", "junk", "ended"


class RewardSeat:
    """An actor: it starts a reward worker on its machine, and takes it along when it dies."""

    def __init__(self) -> None:
        stay()
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Frames | None = None

    def begin(self, request: bytes, variables: Mapping[str, str], folder: str) -> str:
        """Starts one, as processes.begin, and ends the one before. Returns why it cannot be started, "" where it could.
        variables: its environment, beside what this machine has of LOCAL.
        """
        self.end()
        variables = {name: value for name, value in os.environ.items() if LOCAL.fullmatch(name)} | dict(variables)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # the worker inherits what this thread blocks
        try:
            self.process, self.connection = begin(MODULE, request, variables, folder, ASIDE)
        except OSError as error:
            return describe(error)
        return ""

    def send(self, data: bytes) -> bool:
        """Whether the worker takes it in time; one that has ended does."""
        assert self.connection is not None
        try:
            self.connection.send(data)
        except TimeoutError:
            return False
        except OSError:  # `receive` says so
            pass
        return True

    def receive(self, seconds: float, most: int) -> list[tuple[str, bytes]]:
        """The worker's next messages, those that have come by then: JSON, of so many bytes each at most. seconds: for the
        first of them. The last entry may be of another kind: LATE, JUNK with what it was, ENDED.
        """
        assert self.connection is not None
        connection, found, size = self.connection, list[tuple[str, bytes]](), 0
        until = math.inf
        news = select.poll()
        news.register(connection, select.POLLIN)
        while not found or (size < MANY and time.monotonic() < until and news.poll(0)):
            try:
                found.append((MESSAGE, connection.receive(REST if found else seconds, most)))
            except TimeoutError:
                return [*found, (LATE, b"")]
            except Junk as error:
                return [*found, (JUNK, str(error).encode())]
            except (EOFError, OSError):
                return [*found, (ENDED, b"")]
            until = min(until, time.monotonic() + REST)
            size += HEADER.size + len(found[-1][1])
        return found

    def wait(self, seconds: float) -> int | None:
        """The worker's exit status, None where it has not ended by then."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def end(self) -> None:
        """Returns when the worker has ended, with what it started."""
        if self.process is not None:
            kill(self.process)


class Machine(NamedTuple):
    """One of a cluster. node: what Ray calls it."""

    node: str
    address: str
    cpus: float


class MachinePool:
    """Those of a cluster, and how many reward workers each has. Several threads may use it."""

    def __init__(self, machines: Sequence[Machine], own: str) -> None:
        """own: the leader's node, where workers need no actor."""
        here = next((machine for machine in machines if machine.node == own), Machine(own, "", 0.0))
        self.own = here
        self.workers = {here: 0} | {machine: 0 for machine in machines if machine != here and machine.cpus > 0}
        self.left: set[Machine] = set()
        self.lock = threading.Lock()

    def take(self) -> Machine:
        """The machine for one more worker: that with most CPUs for each. The leader's own, where no other is left."""
        with self.lock:
            free = [machine for machine in self.workers if machine not in self.left and machine.cpus > 0]
            best = min(free, key=lambda machine: (self.workers[machine] + 1) / machine.cpus, default=self.own)
            self.workers[best] += 1
            return best

    def give_back(self, machine: Machine, lost: bool = False) -> None:
        """A worker is gone. lost: so is its machine, which gets no other."""
        with self.lock:
            self.workers[machine] -= 1
            if lost:
                self.left.add(machine)


class PlaceOnRay:
    """Where a reward worker runs: on the leader's machine without an actor, elsewhere in one. Where the actor or its machine
    is lost, the next process starts on another machine, at last on the leader's, which cannot be lost.
    """

    def __init__(self, machines: MachinePool) -> None:
        self.machines, self.machine = machines, machines.take()
        self.here = Here()
        self.actor: Any = None
        self.moves: list[str] = []

    @property
    def name(self) -> str:
        """See Place."""
        return "" if self.machine == self.machines.own else self.machine.address

    @property
    def given_up(self) -> bool:
        """Whether the machine was lost meanwhile."""
        return self.machine in self.machines.left

    def spawn(self, request: Any, variables: Sequence[str]) -> tuple[Any, Any]:
        """See Place."""
        if not self.name:
            return self.here.spawn(request, variables)
        if self.actor is None:
            self.actor = seat_on(self.machine)
        begun = self.actor.begin.remote(pickle.dumps(request), sent(variables), os.getcwd())
        worker = WorkerOnRay(self, self.actor, begun)
        return worker, worker

    def asked(self, actor: Any, news: Any, seconds: float) -> Any:
        """What its actor answers within this time and ANSWER. Raises MachineLost."""
        import ray

        try:
            return ray.get(news, timeout=seconds + ANSWER)
        except ray.exceptions.GetTimeoutError:
            why = "no answer"
        except ray.exceptions.RayError as error:  # of our own actor it is no error of the worker's
            why = f"its actor died, or the machine did: {gist(error)}"
            if isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False):
                why = f"its actor failed: {gist(error)}: {ALIKE}"
        raise self.lost(actor, why)

    def lost(self, actor: Any, why: str) -> MachineLost:
        """Leaves the machine of this actor, and returns the error that says so."""
        if actor is self.actor:  # else it was left before
            self.leave(why)
        return MachineLost(why)

    def end(self) -> None:
        """See Place."""
        self.here.end()
        if self.actor is not None:
            with suppress(MachineLost):
                self.asked(self.actor, self.actor.end.remote(), 2 * LONGEST)

    def leave(self, why: str) -> bool:
        """See Place."""
        if not self.name:
            return False
        before = self.name
        self.machines.give_back(self.machine, lost=True)
        self._drop()
        self.machine = self.machines.take()
        where = f"on {self.name}" if self.name else "beside the leader"
        self.moves.append(
            f"a reward worker on {before} was lost ({why}): another takes its place {where}, and {before} gets none until "
            "the ranks start again"
        )
        return True

    def news(self) -> list[str]:
        """See Place."""
        told, self.moves = self.moves, []
        return told

    def close(self) -> None:
        """See Place. With its actor, not through it: that may hang."""
        self.here.end()
        self._drop()
        self.machines.give_back(self.machine)

    def _drop(self) -> None:
        actor, self.actor = self.actor, None
        if actor is None:
            return
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(actor)


class WorkerOnRay:
    """A worker's process in an actor, and the messages to and from it."""

    def __init__(self, place: PlaceOnRay, actor: Any, begun: Any) -> None:
        self.place, self.actor, self.begun = place, actor, begun
        self.deadline = time.monotonic() + BEGIN
        self.waiting: deque[tuple[str, bytes]] = deque()

    def send(self, data: bytes) -> None:
        """See Messages."""
        self._begin()
        self.waiting.clear()
        if not self._asked(self.actor.send.remote(data), STALLED):
            raise TimeoutError

    def receive(self, seconds: float, most: int) -> bytes:
        """See Messages."""
        self._begin()
        if not self.waiting:
            self.waiting.extend(self._asked(self.actor.receive.remote(seconds, most), seconds))
        kind, data = self.waiting.popleft()
        if kind == MESSAGE:
            return data
        if kind == LATE:
            raise TimeoutError
        raise Junk(data.decode()) if kind == JUNK else EOFError

    def wait(self, timeout: float) -> int:
        """See WorkerProcess."""
        status = self._asked(self.actor.wait.remote(timeout), timeout)
        if status is None:
            raise subprocess.TimeoutExpired(MODULE, timeout)
        return int(status)

    def _begin(self) -> None:
        if self.begun is None:
            return
        if self.place.given_up:
            raise self.place.lost(self.actor, "another worker left it")
        problem, self.begun = self._asked(self.begun, max(0.0, self.deadline - time.monotonic())), None
        if problem:
            raise self.place.lost(self.actor, f"it cannot start there: {problem}: {ALIKE}")

    def _asked(self, news: Any, seconds: float) -> Any:
        return self.place.asked(self.actor, news, seconds)


def sent(variables: Sequence[str]) -> dict[str, str]:
    """What a worker elsewhere has of the leader's environment. variables: names of the user's."""
    given = environment(variables) | {"CUDA_VISIBLE_DEVICES": ""}  # those there are others'
    return {name: value for name, value in given.items() if name in variables or not LOCAL.fullmatch(name)}


def seat_on(machine: Machine) -> Any:
    """An actor there, which needs no free CPU: a run that fits must go on fitting."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return remote_seat().options(scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False)).remote()


@cache
def remote_seat() -> Any:
    """The actor's class as Ray has it, which it sends to the cluster once."""
    import ray

    return ray.remote(num_cpus=0, max_concurrency=4)(RewardSeat)  # it is asked to end its worker while it hears it


def machines_of_run(group: Any) -> dict[str, str]:
    """The variable by which the leader finds the machines for its reward workers: those on which a placement group has a
    run's ranks and engines. None where that is one.
    """
    import ray
    from ray.util.placement_group import placement_group_table

    own = set(placement_group_table(group)["bundles_to_node_id"].values())
    machines = [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["NodeID"] in own and node["Alive"]
    ]
    cluster = ray.get_runtime_context().gcs_address
    return {MACHINES: json.dumps({"cluster": cluster, "machines": machines})} if len(machines) > 1 else {}


@contextmanager
def reward_places(config: Config) -> Iterator[Callable[[], Place]]:
    """Gives each reward worker of a run its place: this machine, or one on which Ray has placed a rank or an engine."""
    spread = config.scale.launcher == "ray" and config.reward.workers > 1 and not played(config.task)
    if not spread or MACHINES not in os.environ:
        yield Here
        return
    told = json.loads(os.environ[MACHINES])
    with joined_cluster(told["cluster"]) as own:
        machines = MachinePool([Machine(*one) for one in told["machines"]], own)
        yield lambda: PlaceOnRay(machines)
