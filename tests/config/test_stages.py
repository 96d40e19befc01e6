"""Stages and refreshes as settings: what holds in which step, and what is refused."""

import dataclasses

import pytest

from gspo.compare.spec import Cell
from gspo.compare.terms import describe
from gspo.config.commands import check_command
from gspo.config.files import docs, from_dict, load
from gspo.config.rollout import RolloutConfig
from gspo.config.stages import StageConfig, longest, number_at, rollout_at, source_at

BASE = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}, "reward": {"functions": ["exact"]}}
STAGES = [
    StageConfig(at=5, temperature=0.5),
    StageConfig(at=8, max_completion_length=512, source="hard.jsonl"),
    StageConfig(at=9, temperature=0.7, num_generations=4),
]


def test_what_holds_in_a_step_by_hand():
    rollout = RolloutConfig()
    found = [dataclasses.astuple(rollout_at(rollout, STAGES, step))[1:4] for step in (1, 4, 5, 7, 8, 9, 100)]
    first, second, third = (8, 256, 1.0), (8, 256, 0.5), (8, 512, 0.5)
    assert found == [first, first, second, second, third, (4, 512, 0.7), (4, 512, 0.7)]
    assert [number_at(STAGES, step) for step in (4, 5, 8, 9)] == [0, 1, 2, 3]
    assert [source_at(STAGES, step) for step in (7, 8, 9)] == [0, 8, 8]
    assert longest(rollout, STAGES) == ("stage[1].max_completion_length", 512)
    assert longest(rollout, STAGES[:1]) == ("rollout.max_completion_length", 256)


BAD_STAGES = [
    (r"stage\[0\]\.at = 1: must be at least 2", [{"at": 1, "temperature": 0.5}]),
    (r"stage\[0\]\.at is required", [{"temperature": 0.5}]),
    (r"stage\[1\]\.at = 5: stage\[0\]\.at = 9 is not", [{"at": 9, "temperature": 0.5}, {"at": 5, "temperature": 1}]),
    (r"stage\[0\]\.at = 101: the run ends with train.steps = 100", [{"at": 101, "temperature": 0.5}]),
    (r"stage\[0\]: sets nothing at step 9: set one of max_completion_length, temperature", [{"at": 9}]),
    (r"stage\[0\]\.max_length = 9: .* did you mean max_completion_length\?", [{"at": 9, "max_length": 9}]),
    (r"stage\[0\]\.source = ' ': name a source", [{"at": 9, "source": " "}]),
    (r"stage\[0\]\.source = .*reasoning_gim is unknown", [{"at": 9, "source": "reasoning_gim:gcd"}]),
    (r"stage = \{'at': 9\}: expected \[\[stage\]\] tables", {"at": 9}),
    (r"stage = \[5\]: expected \[\[stage\]\] tables", [5]),
]


def test_bad_stages(refuses):
    assert set(docs(StageConfig)) == {field.name for field in dataclasses.fields(StageConfig)}
    refuses(lambda stages: from_dict(BASE | {"stage": stages}), BAD_STAGES)


def test_stages_are_not_set_on_a_command_line(tmp_path):
    (tmp_path / "run.toml").write_text("[[stage]]\nat = 5\ntemperature = 0.5\n")
    assert load(tmp_path / "run.toml").stage[0].at == 5
    for path in (None, tmp_path / "run.toml"):
        with pytest.raises(ValueError, match=r"stage = \{'at': '9'\}: expected \[\[stage\]\] tables.*given in the file"):
            load(path, {"stage.at": "9"})


BAD_REFRESHES = [
    ("refresh.source = 'new': expected module:function", {"every": 5, "source": "new"}),
    ("drop_above = 0.9 has no effect: refresh.source", {"every": 5, "source": "rows:new", "drop_above": 0.9}),
    ("refresh.drop_above = 0.9 has no effect: refresh.every = 0", {"drop_above": 0.9}),
]
NEW, MORE = {"every": 5, "source": "rows:new"}, [{"at": 9, "source": "more.jsonl"}]
TASKS = {"reward": {"functions": ["task"]}}
GENERATED = TASKS | {"task": {"source": "reasoning_gym:gcd"}}
TOGETHER = [
    (r"stage\[0\].source = 'more.jsonl': has no scorer .* name another in reward.functions", GENERATED | {"stage": MORE}),
    ("refresh.source = 'rows:new' and reward.functions = .*no scorer of their own", GENERATED | {"refresh": NEW}),
    (r"refresh.source = 'rows:new' and stage\[0\].source = 'more.jsonl'", {"refresh": NEW, "stage": MORE}),
    *(
        (r"stage\[0\].source = .*: tasks of verifiers cannot be replaced", TASKS | {"task": {"source": a}, "stage": b})
        for a, b in (("verifiers:quiz", MORE), ("rows.jsonl", [{"at": 9, "source": "verifiers:quiz"}]))
    ),
]


def test_bad_refreshes_and_what_does_not_go_together(refuses):
    refuses(lambda refresh: check_command(from_dict(BASE | {"refresh": refresh}), "train"), BAD_REFRESHES)
    refuses(lambda tables: check_command(from_dict(BASE | tables), "train"), TOGETHER)


def test_settings_of_the_task_that_only_a_stage_reads():
    """As a stage with its own source does: the column of its prompts, and its split."""
    generated = {"source": "reasoning_gym:gcd", "prompt_column": "ask"}
    check_command(from_dict(BASE | {"task": generated, "reward": {"functions": ["math"]}, "stage": MORE}), "train")
    stage = [{"at": 9, "source": "org/data"}]
    check_command(from_dict(BASE | {"task": {"source": "rows.jsonl", "split": "test"}, "stage": stage}), "train")


def test_a_study_says_that_variants_differ_in_stages():
    changes = {"A": {}, "B": {"stage": [{"at": 9, "temperature": 0.5}]}}
    said = describe([Cell("runs", variant, 0, from_dict(BASE | tables)) for variant, tables in changes.items()], {})
    assert "Variants differ in stage." in said and "the same prompts" not in said
