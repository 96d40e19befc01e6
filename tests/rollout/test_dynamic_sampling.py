"""Batches that are refilled: what is asked for, what is handed out, and whole runs that resume."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import gspo
from gspo.config.policy import ResolvedAlgorithm
from gspo.config.rollout import RolloutConfig
from gspo.interfaces import SamplerError
from gspo.rollout.dynamic_sampling import DynamicSamplingSource, choose, prompts_to_ask
from gspo.types import Sampling
from tests.agents.test_episodes import Quiz  # noqa: F401  an environment, named below
from tests.rollout.test_synchronous import Echo, Stream
from tests.serving.served import tiny
from tests.training.whole import Failing, lines, numbers, train

P, G = 4, 3


class Marks:
    """Gives the prompt of number i the rewards marks(i), one a completion."""

    def __init__(self, marks):
        self.marks = marks

    def score(self, rollouts, progress=None, groups=None):
        progress(len(rollouts))
        marks = [self.marks(int(r.prompt.id))[j % G] for j, r in enumerate(rollouts)]
        return [dataclasses.replace(r, reward=mark, reward_parts={}) for r, mark in zip(rollouts, marks)]

    def counts(self):
        return {"scoring/marks/requests": 1}


def teaches_if(those):
    return lambda number: (1.0, 0.0, 0.0) if those(number) else (1.0, 1.0, 1.0)


def source_of(marks, refill, sampler=None, stream=None, report=lambda *args: None, algorithm=None, **rollout):
    config = RolloutConfig(num_prompts=P, num_generations=G, dynamic_sampling_rounds=refill, **rollout)
    given = stream or Stream(), sampler or Echo(), Marks(marks), config, Sampling(5, seed=7), report
    return DynamicSamplingSource(*given, algorithm=algorithm or ResolvedAlgorithm())


def batch(groups):
    groups = iter(groups)  # a source, or an iterator of one
    return [int(next(groups).prompt.id) for _ in range(P)]


def test_a_batch_is_refilled_until_enough_groups_teach():
    sampler = Echo()
    source = source_of(teaches_if(lambda i: i % 3 == 0), 5, sampler)
    groups = iter(source)
    assert batch(groups) == [0, 3, 6, 9]
    # 2 of 4 taught, so 2 / (1/2) more were asked for; then 3 of 8, so 1 / (3/8)
    assert [asked[0] for asked in sampler.asked] == [4, 4, 3]
    counts = source.metrics
    assert {key: counts[key] for key in counts if key.startswith("dynamic_sampling/")} == {
        "dynamic_sampling/queries": 11, "dynamic_sampling/rounds": 2, "dynamic_sampling/signal": 4 / 11,
        "dynamic_sampling/unused": 0,
    }  # fmt: skip
    assert source.prompts.position == 11
    assert batch(groups) == [12, 15, 18, 21]


def test_what_a_refill_makes_of_a_batch(subtests):
    """Surplus is given up and counted; at the bound the batch is filled up in the order of the prompts."""
    for teaches, most, ids, (queries, rounds, unused) in (
        (lambda i: i == 0 or i >= 4, 1, [0, 4, 5, 6], (8, 1, 1)),
        (lambda i: i in (2, 9), 2, [0, 1, 2, 9], (12, 2, 0)),
        (lambda i: True, 5, [0, 1, 2, 3], (4, 0, 0)),
    ):
        with subtests.test(ids=ids):
            source = source_of(teaches_if(teaches), most)
            assert batch(source) == ids and not source.stale and source.fresh() == []
            counts = [source.metrics[f"dynamic_sampling/{name}"] for name in ("queries", "rounds", "unused")]
            assert counts == [queries, rounds, unused]


def test_the_numbers_of_a_step_are_of_all_completions_that_were_sampled():
    source = source_of(lambda i: ((1.0, 1.0, None), (1.0, 0.0, 0.0))[i % 2], 1)
    batch(source)
    assert source.metrics["dynamic_sampling/queries"] == 8
    assert source.metrics["reward"] == pytest.approx((4 * 2 + 4) / (4 * 2 + 4 * 3))
    assert source.metrics["rollouts/failed"] == 4
    assert source.metrics["tokens"] == 8 * G * 3
    assert source.metrics["scoring/marks/requests"] == 2  # one a round
    assert source.metrics["frac_reward_zero_std"] == 0.5  # of the batch none
    assert source.metrics["reward_std"] == pytest.approx(0.5 * 3**-0.5)


@pytest.mark.parametrize(
    ("marks", "options", "teaching"),
    [
        (lambda i: (1.0, 0.0, None), {}, True),
        (lambda i: (1.0, None, None), {}, False),
        (lambda i: (1.0, 0.0, 0.0), {"mask_truncated_completions": True}, False),  # each is cut off
        (lambda i: (0.3, 0.1 + 0.2, 0.3), {}, False),  # equal up to rounding
        (lambda i: (1.0, 0.0, 0.0), {"algorithm": ResolvedAlgorithm(name="gspo_turn", credit="turn")}, True),
        (lambda i: (1.0, 1.0, 1.0), {"algorithm": ResolvedAlgorithm(name="gspo_turn", credit="turn")}, False),
    ],
)
def test_what_teaches_is_what_training_sees(marks, options, teaching):
    class Cut(Echo):
        def generate(self, *args):
            return [dataclasses.replace(r, stop="length") for r in super().generate(*args)]

    source = source_of(marks, 1, sampler=Cut(), **options)
    batch(source)
    assert source.metrics["dynamic_sampling/signal"] == (1 if teaching else 0)


def test_each_round_has_a_seed_of_its_own_also_after_a_resume():
    sampler, stream = Echo(), Stream()
    source = source_of(teaches_if(lambda i: i % 3 == 0), 5, sampler, stream)
    groups = iter(source)
    batch(groups), batch(groups)
    seeds = [asked[2] for asked in sampler.asked]
    assert len(set(seeds)) == len(seeds) == 6
    again, resumed = Echo(), Stream()
    resumed.position = 11
    batch(source_of(teaches_if(lambda i: i % 3 == 0), 5, again, resumed))
    assert again.asked == sampler.asked[3:]


def test_progress_counts_on_over_the_rounds():
    seen = []
    source = source_of(teaches_if(lambda i: i % 2), 2, report=lambda *args: seen.append(args))
    batch(source)
    assert seen == [("scoring", 12, 12), ("scoring", 24, 24)]


@hypothesis_settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.booleans(), max_size=200))
def test_rounds_and_batches_have_the_right_size(size, teaching):
    asked = prompts_to_ask(size, teaching)
    missing = max(0, size - sum(teaching))
    assert (asked == 0) == (missing == 0) and missing <= asked <= size
    if len(teaching) < size:
        return
    chosen = choose(size, teaching)
    assert len(set(chosen)) == size and chosen == sorted(chosen)
    assert sum(teaching[i] for i in chosen) == min(size, sum(teaching))


def begins_with_a_digit(prompts, completions, **columns):
    """Right or wrong, and in many groups the same for all."""
    return [float(c[:1] in ("1", "2")) for c in completions]


def run(folder, resume=False, **changes):
    options = {"rollout": {"dynamic_sampling_rounds": 8}, "algorithm": {"name": "dapo"}, "eval": {"every": 0}}
    return train(folder, resume, reward=begins_with_a_digit, **options | {"train": {"steps": 4}} | changes)


def test_a_run_trains_on_groups_that_teach_alone_and_a_resumed_one_is_bit_equal(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    steps = numbers(whole.folder)
    assert all(m["groups/with_signal"] == 1 and m["groups/dropped"] == 0 for m in steps)
    assert all(m["frac_reward_zero_std"] == pytest.approx(1 - m["dynamic_sampling/signal"]) for m in steps)
    assert all(m["dynamic_sampling/queries"] >= 8 + m["dynamic_sampling/rounds"] for m in steps)
    assert sum(m["dynamic_sampling/rounds"] for m in steps) > len(steps)  # several in some step
    assert [m["tokens_total"] for m in steps] == torch.tensor([m["tokens"] for m in steps]).cumsum(0).tolist()
    rows = lines(whole.folder / "rollouts.jsonl")
    assert len(rows) == 4 * 8 * 4
    assert all({r["reward"] for r in rows[i : i + 4]} == {0.0, 1.0} for i in range(0, len(rows), 4))

    rounds = [m["dynamic_sampling/rounds"] + 1 for m in steps]
    step = next(k for k in range(1, 4) if rounds[k] > 1)
    with monkeypatch.context() as patch:
        Failing(patch, "generate", sum(rounds[:step]) + 2)  # in the second round of a batch
        with pytest.raises(SamplerError, match="the engine is dead"):
            run(tmp_path / "part")
    again = run(tmp_path / "part", resume=True)
    assert numbers(again.folder) == steps
    assert (again.folder / "rollouts.jsonl").read_text() == (whole.folder / "rollouts.jsonl").read_text()


def test_an_environments_groups_are_refilled(tmp_path):
    made = tiny()
    result = gspo.train(
        made.model, [{"prompt": f"say a, {i}"} for i in range(40)], tokenizer=made.tokenizer,
        task={"environment": f"{__name__}:Quiz"}, algorithm={"name": "gspo_token", "credit": "turn", "mini_batches": 1},
        rollout={"num_prompts": 4, "num_generations": 2, "max_completion_length": 1, "dynamic_sampling_rounds": 2},
        eval={"every": 0}, train={"steps": 2}, log={"dir": str(tmp_path / "run")},
    )  # fmt: skip
    steps = lines(result.folder / "metrics.jsonl")
    assert len(steps) == 2 and all(m["dynamic_sampling/queries"] >= 4 for m in steps)
    assert any(m["dynamic_sampling/rounds"] for m in steps)


def test_why_what_is_left_over_has_no_reward_is_kept():
    """A group that failed wholly is refilled, so its batch does not show it."""
    source = source_of(lambda number: (None, None, None) if number == 1 else (1.0, 0.0, None), 1)
    assert batch(source) == [0, 2, 3, 4]
    none = "no reward function scored it"
    assert source.unused == [none, none, none, None, None, none]  # of prompts 1 and 5
