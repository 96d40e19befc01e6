"""The collapse guard: its judgements, and what a run does about them."""

import re
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from gspo.config.names import all_keys
from gspo.config.training import GuardConfig
from gspo.runs import checkpoint
from gspo.training.guard import ALARM, QUIET, SIGNALS, WARNING, Guard
from tests.runs.events import texts
from tests.tiny_run import likes_a
from tests.training.whole import lines, numbers, train

QUIET_STEP = {
    "reward": 0.5, "mismatch/kl": 1e-4, "mismatch/prob_mean": 1e-3, "mismatch/ess": 0.99, "entropy": 1.0, "grad_norm": 1.0,
    "ratio/std": 1e-3, "kl": 1e-4, "completions/clipped_ratio": 0.02, "completions/repetition": 0.1, "updates": 4,
}  # fmt: skip


def steps(guard, count, begin=1, **changes):
    return [guard.observe(QUIET_STEP | {"step": begin + i} | changes) for i in range(count)]


def test_a_quiet_run_is_quiet():
    for verdict in steps(Guard(GuardConfig()), 40):
        assert verdict.metrics == {"guard/level": QUIET, "guard/signals": []}
        assert verdict.good and not verdict.warnings and not verdict.collapsed


@pytest.mark.parametrize(
    ("metric", "value", "level"),
    [
        ("mismatch/kl", 0.02, WARNING), ("mismatch/kl", 0.5, ALARM), ("mismatch/ess", 0.2, WARNING),
        ("mismatch/prob_mean", 0.06, WARNING), ("entropy", 0.2, WARNING), ("entropy", 4.0, WARNING),
        ("entropy", 11.0, ALARM), ("mismatch/ratio_over_2", 0.3, ALARM),
        ("grad_norm", 7.0, WARNING), ("ratio/std", 6e-3, WARNING), ("completions/clipped_ratio", 0.2, WARNING),
        ("completions/repetition", 0.5, WARNING), ("completions/repetition", 0.25, QUIET),     ],
)  # fmt: skip
def test_each_signal(metric, value, level):
    guard = Guard(GuardConfig())
    steps(guard, 20)
    (verdict,) = steps(guard, 1, 21, **{metric: value})
    assert verdict.metrics["guard/level"] == level and verdict.good == (level < ALARM)
    if level:
        (text,) = verdict.warnings
        assert text.startswith(f"step 21: {metric} is {value:.3g}")


def test_what_is_judged_by_its_median_needs_one():
    guard = Guard(GuardConfig())
    assert [v.metrics["guard/level"] for v in steps(guard, 3)] == [0, 0, 0]
    assert steps(guard, 1, 4, grad_norm=1e6)[0].metrics["guard/level"] == QUIET


def test_reward_against_its_best():
    guard = Guard(GuardConfig(window=4, patience=3, collapse=0.5))
    steps(guard, 10)
    fallen = steps(guard, 10, 11, reward=0.2)  # means over 4 steps: 0.425, 0.35, 0.275, 0.2, ...
    assert [v.metrics["guard/level"] for v in fallen][:5] == [QUIET, WARNING, WARNING, ALARM, ALARM]
    assert [bool(v.collapsed) for v in fallen][:7] == [False] * 5 + [True] * 2
    assert "40% of its best (0.5)" in fallen[6].collapsed


@pytest.mark.parametrize("change", [{"queries/dropped": 3.0}, {"queries/returned": 1}, {"queries/new": 9}, {"stage": 1}])
def test_harder_queries_and_other_stages_are_no_collapse(change):
    guard = Guard(GuardConfig(window=4, patience=3, collapse=0.5))
    steps(guard, 10, stage=0)
    found = steps(guard, 1, 11, reward=0.2, entropy=0.1, **{"stage": 0} | change)
    found += steps(guard, 12, 12, reward=0.2, entropy=0.1, stage=change.get("stage", 0))
    assert all(v.metrics["guard/level"] == QUIET for v in found)
    again = Guard(GuardConfig(window=4, patience=3, collapse=0.5))
    again.load_state_dict(guard.state_dict())
    (fallen,) = steps(again, 4, 24, reward=0.02, entropy=0.1, stage=change.get("stage", 0))[-1:]
    assert fallen.metrics["guard/signals"] == ["reward fall"]


def test_a_fall_that_the_mean_does_not_show_yet_is_no_good_state():
    guard = Guard(GuardConfig(window=10))
    assert all(verdict.good for verdict in steps(guard, 20))
    (verdict,) = steps(guard, 1, 21, reward=0.3)  # the mean is 0.48, 96 % of the best
    assert verdict.metrics["guard/level"] == QUIET and not verdict.good


def test_missing_metrics_and_steps_without_updates_are_not_judged():
    guard = Guard(GuardConfig())
    for step in range(30):
        verdict = guard.observe({"step": step, "reward": float("nan"), "entropy": None})
        assert verdict.metrics["guard/level"] == QUIET


def test_a_signal_is_told_once_in_a_while():
    guard = Guard(GuardConfig())
    told = [step for step, verdict in enumerate(steps(guard, 50, **{"mismatch/kl": 0.05})) if verdict.warnings]
    assert told == [0, 20, 40]


def test_every_warning_names_a_setting_to_change():
    for signal in SIGNALS:
        named = re.findall(r"\b[a-z]+\.[a-z_]+\b", signal.means)
        assert named and set(named) <= set(all_keys()), signal.metric


def stood(guard, count, reward=lambda step: 0.1 + 0.02 * (-1) ** step, **changes):
    """The warnings of `count` steps whose reward is a function of the step."""
    quiet = QUIET_STEP | {"kl": 6e-6, "lr": 1e-6, "reward_se": 0.02} | changes
    return [
        text
        for step in range(1, count + 1)
        for text in guard.observe(quiet | {"step": step, "reward": reward(step)}).warnings
    ]


def test_a_reward_that_stands_still_while_the_policy_does_names_the_learning_rate_once():
    assert stood(Guard(GuardConfig()), 19) == []
    (text,) = stood(Guard(GuardConfig()), 70)
    assert text.startswith("step 20: the reward stands still (0.1 in the first 10 steps, 0.1 in the last)")
    assert text.endswith("a KL of only 6e-06 nats a token: raise optimizer.lr from 1e-06 to 1e-05")


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": lambda step: 0.1 + 0.01 * step},  # it moves
        {"kl": 2e-3},  # the policy does
        {"kl": 0.0},  # there is nothing to learn from
        {"lr": None},
        {"updates": 1},  # before the first update kl is only rounding
    ],
)
def test_no_standstill(changes):
    assert stood(Guard(GuardConfig()), 60, **changes) == []


def test_a_range_that_clips_too_much_is_named_once():
    narrow = {"clip_ratio/with_advantage": 0.4, "clip/epsilon": 3e-4, "clip/epsilon_high": 4e-4, "kl": 1e-3}
    assert stood(Guard(GuardConfig()), 9, **narrow) == []
    (text,) = stood(Guard(GuardConfig()), 60, **narrow)
    assert text == (
        "step 10: in 10 steps 40% of the tokens with an advantage were clipped by the range 0.0003/0.0004: make "
        'algorithm.epsilon and epsilon_high ten times as wide, or set epsilon = "auto" alone'
    )
    assert stood(Guard(GuardConfig()), 60, **narrow | {"clip_ratio/with_advantage": 0.3}) == []
    for fixed in (True, False):  # by epsilon_length a range moves too, but only an automatic one widens by itself
        guard = Guard(GuardConfig(), fixed)
        moving = [narrow | {"clip/epsilon": 3e-4 * (1 + step / 100), "step": step} for step in range(40)]
        assert sum(len(guard.observe(QUIET_STEP | each).warnings) for each in moving) == fixed


IDLE = {"correction/low": 0.0, "correction/high": 0.0, "correction/ratio_min": 0.9993, "correction/ratio_max": 1.0008}


def test_a_correction_that_changes_nothing_is_named_once():
    assert stood(Guard(GuardConfig()), 9, kl=1e-3, **IDLE) == []
    (text,) = stood(Guard(GuardConfig()), 60, kl=1e-3, **IDLE)
    assert text == (
        "step 10: algorithm.correction has changed nothing in 10 steps: pi_old/mu lay between 0.999300 and 1.000800, within "
        "its bounds: leave it out, or move algorithm.correction_low and correction_high into that range"
    )


@pytest.mark.parametrize(
    "changes", [{"correction/low": 0.001}, {"correction/ratio_max": 1.2}, {"correction/ratio_min": 0.8}]
)
def test_a_correction_that_takes_or_weighs_something_is_left_alone(changes):
    assert stood(Guard(GuardConfig()), 60, kl=1e-3, **IDLE | changes) == []


def test_off_sees_nothing():
    verdict = Guard(GuardConfig(action="off")).observe({"mismatch/kl": 10.0})
    assert verdict.good and not verdict.metrics and not verdict.warnings


@hypothesis_settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=5, max_size=40), st.integers(1, 30))
def test_a_resumed_guard_says_the_same(rewards, cut):
    one, other = Guard(GuardConfig(window=3)), Guard(GuardConfig(window=3))
    for step, reward in enumerate(rewards):
        if step == cut:
            other = Guard(GuardConfig(window=3))
            other.load_state_dict(one.state_dict())
        metrics = QUIET_STEP | {"step": step, "reward": reward}
        assert one.observe(metrics) == other.observe(metrics)


GUARD = {"patience": 2, "window": 4, "collapse": 0.6}


def run(folder, guard, steps=40, resume=False, seen=0, save_every=4):
    """Likes the letter a for 14 steps of 32 completions, then nothing that holds one: the reward breaks down."""

    def turns(prompts, completions, **columns):
        nonlocal seen
        seen += len(completions)
        return [r if seen <= 14 * 32 else 0.2 * (1 - r) for r in likes_a(prompts, completions)]

    options = {"steps": steps, "save_every": save_every, "keep_checkpoints": 50}
    guard = guard if guard.get("action") == "off" else GUARD | guard
    return train(folder, resume, reward=turns, eval={"every": 0}, train=options, guard=guard)


@pytest.fixture(scope="module")
def warned(tmp_path_factory):
    return run(tmp_path_factory.mktemp("warned") / "run", {}, steps=28)


def collapse_of(run):
    """The step in which the guard calls the run collapsed."""
    return next(m["step"] for m in numbers(run.folder) if m["guard/level"] == ALARM) + GUARD["patience"] - 1


def test_a_warning_changes_nothing(tmp_path, warned):
    found = numbers(warned.folder)
    plain = numbers(run(tmp_path / "off", {"action": "off"}, steps=28).folder)
    assert len(found) == 28 and max(m["guard/level"] for m in found) == ALARM
    assert [{k: v for k, v in m.items() if not k.startswith("guard/")} for m in found] == plain


def test_stop_ends_the_run_with_a_checkpoint(tmp_path):
    made = run(tmp_path / "run", {"action": "stop"})
    found = numbers(made.folder)
    assert not made.finished and 14 < len(found) < 40
    assert checkpoint.latest(made.folder / "checkpoints").name == f"step_{len(found):06d}"
    good = checkpoint.marked(made.folder / "checkpoints", checkpoint.GOOD)  # to begin anew from: no later save deletes it
    assert good is not None and int(good.name.removeprefix("step_")) <= 15
    said = "\n".join(texts(made.folder))
    assert "stopped, since the run collapsed (the reward" in said
    assert "start anew from an earlier checkpoint's model" in said and "goes on from the last checkpoint" not in said
    ended = [event["step"] for event in lines(made.folder / "events.jsonl") if event["kind"] == "collapse"]
    page = (made.folder / "report.html").read_text()
    assert ended == [len(found)] and f"Collapsed: stopped after {len(found)} of 40 steps" in page


def test_rewind_takes_the_good_weights_and_a_lower_rate_twice_then_stops(tmp_path):
    made = run(tmp_path / "run", {"action": "rewind", "lr_factor": 0.1, "max_rewinds": 2})
    found = numbers(made.folder)
    rates = [m["lr"] for m in found]
    falls = [i for i in range(1, len(rates)) if rates[i] < 0.2 * rates[i - 1]]
    assert len(falls) == 2 and rates[-1] == pytest.approx(0.01 * rates[0])
    assert not made.finished and "No good checkpoint or rewind is left" in str(texts(made.folder))
    assert checkpoint.marked(made.folder / "checkpoints", checkpoint.GOOD) is not None  # kept, whatever came after
    rollouts = lines(made.folder / "rollouts.jsonl")
    kept = made.folder / "checkpoints"
    before, after = (load_file(kept / f"step_{i:06d}" / "model" / "model.safetensors") for i in (12, falls[0]))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [m["step"] for m in found] == list(range(1, len(found) + 1))
    assert [r["version"] for r in rollouts] == sorted(r["version"] for r in rollouts)


def test_a_rewound_run_goes_on_through_the_prompts_and_resumes_bit_for_bit(tmp_path, warned):
    guard = {"action": "rewind", "lr_factor": 0.1, "max_rewinds": 9}
    whole = run(tmp_path / "whole", guard, steps=28)
    rates = [m["lr"] for m in numbers(whole.folder)]
    cut = next(i for i in range(1, len(rates)) if rates[i] < 0.2 * rates[i - 1])
    run(tmp_path / "part", guard, steps=cut + 1)
    again = run(tmp_path / "part", guard, steps=28, resume=True, seen=32 * (cut + 1))
    assert numbers(again.folder) == numbers(whole.folder)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    ids = [[r["prompt_id"] for r in lines(each.folder / "rollouts.jsonl")] for each in (whole, warned)]
    assert ids[0] == ids[1]  # a pass repeats no prompt


def test_a_run_that_collapses_in_its_last_step_has_not_finished(tmp_path, warned):
    last = collapse_of(warned)
    made = run(tmp_path / "run", {"action": "stop"}, steps=last)
    assert len(numbers(made.folder)) == last and made.collapsed and not made.finished
    assert not (made.folder / "model").exists()


def test_the_best_evaluation_is_none_of_weights_that_a_rewind_dropped(tmp_path, warned):
    """Each evaluation is better than the last, also that of the collapsed step, in which the run ends here."""
    last = collapse_of(warned)
    seen, scores = 0, count(1)

    def reward(prompts, completions, **columns):
        nonlocal seen
        if len(prompts) == 4:  # held out
            return [float(next(scores))] * 4
        seen += len(completions)
        return [r if seen <= 14 * 32 else 0.2 * (1 - r) for r in likes_a(prompts, completions)]

    options = {"steps": last, "save_every": 4, "keep_checkpoints": 50, "keep_best": True}
    made = train(tmp_path / "run", reward=reward, eval={"every": 1}, train=options, guard=GUARD | {"action": "rewind"})
    assert numbers(made.folder)[-1]["eval/reward"] == last + 1 and "rewind 1 of" in str(texts(made.folder))
    assert checkpoint.marked(made.folder / "checkpoints", checkpoint.BEST).name == f"step_{last - 1:06d}"


def test_without_a_good_checkpoint_a_rewind_stops(tmp_path):
    made = run(tmp_path / "run", {"action": "rewind"}, save_every=100)
    assert not made.finished and len(numbers(made.folder)) < 40
    assert "No good checkpoint or rewind is left" in str(texts(made.folder))
