"""Runs of two ranks over stages and a refresh: they are those of one process."""

import json

import pytest

from tests.launch.started import FORKED, apart, begin, completions, finished
from tests.training.whole import lines

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
    more = f"--train.steps={STEPS}", "--reward.correct_threshold=0.1"
    status, output = finished(begin(place, name, *more, *arguments, settings="staged.toml", faults=FORKED))
    assert status == 0, output
    return lines(place / name / "metrics.jsonl")


def test_two_ranks_make_the_run_of_one_over_stages_and_a_refresh(staged):
    one, two = played(staged, "staged-one"), played(staged, "staged-two", "--scale.ranks=2")
    limits = [(line["stage"], line["stage/max_completion_length"], line["stage/temperature"]) for line in two]
    assert limits == [(0, 8, 1.0)] * 2 + [(1, 12, 0.6)] * 2 + [(2, 12, 0.6)] * 2
    rollouts = lines(staged / "staged-two" / "rollouts.jsonl")
    for line in two:
        here = [rollout for rollout in rollouts if rollout["step"] == line["step"]]
        assert len(here) == 8 * (4 if line["step"] < 5 else 6)
        assert {rollout["prompt_id"].partition("-")[0] for rollout in here} == {"train" if line["step"] < 5 else "stage5"}
    assert two[2]["queries/dropped"] > 0 and sum(line["queries/returned"] for line in two) > 0
    names = [name for name in one[0] if name.startswith(("stage", "queries/"))]
    assert len(names) > 8 and [[line[name] for name in names] for line in one] == [
        [line[name] for name in names] for line in two
    ]
    assert completions(staged, "staged-two") == completions(staged, "staged-one")
    assert apart(staged, "staged-two", "staged-one") < 1e-6
