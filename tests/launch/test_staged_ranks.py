"""Runs of two ranks over stages and a refresh: they are those of one process."""

import json
import os
import subprocess
import sys

import pytest

from gspo.backends.vllm.process import free_ports
from tests.launch.started import FORKED, ROOT, begin, completions, finished, weights

STAGES = """
[refresh]
every = 2
drop_above = 0.25
return_after = 2
[[stage]]
at = 3
max_completion_length = 12
temperature = 0.6
[[stage]]
at = 5
num_generations = 6
source = "hard.jsonl"
"""
STEPS = 6


@pytest.fixture(scope="module")
def staged(place):
    """The settings of such a run, beside those of others."""
    rows = [{"prompt": f"{i}+{i}+{j}=", "answer": ""} for i in range(6) for j in range(4)]
    (place / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "staged.toml").write_text((place / "run.toml").read_text() + STAGES)
    return place


def played(place, name, *arguments):
    """A run of that name. Returns its metrics."""
    more = f"--train.steps={STEPS}", "--reward.correct_at=0.1"
    status, output = finished(begin(place, name, *more, *arguments, settings="staged.toml", faults=FORKED))
    assert status == 0, output
    return [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]


def check(place, name, steps):
    """Each step is that of its stage, whatever was sampled ahead."""
    asked = [(line["stage"], line["stage/max_completion_length"], line["stage/temperature"]) for line in steps]
    assert asked == [(0, 8, 1.0)] * 2 + [(1, 12, 0.6)] * 2 + [(2, 12, 0.6)] * 2
    rollouts = [json.loads(line) for line in (place / name / "rollouts.jsonl").read_text().splitlines()]
    for line in steps:
        here = [rollout for rollout in rollouts if rollout["step"] == line["step"]]
        assert len(here) == 8 * (4 if line["step"] < 5 else 6)
        assert {rollout["prompt_id"].partition("-")[0] for rollout in here} == {"train" if line["step"] < 5 else "stage5"}
    assert steps[2]["queries/dropped"] > 0 and sum(line["queries/returned"] for line in steps) > 0


def same_queries(one, other):
    """Whether two runs had the same stages and dropped the same queries."""
    names = [name for name in one[0] if name.startswith(("stage", "queries/"))]
    assert len(names) > 8
    return [[line[name] for name in names] for line in one] == [[line[name] for name in names] for line in other]


def apart(place, name, other):
    """How far the weights of two runs are apart, whose completions are the same."""
    assert completions(place, name) == completions(place, other)
    ours, theirs = weights(place, name), weights(place, other)
    return max(float((ours[key] - theirs[key]).abs().max()) for key in theirs)


def test_two_ranks_make_the_run_of_one_over_stages_and_a_refresh(staged):
    one, two = played(staged, "staged-one"), played(staged, "staged-two", "--scale.ranks=2")
    check(staged, "staged-two", two)
    gap = apart(staged, "staged-two", "staged-one")
    print(f"weights differ by {gap:.2g}")
    assert gap < 1e-6 and same_queries(one, two)


@pytest.fixture(scope="module")
def engine(place):
    """The address of a server that samples from the models that it is given."""
    (port,) = free_ports(1)
    script = ROOT / "tests" / "backends" / "vllm" / "stand_in_model.py"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, str(script), f"--port={port}"], env=os.environ | {"PYTHONPATH": path})
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_what_an_asynchronous_sampler_begins_ahead_is_learned_at_its_own_stage(staged, engine):
    """With a learning rate that changes no weight, which update comes between two tokens makes no difference."""
    (staged / "staged-exchange").mkdir()
    given = "--rollout.max_staleness=2", "--optimizer.lr=1e-12", "--algorithm.old_logprobs=sampler"
    given += "--sampler.engine=vllm", f"--sampler.urls=[{engine!r}]", f"--sampler.exchange={staged / 'staged-exchange'}"
    one = played(staged, "ahead-one", *given)
    two = played(staged, "ahead-two", "--scale.ranks=2", *given)
    for name, steps in (("ahead-one", one), ("ahead-two", two)):
        check(staged, name, steps)
        assert max(line["staleness"] for line in steps) > 0
        assert all(abs(line["ratio/mean"] - 1) < 1e-4 and line["ratio/std"] < 1e-4 for line in steps)
    assert apart(staged, "ahead-two", "ahead-one") < 1e-6 and same_queries(one, two)
