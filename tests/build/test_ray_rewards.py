"""Reward workers on a real cluster of two nodes, of which the second cannot see a folder: `make test-ray` has Ray."""

import json
import os
import signal
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from gspo.build import ray_rewards
from gspo.build.ray_engines import joined_cluster
from gspo.build.ray_rewards import Machine, MachinePool, PlaceOnRay, machines_of_cluster, reward_places
from gspo.config.files import from_dict
from gspo.config.ranks import MACHINES
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.places import Here
from gspo.rewards.sandbox.open import open_sandbox
from gspo.rewards.scorer import Rewards
from tests.build.ray_cluster import another_machine, can_mount, cluster_of
from tests.build.started import begin, finished, processes, steps, wait_for
from tests.data.tools import rollout
from tests.data.wishes import all_end

pytestmark = pytest.mark.timeout(300)
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
PROGRAM = "```python\nprint(int(input()) + 1)\n```"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The variables of a cluster, the process of its second node, the folder that this cannot see, and one with a module."""
    if not can_mount():
        pytest.skip("no rights to hide a folder from a process here")
    folder, hidden = tmp_path_factory.mktemp("rewards"), tmp_path_factory.mktemp("hidden")
    (folder / "letters_of_two.py").write_text(MODULE)
    (hidden / "only_here.py").write_text(MODULE)
    (hidden / "below").mkdir()
    (hidden / "below" / "deep.py").write_text(MODULE)
    with cluster_of(2) as variables, another_machine(variables, 2, hidden) as node, pytest.MonkeyPatch.context() as patch:
        for name in (name for name in variables if name.startswith("RAY_")):
            patch.setenv(name, variables[name])
        with joined_cluster(variables["RAY_ADDRESS"]):
            patch.setenv(MACHINES, machines_of_cluster()[MACHINES])
            yield variables, node, hidden, folder


def scores(functions, completions, place=Here, workers=4, timeout=20.0, **columns):
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
        found, _, counts = scores(names, texts, place, workers=1, timeout=1.0)
    assert found == scores(names, texts, workers=1, timeout=1.0)[0]
    errors = [error for _, error in found]
    assert "took longer than 1 s" in errors[1] and "its process died (exit status 3)" in errors[3]
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
        os.kill(actor, number)
        if number == signal.SIGKILL:
            assert all_end([beside, keeper, worker, child])
        started.extend([actor, beside, keeper, worker, child])
        (tmp_path / "go").touch()

    monkeypatch.setattr(ray_rewards, "ANSWER", 1.0)
    started = []
    thread = threading.Thread(target=kills)
    with spread(2) as place:
        thread.start()
        found, told, counts = scores(["letters_of_two:waits"], "abcd", place, workers=2, timeout=5.0, folder=str(tmp_path))
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
def test_what_another_machine_lacks_is_named(cluster, monkeypatch):
    _, node, hidden, _ = cluster
    monkeypatch.chdir(hidden)
    (hidden / "differs.py").write_text(MODULE)
    Path(f"/proc/{node.pid}/root{hidden}/differs.py").write_text(f"{MODULE}\n# of yesterday")
    differs = r"the files of differs:likes_a on the machine [\d.]+ are not those on this machine: give all machines"
    with spread() as place, pytest.raises(ValueError, match=differs):
        scores(["differs:likes_a"], ["a"], place)
    lacks = r"there is no module 'only_here' in .* \(on the machine [\d.]+\); all machines of a cluster need the folder"
    with spread() as place, pytest.raises(ValueError, match=lacks):
        scores(["only_here:likes_a"], ["a"], place)
    monkeypatch.chdir(hidden / "below")
    lacks = r"cannot start on the machine [\d.]+: FileNotFoundError: .*below"
    with spread() as place, pytest.raises(ValueError, match=lacks):
        scores(["deep:likes_a"], ["a"], place)


def marked(pid):
    """The higher, the sooner the kernel takes a process when memory is short."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def rewards_of(place, name):
    lines = map(json.loads, (place / name / "rollouts.jsonl").read_text().splitlines())
    return [(row["step"], row["completion"], row["reward"], row["error"]) for row in lines]


@with_ray
def test_a_run_goes_on_where_the_leader_or_a_machine_dies(cluster, place):
    """The last: the second node is gone then. Its CPUs are all taken, so that no rank is there; workers need none."""
    variables, node, *_ = cluster
    more = "--reward.workers=3", "--train.steps=6", "--train.save_every=1"
    status, output = finished(begin(place, "rewards-here", *more))
    assert status == 0, output
    busy = busied(2)
    run = begin(place, "rewards-there", "--scale.launcher=ray", "--scale.ranks=1", *more, env=variables)
    wait_for(lambda: steps(place, "rewards-there") >= 1 or run.poll() is not None)
    before = below(node.pid)
    assert len(before) == 3  # a worker, its keeper, and who waits for that
    assert marked(leader("rewards-there")) < max(map(marked, before))
    os.kill(leader("rewards-there"), signal.SIGKILL)
    assert all_end(before)
    wait_for(lambda: (below(node.pid) and steps(place, "rewards-there") >= 3) or run.poll() is not None)
    for pid in descendants(node.pid):
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    status, output = finished(run)
    print(f"the machine killed: the run ended {time.monotonic() - killed:.1f} s later")
    assert status == 0 and output.count("restart 1") == 1 and "restart 2" not in output, output
    assert output.count("was lost (its actor died, or the machine did") == 1, output
    assert rewards_of(place, "rewards-there") == rewards_of(place, "rewards-here")
    del busy
    metrics = map(json.loads, (place / "rewards-there" / "metrics.jsonl").read_text().splitlines())
    assert sum(line["scoring/moved"] for line in metrics) == 1


class Busy:
    """An actor that takes a machine's CPUs."""

    def ready(self):
        return True


def busied(cpus):
    """The actor that takes so many of the second node, as long as it is kept."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own = ray.get_runtime_context().get_node_id()
    other = next(one[0] for one in json.loads(os.environ[MACHINES])["machines"] if one[0] != own)
    there = NodeAffinitySchedulingStrategy(other, soft=False)
    busy = ray.remote(num_cpus=cpus)(Busy).options(scheduling_strategy=there).remote()
    assert ray.get(busy.ready.remote())
    return busy


def descendants(pid):
    """A process and all that it has started."""
    parents, found = processes(), [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def leader(name):
    """The rank of a run."""
    for pid in processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            if f"--log.dir={name}\0" in words and "\0RANK=0\0" in Path(f"/proc/{pid}/environ").read_text():
                return pid
        except OSError:
            continue
    raise AssertionError("there is none")


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
