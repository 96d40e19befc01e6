"""A step: on policy at its first update, whole where its sampler dies, counted where its rewards fail."""

from functools import cache

import pytest

import gspo
from gspo.ports import SamplerError
from gspo.runs.log import RunLog
from tests.tiny_run import ROWS, model, settings
from tests.training.whole import REQUIRED, Failing, lines, numbers, train


def test_first_update_is_on_policy(tmp_path):
    """One update a batch and the sampler's likelihoods: s_i is 1 up to rounding, nothing clips."""
    result = train(tmp_path / "run", algorithm={"mini_batches": 1}, train={"steps": 3})
    for m in numbers(result.folder)[1:]:
        assert m["clip_ratio/region_mean"] == 0
        assert m["ratio/noise_floor"] == pytest.approx(m["ratio/std"], abs=1e-7)
        assert m["ratio/std"] < 1e-6
        assert m["mismatch/prob_max"] < 1e-5


def test_a_run_whose_rewards_all_fail_goes_on_and_counts(tmp_path):
    def broken(prompts, completions, **columns):
        raise ZeroDivisionError("no reward today")

    tiny = model()
    result = gspo.train(
        tiny.model, ROWS, broken, tokenizer=tiny.tokenizer, config=settings(tmp_path / "run", train={"steps": 1})
    )
    m = lines(result.folder / "metrics.jsonl")[1]
    assert (m["rollouts/failed"], m["groups/dropped"], m["updates"]) == (32, 8, 0)
    assert set(REQUIRED) <= set(m)
    assert "no reward today" in lines(result.folder / "rollouts.jsonl")[0]["error"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A whole run by its delay, made once."""
    return cache(lambda delay: train(tmp_path_factory.mktemp("whole") / "run", **brief(delay)))


def brief(delay):
    return {"rollout": {"delay": delay}, "eval": {"every": 2, "num_prompts": 4}, "train": {"steps": 5, "save_every": 100}}


@pytest.mark.parametrize(("name", "k"), [("generate", 4), ("generate", 1), ("load", 3), ("generate", 5)])
@pytest.mark.parametrize("delay", [0, 2])
def test_a_sampler_that_dies_costs_nothing(tmp_path, undisturbed, name, k, delay, monkeypatch):
    """While it samples (4: a step, 5: an evaluation in between), and while it takes new weights."""
    options, whole = brief(delay), undisturbed(delay)
    with monkeypatch.context() as patch:
        Failing(patch, name, k)
        with pytest.raises(RuntimeError, match="the engine is dead"):
            train(tmp_path / "part", **options)
    again = train(tmp_path / "part", resume=True, **options)
    drop = (lambda line: {n: v for n, v in line.items() if not n.startswith("eval/")}) if name == "generate" else dict
    assert [drop(line) for line in numbers(again.folder)] == [drop(line) for line in numbers(whole.folder)]
    a, b = (lines(run.folder / "rollouts.jsonl") for run in (again, whole))
    assert [(r["step"], r["prompt_id"], r["token_ids"]) for r in a] == [
        (r["step"], r["prompt_id"], r["token_ids"]) for r in b
    ]


def test_a_log_that_fails_hides_no_lost_sampler(tmp_path, monkeypatch):
    """The updates are done: they are saved, whatever else goes wrong."""

    def full(log, rows):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        Failing(patch, "load", 1)
        patch.setattr(RunLog, "rollouts", full)
        with pytest.raises(SamplerError, match="the engine is dead"):
            train(tmp_path / "run", eval={"every": 0}, train={"steps": 3, "save_every": 100})
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000001"]
