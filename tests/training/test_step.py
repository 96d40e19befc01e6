"""A step: on policy at its first update, whole where its sampler dies, counted where its rewards fail."""

import html
import logging
import re

import pytest

from gspo.backends.hf.sampler import HFSampler
from gspo.interfaces import RewardsFailed, SamplerError
from gspo.runs.log import RunLog
from tests.logged import logs
from tests.training.whole import REQUIRED, Failing, lines, numbers, train


def test_first_update_is_on_policy(tmp_path):
    """One update a batch and the sampler's likelihoods: s_i is 1 up to rounding, nothing clips."""
    result = train(tmp_path / "run", algorithm={"mini_batches": 1}, train={"steps": 3})
    for m in numbers(result.folder)[1:]:
        assert m["clip_ratio/region_mean"] == 0
        assert m["ratio/noise_floor"] == pytest.approx(m["ratio/std"], abs=1e-7)
        assert m["ratio/std"] < 1e-6
        assert m["mismatch/prob_max"] < 1e-5


def test_the_engines_are_counted_while_they_serve(tmp_path, monkeypatch):
    """Not while they sleep for the update."""
    load = HFSampler.load
    monkeypatch.setattr(HFSampler, "rest", lambda self: setattr(self, "serving", 0.0))
    monkeypatch.setattr(HFSampler, "load", lambda self, weights: setattr(self, "serving", 1.0) or load(self, weights))
    monkeypatch.setattr(HFSampler, "counts", lambda self: {"engines/serving": getattr(self, "serving", 1.0)})
    result = train(tmp_path / "run", train={"steps": 2})
    assert [m["engines/serving"] for m in numbers(result.folder) if m["step"]] == [1.0, 1.0]


def raises(prompts, completions, **columns):
    raise ZeroDivisionError("no reward today")


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (raises, "raises: ZeroDivisionError: no reward today"),
        (lambda prompts: [1.0], "returned 1 values for 32 completions"),
    ],
)
def test_a_reward_that_fails_everywhere_ends_the_run_at_its_first_step(tmp_path, reward, why):
    with pytest.raises(RewardsFailed, match=f"step 1: none of 32 completions got a reward.*: .*{why}"):
        train(tmp_path / "run", reward=reward, eval={"every": 0})
    (m,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert (m["rollouts/failed"], m["groups/dropped"], m["updates"]) == (32, 8, 0)
    assert set(REQUIRED) <= set(m)
    assert lines(tmp_path / "run" / "rollouts.jsonl")[0]["error"]
    assert not (tmp_path / "run" / "model").exists() and not list((tmp_path / "run" / "checkpoints").glob("step*"))


def fails_mostly(what):
    """A reward for groups of which no completion but the first is scored: `what` makes of its number what is returned."""

    def reward(prompts, completions, **columns):
        return [1.0 if i % 4 == 0 else what(i) for i in range(len(completions))]

    return reward


@pytest.mark.parametrize("refill", [0, 1], ids=["", "refill"])
@pytest.mark.parametrize(
    ("alone", "why"),
    [
        (lambda number: 1e200 * number, r"returned 1e\+200, which is beyond 1e\+09: scale the reward down"),
        (lambda number: None, "no reward function scored it; return a number"),
    ],
)
def test_a_reward_that_fails_for_most_is_named_in_the_log_and_the_report(tmp_path, alone, why, refill):
    options = {"eval": {"every": 0}, "train": {"steps": 3, "save_every": 9}, "rollout": {"dynamic_sampling_rounds": refill}}
    with logs() as said:
        assert train(tmp_path / "run", reward=fails_mostly(alone), **options).finished
    count = 24 * (1 + refill)
    told = rf"{count} of {count // 3 * 4} completions got no reward; the commonest reason, of {count} \(75%\): .*{why}"
    assert len(re.findall(told, "\n".join(said))) == 1, "not at every step"
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    (line,) = re.findall(rf"<li>{told}.*?</li>", page)
    assert "(3 times, first in step 1, last in step 3)" in line


def test_an_evaluation_that_fails_everywhere_ends_the_run_before_its_first_step(tmp_path):
    with pytest.raises(RewardsFailed, match=r"the evaluation before step 1: none of 4 .*no reward today"):
        train(tmp_path / "run", reward=raises, eval={"every": 1})
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not lines(tmp_path / "run" / "metrics.jsonl")


def test_a_reward_that_begins_to_fail_everywhere_ends_the_run_with_its_work(tmp_path):
    calls = []

    def breaks(prompts, completions, **columns):
        calls.append(len(completions))
        if calls.count(32) > 2:
            raise ConnectionError("the service is gone")
        return [float(len(completion)) for completion in completions]

    none = {"eval": {"every": 0}, "train": {"steps": 20, "save_every": 100}}
    with pytest.raises(RewardsFailed, match=r"step 5: in 3 steps in a row none of 32 .*the service is gone"):
        train(tmp_path / "run", reward=breaks, **none)
    assert [m["rollouts/failed"] for m in lines(tmp_path / "run" / "metrics.jsonl")] == [0, 0, 32, 32, 32]
    saved = tmp_path / "run" / "checkpoints"
    assert [path.name for path in saved.glob("step*")] == ["step_000005"]
    with pytest.raises(RewardsFailed, match="step 6: none of 32"):  # a run that goes on begins anew
        train(tmp_path / "run", resume=True, reward=raises, **none)
    assert train(tmp_path / "run", resume=True, **none).finished
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["rollouts/failed"] == 0


def test_rewards_hear_how_far_the_training_is(tmp_path):
    seen = []

    def looks(prompts, completions, trainer_state, **columns):
        seen.append((trainer_state.global_step, trainer_state.max_steps))
        return [float(len(completion)) for completion in completions]

    train(tmp_path / "run", reward=looks, train={"steps": 3})
    assert seen == [(0, 3), (0, 3), (1, 3), (2, 3), (3, 3)]


def test_what_is_said_in_a_step_belongs_to_it(tmp_path):
    """While it samples (the reward's warning), and after."""

    def constant(prompts, completions, **columns):
        logging.getLogger("gspo.rewards").warning("heard while scoring")
        return [1.0] * len(prompts)

    train(tmp_path / "run", reward=constant, train={"steps": 2}, eval={"every": 0})
    said = [(line["step"], line["text"]) for line in lines(tmp_path / "run" / "events.jsonl") if line["kind"] == "warning"]
    assert (1, "heard while scoring") in said
    numbered = [(step, text) for step, text in said if text.startswith("step ")]
    assert numbered and all(text.startswith(f"step {step}") for step, text in numbered)


BRIEF = {"eval": {"every": 2, "num_prompts": 4}, "train": {"steps": 5, "save_every": 100}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", **BRIEF)


@pytest.mark.parametrize(("name", "k"), [("generate", 4), ("generate", 1), ("load", 3), ("load", 4), ("generate", 5)])
def test_a_sampler_that_dies_costs_nothing(tmp_path, undisturbed, name, k, monkeypatch):
    """While it samples (4: a step, 5: an evaluation in between), and while it takes new weights (4: before it evaluates)."""
    with monkeypatch.context() as patch:
        Failing(patch, name, k)
        with pytest.raises(RuntimeError, match="the engine is dead"):
            train(tmp_path / "part", **BRIEF)
    again = train(tmp_path / "part", resume=True, **BRIEF)
    found, whole = ({line["step"]: {} for line in numbers(run.folder)} for run in (again, undisturbed))
    for told, run in ((found, again), (whole, undisturbed)):
        for line in numbers(run.folder):  # an evaluation that the resumed run made up for has a line of its own
            told[line["step"]] |= line
    assert found == whole and any("eval/reward" in line for line in found.values())
    a, b = (
        [(r["step"], r["prompt_id"], r["token_ids"]) for r in lines(run.folder / "rollouts.jsonl")]
        for run in (again, undisturbed)
    )
    assert a == b


def test_a_log_that_fails_hides_no_lost_sampler(tmp_path, monkeypatch):
    """The updates are done: they are saved, whatever else goes wrong."""

    def full(log, rows):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        Failing(patch, "load", 1)
        patch.setattr(RunLog, "rollouts", full)
        with pytest.raises(SamplerError, match="the engine is dead"):
            train(tmp_path / "run", eval={"every": 0}, train={"steps": 3, "save_every": 100})
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"good", "step_000001"}
