"""Each rank is killed in each phase of a step. The run goes on by itself, and ends as one that was never broken."""

import time
from pathlib import Path

import pytest

from tests.launch.started import apart, begin, completions, finished, kill, left, ranks_of, steps, wait_for

SAMPLE, UPDATE = "gspo.backends.hf.sampler:HFSampler.generate", "gspo.learner.update:Updater._pass"
SHARD, MOMENTS = "gspo.backends.hf.sharded:save_file", "gspo.backends.hf.policy:HFPolicy.save_moments"
SYNC, SUMS = "gspo.backends.hf.sharded:ShardedModel.tensors", "gspo.runs.disk:write_sums"
SENT, IN_SYNC = "gspo.backends.hf.all_to_all_weights:Gathering.exchange", "[['model.layers.0.self_attn.q_proj.weight'], []]"
ENGINE, LAYER = "gspo.backends.vllm.sampler:VLLMSampler.generate", "gspo.backends.vllm.transfer:Link.send"
WHAT = {
    SAMPLE: "sampling", ENGINE: "sampling", UPDATE: "the update", SHARD: "writing shards", MOMENTS: "writing moments",
    LAYER: "broadcasting weights", SYNC: "handing over weights", SENT: "handing over weights", SUMS: "writing checksums",
}  # fmt: skip


def go_through(place, name, faults, *arguments):
    """A run of two ranks with these faults, one a life, that ends well. Returns what checkpoints held at each kill."""
    process = begin(
        place, name, "--scale.ranks=2", "--train.steps=6", f"--scale.restarts={len(faults)}", *arguments,
        faults=[fault[:5] for fault in faults],
    )  # fmt: skip
    listings, settings = [], place / name / "config.toml"
    for what, rank, where, *_ in faults:
        wait_for(lambda: (place / "listing").exists() or process.poll() is not None)
        if process.poll() is not None:
            break
        killed, before, begun = time.monotonic(), steps(place, name), settings.stat().st_mtime_ns
        listings.append((place / "listing").read_text().splitlines())
        (place / "listing").unlink()
        if what == "wait":  # the leader is in this phase, and its follower is killed
            wait_for((place / "reached").exists)
            kill(ranks_of(process)[1 - rank])
            (place / "reached").unlink()
        while process.poll() is None and settings.stat().st_mtime_ns == begun:  # each life writes them
            time.sleep(0.02)
        while process.poll() is None and steps(place, name) < before:
            time.sleep(0.02)
        victim = 1 - rank if what == "wait" else rank
        print(f"rank {victim} killed in {WHAT[where]} after step {before}: there again in {time.monotonic() - killed:.1f} s")
    status, output = finished(process)
    assert status == 0, output
    gpus = sum(what == "gpu" for what, *_ in faults)
    assert output.count(": the run goes on from its last checkpoint") == len(faults), output
    assert output.count("was ended by SIGKILL: the run") == len(faults) - gpus, output
    assert ("the GPU failed (CUDA error" in output) == bool(gpus), output
    return listings


def same(place, name, other):
    """Whether two runs ended bit for bit alike."""
    return completions(place, name) == completions(place, other) and apart(place, name, other) == 0


def nothing_left(place, name):
    """Neither processes nor files, in the folder of temporary files and in memory."""
    scratch = place / f"{name}-tmp"
    wait_for(lambda: not left("TMPDIR", str(scratch)))
    assert not list(scratch.iterdir())
    assert not [path for path in (place / name).rglob(".*") if path.suffix in (".part", ".before", ".old")]


@pytest.mark.parametrize(
    "name, faults",
    [
        pytest.param(
            "leader",
            [("kill", 0, SAMPLE, 4), ("kill", 0, UPDATE, 4), ("kill", 0, SYNC, 4), ("kill", 0, SHARD, 2, "step_000004")],
            marks=pytest.mark.slow,
        ),
        (
            "follower",
            [
                ("wait", 0, SAMPLE, 4),
                ("gpu", 1, UPDATE, 4),
                ("kill", 1, SENT, 4, IN_SYNC),
                ("kill", 1, SHARD, 2, "step_000004"),
            ],
        ),
        pytest.param(
            "late",
            [("kill", 1, MOMENTS, 2), ("kill", 0, MOMENTS, 1, "step_000004"), ("kill", 0, SUMS, 1, "step_000004")],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rank_that_is_killed_costs_the_steps_since_the_last_checkpoint(place, unbroken, name, faults):
    listings = go_through(place, f"killed-{name}", faults)
    assert len(listings) == len(faults)
    held = listings[-1]  # in the middle of the second checkpoint
    at = f"killed-{name}/checkpoints/"
    assert f"{at}step_000002/state.pt" in held and f"{at}step_000004" not in held
    assert any(path.startswith(f"{at}.step_000004.part/model/model-") for path in held)
    assert same(place, f"killed-{name}", unbroken)
    nothing_left(place, f"killed-{name}")


@pytest.mark.slow
def test_a_rank_that_is_killed_takes_its_experts_with_it(place):
    """The other one does not have them. Both come from the checkpoint, with their moments."""
    experts = "--scale.expert_parallel=2"
    status, output = finished(begin(place, "experts", "--scale.ranks=2", "--train.steps=6", experts))
    assert status == 0, output
    go_through(place, "killed-experts", [("kill", 1, MOMENTS, 2), ("kill", 0, UPDATE, 4)], experts)
    assert same(place, "killed-experts", "experts")
    nothing_left(place, "killed-experts")


@pytest.fixture(scope="module")
def through(engine):
    """Makes the options of a run that samples from the engine, with an exchange folder of its own."""

    def options(exchange):
        exchange.mkdir()
        return "--sampler.engine=vllm", f"--sampler.urls=[{engine!r}]", f"--sampler.weight_dir={exchange}"

    return options


@pytest.fixture(scope="module")
def sampled(place, through):
    """The name of a run of 6 steps that samples from the engine."""
    given = through(place / "exchange-whole")
    status, output = finished(begin(place, "engine", "--scale.ranks=2", "--train.steps=6", *given))
    assert status == 0, output
    return "engine"


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_is_killed_while_an_engine_gets_weights_or_samples(place, through, sampled, victim):
    exchange = place / f"exchange-{victim}"
    given = through(exchange)
    sampling = ("kill", 0, ENGINE, 4) if victim == 0 else ("wait", 0, ENGINE, 4)
    name = f"killed-engine-{victim}"
    go_through(place, name, [("kill", victim, SHARD, 7, f"{exchange}/"), sampling], *given)
    assert same(place, name, sampled)
    nothing_left(place, name)
    assert not list(exchange.iterdir())


def test_what_a_run_leaves_whose_restarts_are_used_up(place, through):
    given = through(place / "exchange")
    fault = "kill", 0, SHARD, 7, f"{place}/exchange/"
    process = begin(place, "over", "--scale.ranks=2", "--train.steps=6", "--scale.restarts=0", *given, faults=[fault])
    status, output = finished(process)
    assert status == 1 and "scale.restarts = 0" in output, output
    assert not list(Path(place / "exchange").iterdir())
    done = steps(place, "over")
    assert f"Not finished: {done} of 6 steps." in (place / "over" / "report.html").read_text() and 0 < done < 6
    (place / "listing").unlink()


@pytest.mark.parametrize("where", [pytest.param(SUMS, marks=pytest.mark.slow), "gspo.report.page:report_of"])
def test_what_the_leader_does_alone_may_take_longer_than_ranks_wait(place, unbroken, where):
    name = f"slow-{where.rpartition(':')[2]}"
    fault = "slow", 0, where, 1, 25
    begun = time.monotonic()
    process = begin(place, name, "--scale.ranks=2", "--train.steps=6", "--scale.timeout=10", faults=[fault])
    status, output = finished(process)
    assert status == 0 and "restart" not in output and time.monotonic() - begun > 25, output
    assert same(place, name, unbroken) and (place / name / "report.html").exists()
