"""Reward workers on a real cluster of two nodes, of which the second cannot see a folder: `make test-ray` has Ray."""

import importlib
import json
import os
import pickle
import re
import signal
import socket
import threading
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from gspo.config.files import from_dict
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.distributed.environment import MACHINES
from gspo.launch import ray_rewards
from gspo.launch.ray_engines import joined_cluster
from gspo.launch.ray_rewards import (
    ENDED,
    LATE,
    MANY,
    MESSAGE,
    Machine,
    MachinePool,
    PlaceOnRay,
    RewardSeat,
    WorkerOnRay,
    machines_of_run,
    reward_places,
    sent,
)
from gspo.rewards.scorer import Rewards
from gspo.rewards.worker_location import Here, MachineLost
from gspo.sandbox.open import open_sandbox
from gspo.workers.json_codec import unpacked
from gspo.workers.messages import HEADER, Frames
from tests.data.tools import rollout
from tests.data.wishes import all_end
from tests.launch.ray_cluster import another_machine, can_mount, cluster_of
from tests.launch.started import begin, finished, processes, steps, variables_of, wait_for
from tests.patience import PATIENCE

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here: make test-ray")
MODULE = """
import os, subprocess, time
import gspo

def likes_a(prompts, completions, **columns):
    return [c.count("a") / max(1, len(c)) for c in completions]

@gspo.by_group
def rank(prompts, completions, **columns):
    return [float(sorted(completions).index(c)) for c in completions]

async def size(prompts, completions, **columns):
    return [len(c) + sum(n.startswith("RAY_") for n in os.environ) for c in completions]

def crashes(prompts, completions, **columns):
    if "hang" in completions:
        time.sleep(1000)
    if "exit" in completions:
        os._exit(3)
    return [1.0] * len(completions)

def waits(prompts, completions, folder, **columns):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(f"{folder[0]}/started", "a") as file:
        file.write(f"{os.getppid()} {os.getpid()} {child.pid}\\n")
    while not os.path.exists(f"{folder[0]}/go"):
        time.sleep(0.01)
    return [float(len(completions))] * len(completions)
"""
SEAT = """
from gspo.launch.ray_rewards import RewardSeat

class Seat(RewardSeat):
    pass
"""
PROGRAM = "```python\nprint(int(input()) + 1)\n```"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The variables of a cluster, the process of its second node, the folder that this cannot see, and one with a module."""
    if not can_mount():
        pytest.skip("no rights to hide a folder from a process here")
    folder, hidden = tmp_path_factory.mktemp("rewards"), tmp_path_factory.mktemp("hidden")
    (folder / "letters_of_two.py").write_text(MODULE)
    (hidden / "only_here.py").write_text(f"{MODULE}\n{SEAT}")
    (hidden / "below").mkdir()
    (hidden / "below" / "deep.py").write_text(MODULE)
    with cluster_of(2) as variables, another_machine(variables, 2, hidden) as node, pytest.MonkeyPatch.context() as patch:
        for name in (name for name in variables if name.startswith("RAY_")):
            patch.setenv(name, variables[name])
        with joined_cluster(variables["RAY_ADDRESS"]):
            patch.setenv(MACHINES, run_on(2)[MACHINES])
            assert run_on(1) == {}  # a run that is on one machine of several
            yield variables, node, hidden, folder


def run_on(machines):
    """The leader's variable for a run with ranks on so many of them."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}] * machines, strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE)
    found = machines_of_run(group)
    remove_placement_group(group)
    return found


def scores(functions, completions, place=Here, workers=4, timeout=PATIENCE, **columns):
    """What functions in this folder say of completions, two to a prompt; and what was said meanwhile, and counted."""
    config = RewardConfig(functions=functions, workers=workers, timeout=timeout)
    rows = [rollout(text, i // 2, **columns) for i, text in enumerate(completions)]
    with warnings.catch_warnings(record=True) as said, Rewards(config, TaskConfig(), place=place) as rewards:
        warnings.simplefilter("always")
        rewards.wait()
        scored = rewards.score(rows)
        counts = rewards.counts()
    return [(one.reward_parts, one.error) for one in scored], [str(warning.message) for warning in said], counts


def spread(workers=4):
    return reward_places(from_dict({"scale": {"launcher": "ray"}, "reward": {"workers": workers}}))


def below(pid):
    """The reward workers and their keepers among the processes that this one has started."""
    parents, found = processes(), []
    for child in parents:
        at, line = child, []
        while at in parents and at != pid:
            at = parents[at]
            line.append(at)
        try:
            if pid in line and "gspo.rewards.worker" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(child)
        except OSError:
            continue
    return found


@with_ray
def test_they_score_as_on_one_machine(cluster, monkeypatch):
    """With calls for all, for groups, async ones, and programs in the sandbox of each machine."""
    _, node, _, folder = cluster
    monkeypatch.chdir(folder)
    names = [f"letters_of_two:{name}" for name in ("likes_a", "rank", "size")] + ["code"]
    texts = ["a", "ab", PROGRAM, "", "b" * 9, "ba", PROGRAM.replace("1", "2"), "aa", "c", "abab"]
    tests = [{"input": "1", "output": "2"}, {"input": "4", "output": "5"}]
    expected, said, counts = scores(names, texts, tests=tests)
    assert counts == {} and expected[2][0]["code"] == 1 and not any(error for _, error in expected)
    with spread() as place:
        assert not below(node.pid)
        found, told, counts = scores(names, texts, place, tests=tests)
    assert found == expected and counts == {"scoring/moved": 0}
    address = json.loads(os.environ[MACHINES])["machines"][0][1]
    with open_sandbox("auto") as sandbox:
        assert f"programs run in the sandbox {sandbox.driver!r}" in said
        assert f"programs run in the sandbox {sandbox.driver!r} (on this machine, {address})" in told
    assert f"reward workers: 2 on this machine, 2 on {address}" in told
    assert all_end(below(node.pid))


@with_ray
def test_calls_that_hang_or_crash_cost_what_they_cost_on_one_machine(cluster, monkeypatch):
    monkeypatch.chdir(cluster[3])
    names, texts = ["letters_of_two:crashes"], ["a", "hang", "b", "exit", "c", "d"]
    with spread(1) as place:
        assert place is Here  # one worker is beside the leader
    with spread() as place:
        place()  # the leader's machine has two, so the next is elsewhere
        place()
        found, _, counts = scores(names, texts, place, workers=1, timeout=5.0)
    assert found == scores(names, texts, workers=1, timeout=5.0)[0]
    errors = [error for _, error in found]
    assert "took longer than 5 s" in errors[1] and "its process died (exit status 3)" in errors[3]
    assert errors.count(None) == 4 and counts == {"scoring/moved": 0}


@with_ray
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_an_actor_that_is_lost_costs_no_completion(cluster, monkeypatch, tmp_path, number):
    """The same call is made elsewhere, and what the actor had started ends with it."""
    _, node, _, folder = cluster
    monkeypatch.chdir(folder)

    def kills():
        wait_for(lambda: (tmp_path / "started").exists() and len((tmp_path / "started").read_text().splitlines()) == 2)
        lines = [[*map(int, line.split())] for line in (tmp_path / "started").read_text().splitlines()]
        (keeper, worker, child) = next(line for line in lines if line[0] in below(node.pid))
        parents = processes()
        beside = parents[keeper]  # waits for the keeper
        actor = parents[beside]
        assert marked(actor) == marked(keeper) < marked(worker)
        if number == signal.SIGSTOP:  # its answer is waited for no longer, from here on
            monkeypatch.setattr(ray_rewards, "ANSWER", 1.0)
        os.kill(actor, number)
        if number == signal.SIGKILL:
            assert all_end([beside, keeper, worker, child])
        started.extend([actor, beside, keeper, worker, child])
        (tmp_path / "go").touch()

    started, limit = [], 10.0 if number == signal.SIGSTOP else PATIENCE
    thread = threading.Thread(target=kills)
    with spread(2) as place:
        thread.start()
        found, told, counts = scores(["letters_of_two:waits"], "abcd", place, workers=2, timeout=limit, folder=str(tmp_path))
    thread.join()
    assert len(started) == 5 and counts == {"scoring/moved": 1}
    if number == signal.SIGSTOP:  # when the machine answers again
        os.kill(started[0], signal.SIGCONT)
    assert all_end(started)
    assert found == [({"waits": 2.0}, None)] * 4  # one call for both completions of a prompt, and none for one alone
    moves = [text for text in told if "was lost" in text]
    assert len(moves) == 1 and "another takes its place beside the leader" in moves[0]
    assert ("no answer" if number == signal.SIGSTOP else "its actor died") in moves[0]


@with_ray
def test_a_machine_on_which_a_module_is_another_file_is_named(cluster, monkeypatch):
    _, node, hidden, _ = cluster
    monkeypatch.chdir(hidden)
    (hidden / "differs.py").write_text(MODULE)
    Path(f"/proc/{node.pid}/root{hidden}/differs.py").write_text(f"{MODULE}\n# of yesterday")
    differs = r"the files of differs:likes_a on the machine [\d.]+ are not those on this machine: give all machines"
    with spread() as place, pytest.raises(ValueError, match=differs):
        scores(["differs:likes_a"], ["a"], place)


@with_ray
def test_actors_that_hang_do_not_hold_up_the_end(cluster, monkeypatch):
    """Each would be waited for as long as it may take to answer: longer than this test may take."""
    monkeypatch.setattr(ray_rewards, "ANSWER", 1e6)
    monkeypatch.chdir(cluster[3])
    with (
        spread() as place,
        Rewards(RewardConfig(functions=["letters_of_two:likes_a"], workers=4), TaskConfig(), place=place) as rewards,
    ):
        rewards.wait()
        started, parents = below(cluster[1].pid), processes()
        actors = {parents[pid] for pid in started} - {*started}
        assert len(started) == 6 and len(actors) == 2
        for actor in actors:
            os.kill(actor, signal.SIGSTOP)
    for actor in actors:  # one that Ray has killed meanwhile is gone
        with suppress(ProcessLookupError):
            os.kill(actor, signal.SIGCONT)
    assert all_end([*started, *actors])


@with_ray
def test_a_machine_that_lacks_something_is_named_and_left(cluster, monkeypatch):
    """Its folder, a module of a reward, or gspo itself: the actor's class cannot be imported then."""
    *_, hidden, folder = cluster
    here = [({"likes_a": 1.0}, None)]
    monkeypatch.chdir(hidden)
    with spread() as place:
        assert found_and_left(*scores(["only_here:likes_a"], ["a"], place)) == here
    monkeypatch.chdir(hidden / "below")
    with spread() as place:
        assert found_and_left(*scores(["deep:likes_a"], ["a"], place), "FileNotFoundError: .*below") == here
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(hidden)
    monkeypatch.setattr(ray_rewards, "RewardSeat", importlib.import_module("only_here").Seat)
    ray_rewards.remote_seat.cache_clear()
    try:
        with spread() as place:
            lacks = "its actor failed: ModuleNotFoundError: No module named 'only_here'"
            assert found_and_left(*scores(["letters_of_two:likes_a"], ["a"], place), lacks) == here
    finally:
        ray_rewards.remote_seat.cache_clear()


def found_and_left(found, told, counts, why="there is no module 'only_here'"):
    """The scores, where two workers left the second machine: the first for this reason."""
    moves = [text for text in told if "was lost" in text]
    assert len(moves) == counts["scoring/moved"] == 2, told
    assert re.search(rf"a reward worker on [\d.]+ was lost \(.*{why}", moves[0])
    assert "another takes its place beside the leader" in moves[0] and "(another worker left it)" in moves[1]
    assert not any("reward workers: " in text for text in told)  # all are beside the leader
    return found


def marked(pid):
    """The higher, the sooner the kernel takes a process when memory is short."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def rewards_of(place, name):
    lines = map(json.loads, (place / name / "rollouts.jsonl").read_text().splitlines())
    return [(row["step"], row["completion"], row["reward"], row["error"]) for row in lines]


@pytest.mark.slow
@with_ray
def test_a_run_goes_on_where_the_leader_dies(cluster, place):
    """One CPU of each node is taken, so that each has one of the two ranks."""
    more = "--reward.workers=3", "--scale.ranks=2", "--train.steps=6", "--train.save_every=1"
    status, output = finished(begin(place, "rewards-here", *more))
    assert status == 0, output
    busy = [busied(machine[0]) for machine in json.loads(os.environ[MACHINES])["machines"]]
    run = begin(place, "rewards-there", "--scale.launcher=ray", *more, env=cluster[0])
    wait_for(lambda: steps(place, "rewards-there") >= 1 or run.poll() is not None)
    before = aside(place)
    assert len(before) == 3  # a worker, its keeper, and who waits for that
    assert marked(rank("rewards-there", 0)) < max(map(marked, before))
    assert [MACHINES in variables_of(rank("rewards-there", number)) for number in (0, 1)] == [True, False]
    os.kill(rank("rewards-there", 0), signal.SIGKILL)
    assert all_end(before)
    wait_for(lambda: (aside(place) and steps(place, "rewards-there") >= 3) or run.poll() is not None)
    after = aside(place)
    status, output = finished(run)
    assert status == 0 and output.count("restart 1") == 1 and "restart 2" not in output, output
    assert output.count("reward workers: 2 on this machine, 1 on ") == 2, output
    assert len(after) == 3 and all_end(after)
    assert rewards_of(place, "rewards-there") == rewards_of(place, "rewards-here")
    del busy
    metrics = map(json.loads, (place / "rewards-there" / "metrics.jsonl").read_text().splitlines())
    assert [line["scoring/moved"] for line in metrics] == [0] * 6


class Busy:
    """An actor that takes a machine's CPUs."""

    def ready(self):
        return True


def busied(node):
    """The actor that takes a CPU of a node, as long as it is kept."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    busy = ray.remote(num_cpus=1)(Busy).options(scheduling_strategy=there).remote()
    assert ray.get(busy.ready.remote())
    return busy


def aside(folder):
    """The reward workers that actors have started in a folder, and their keepers."""
    found = []
    for pid in processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "gspo.rewards.worker" in words and "aside" in words and Path(f"/proc/{pid}/cwd").samefile(folder):
                found.append(pid)
        except OSError:
            continue
    return found


def rank(name, number):
    """The process of a run's rank."""
    for pid in processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            if f"--log.dir={name}\0" in words and variables_of(pid).get("RANK") == str(number):
                return pid
        except OSError:
            continue
    raise AssertionError("there is none")


def seated():
    """A seat, and the end of its connection at which the worker would be."""
    seat = RewardSeat()
    ours, theirs = socket.socketpair()
    seat.connection = Frames(ours)
    return seat, theirs


def test_a_flood_of_empty_messages_ends():
    """The worker writes faster than they can be read, and never stops."""
    seat, worker = seated()

    def flood():
        with suppress(OSError):
            while True:
                worker.sendall(bytes(1 << 16))

    thread = threading.Thread(target=flood)
    thread.start()
    found = seat.receive(PATIENCE, 100)
    seat.connection.socket.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert set(found) == {(MESSAGE, b"")} and len(found) <= MANY // 8


def test_a_later_message_that_stalls_does_not_take_the_limit_of_a_call(monkeypatch):
    monkeypatch.setattr(ray_rewards, "REST", 0.1)
    seat, worker = seated()
    worker.sendall(HEADER.pack(3) + b"[1]" + HEADER.pack(3) + b"[2")
    assert seat.receive(1e6, 100) == [(MESSAGE, b"[1]"), (LATE, b"")]


def test_a_worker_in_a_seat_ends_while_it_is_heard(tmp_path):
    request = pickle.dumps((["tests.rewards.graders:length"], RewardConfig(), TaskConfig(), CodeConfig()))
    seat = RewardSeat()
    seat.end()  # nothing yet
    assert seat.begin(request, sent([]), str(tmp_path / "none")).startswith("FileNotFoundError: ")
    assert seat.begin(request, sent([]), os.getcwd()) == ""
    ((kind, data),) = seat.receive(PATIENCE, 1000)
    assert kind == MESSAGE and unpacked(data)[:2] == ["ready", ""]
    assert seat.wait(0) is None
    heard = []
    thread = threading.Thread(target=lambda: heard.extend(seat.receive(PATIENCE, 1000)))
    thread.start()
    seat.end()
    thread.join()
    assert heard == [(ENDED, b"")] and seat.wait(PATIENCE) is not None


def test_what_names_a_machines_own_folders_is_not_sent(tmp_path, monkeypatch):
    for name in ("TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "GRADER_KEY", "HOME"):
        monkeypatch.setenv(name, "the leader's")
    given = sent(["GRADER_KEY", "XDG_CACHE_HOME"])
    assert not {"TMPDIR", "LD_LIBRARY_PATH", "PATH"} & given.keys() and given["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("TMPDIR", "its own")
    monkeypatch.setenv("XDG_CACHE_HOME", "its own")
    seat = RewardSeat()
    assert seat.begin(b"", given, str(tmp_path)) == ""
    wait_for(lambda: "PATH" in variables_of(seat.process.pid))  # in the moment of its start it shows none
    found = variables_of(seat.process.pid)
    seat.end()
    assert found["TMPDIR"] == "its own" and found["PATH"] == os.environ["PATH"]
    assert {found[name] for name in ("XDG_CACHE_HOME", "GRADER_KEY", "HOME")} == {"the leader's"}


def test_nobody_waits_for_a_machine_that_another_worker_left():
    machines = MachinePool([Machine("a", "1.1.1.1", 1.0), Machine("b", "1.1.1.2", 8.0)], "a")
    first, second = PlaceOnRay(machines), PlaceOnRay(machines)
    assert first.name == second.name == "1.1.1.2"
    assert first.leave("it burns") and first.name == ""
    with pytest.raises(MachineLost):
        WorkerOnRay(second, second.actor, object()).receive(100.0, 1000)  # no actor is asked
    assert second.name == "" and "(another worker left it)" in second.news()[0]


def test_workers_are_spread_by_cpus():
    machines = [Machine("a", "1.1.1.1", 4.0), Machine("b", "1.1.1.2", 8.0), Machine("c", "1.1.1.3", 0.0)]
    many = MachinePool(machines, "a")
    assert [many.take().node for _ in range(6)] == ["b", "a", "b", "b", "a", "b"]
    lost = machines[1]
    many.give_back(lost, lost=True)
    assert [many.take().node for _ in range(2)] == ["a", "a"]
    assert MachinePool(machines, "c").take().node == "b"  # the leader's has none
    assert PlaceOnRay(MachinePool([machines[2]], "c")).name == ""  # where nothing else is left it is taken all the same


@pytest.mark.parametrize(
    "sections",
    [
        {"reward": {"workers": 4}},
        {"scale": {"launcher": "ray"}},
        {"scale": {"launcher": "ray"}, "reward": {"workers": 4}, "task": {"environment": "game:Room"}},
    ],
)
def test_runs_whose_rewards_are_scored_beside_the_leader(sections, monkeypatch):
    monkeypatch.setenv(MACHINES, "{}")
    with reward_places(from_dict(sections)) as place:
        assert place is Here
    monkeypatch.delenv(MACHINES)  # a cluster of one machine
    with reward_places(from_dict({"scale": {"launcher": "ray"}, "reward": {"workers": 4}})) as place:
        assert place is Here
