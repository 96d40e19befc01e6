"""The sentence beside a figure, at numbers that are known."""

import pytest

from gspo.objective.algorithms import ALGORITHMS
from gspo.report.judgements import BY_TOKEN, JUDGES, OF_RANGE, judge
from gspo.report.plots import PLOTS
from gspo.report.read import RunMetrics
from gspo.training.guard import SIGNALS


def run(**series):
    """A run with these values of metrics; `a__b` is the metric a/b, and a number holds in each step."""
    steps = max(len(values) for values in series.values() if isinstance(values, list))
    lists = {key.replace("__", "/"): v if isinstance(v, list) else [v] * steps for key, v in series.items()}
    return RunMetrics("r", [{"step": s + 1} | {key: v[s] for key, v in lists.items()} for s in range(steps)])


def accuracies(first, last, half):
    values = {"eval__accuracy": [first, last], "eval__accuracy_low": [first - half, last - half]}
    return run(**values, eval__accuracy_high=[first + half, last + half])


def clipped(share, width, noise=0.0, learning=None):
    with_advantage = [share if learning is None else learning] * 2
    shares = {"clip_ratio__tokens": [share, share], "clip_ratio__with_advantage": with_advantage}
    return run(**shares, clip__epsilon=width, clip_ratio__noise_only=noise)


def spread(value, width=5e-4):
    return run(ratio__std=[value, value], clip__epsilon=width)


def floor(value, width=1e-4):
    return run(ratio__noise_floor=[value], clip__epsilon=width)


UP, DOWN = [0.1 * i for i in range(12)], [1.0 - 0.08 * i for i in range(12)]
SAID = [  # the figure, the run, the sentence, whether it asks for a look
    ("accuracy", accuracies(0.39, 0.8, 0.05), "Rose by 41.0 points [33.9, 48.1], more than chance explains.", False),
    ("accuracy", accuracies(0.8, 0.39, 0.05), "Fell by 41.0 points [33.9, 48.1], more than chance explains.", True),
    ("accuracy", accuracies(0.5, 0.45, 0.05), "Changed by −5.0 points [−12.1, 2.1], which may be chance.", False),
    # The intervals overlap, yet the change is more than chance explains.
    ("accuracy", accuracies(0.5, 0.58, 0.05), "Rose by 8.0 points [0.9, 15.1], more than chance explains.", False),
    ("reward", run(reward=UP), "Still rising at the end: more steps may help.", False),
    ("reward", run(reward=DOWN), "The last quarter, 0.20, is below the best, 0.92.", True),
    ("reward", run(reward=[0.5, 0.6] * 6), "Level at the end.", False),
    # Harder prompts are no fall of the reward.
    ("reward", run(reward=[0.8] * 9 + UP, stage=[0] * 9 + [1] * 12), "Still rising at the end: more steps may help.", False),
    ("reward", run(reward=[0.8] * 12 + [0.4] * 4, stage=[0] * 12 + [1] * 4), None, False),
    ("clip", clipped(0.14, 3e-4), "14 % clipped: usual for this range.", False),
    ("clip", clipped(0.001, 0.2), "0.1 % clipped: usual for this range.", False),
    ("clip", clipped(0.01, 3e-4), "1 % clipped: little for this range, so the clip hardly acts.", False),
    ("clip", clipped(0.01, 3e-3), "1 % clipped: usual for this range.", False),
    ("clip", clipped(0.4, 3e-3), "40 % clipped: much for this range; such runs learned more slowly. Widen it.", True),
    ("clip", clipped(0.3, 3e-3, learning=0.39), "30 % clipped, and 39 % of those with an advantage: much for this range; "
     "such runs learned more slowly. Widen it.", True),
    ("clip", clipped(0.14, 0.2), "14 % clipped: much for this range; such runs learned more slowly. Widen it.", True),
    ("clip", clipped(0.14, 3e-4, 0.1), "14 % clipped: mostly by rounding. Raise the precision.", True),
    ("ratio", spread(1e-3), "The spread is 2 times the clip range: usual.", False),
    ("ratio", spread(1e-2), "The spread is 20 times the clip range: far beyond it.", True),
    ("noise", floor(1e-6), "1 % of the range: rounding is harmless.", False),
    ("noise", run(ratio__noise_floor=[2e-4], clip__epsilon=1e-4, clip_ratio__noise_only=0.0),
     "It reaches the clip range, but rounding clips less than 1 % of the tokens.", False),
    ("noise", floor(2e-4), "It reaches the clip range: rounding alone clips. Raise the precision.", True),
    ("entropy", run(entropy=[2.0, 1.0]), "At 50 % of its start: no sign of a collapse.", False),
    ("entropy", run(entropy=[2.0, 0.2]), "At 10 % of its start: the policy explores little.", True),
    ("entropy", run(entropy=[1.0, 4.0]), "At 400 % of its start: the policy may be falling apart.", True),
    ("experts", run(moe__volatility=[0.01]), "1 % change: usual.", False),
    ("experts", run(moe__volatility=[0.2]), '20 % change: much. Set algorithm.router_replay = "R3".', True),
    ("kl", run(mismatch__kl=[5e-4]), "5.0e-04 between sampler and trainer: small.", False),
    ("truncated", run(completions__clipped_ratio=[0.2]), "20 % cut off: raise rollout.max_completion_length.", True),
    ("no_signal", run(frac_reward_zero_std=[0.25]), "25 % teach nothing: usual.", False),
    ("time", run(time__sample=[3.0], time__train=[1.0]), "The largest part, 75 %, is sampling.", False),
    ("time", run(time__sample=[1.0], time__sync=[3.0]), "The largest part, 75 %, is sync.", False),
]  # fmt: skip


def test_what_is_said(subtests):
    for name, made, text, concern in SAID:
        with subtests.test(name, text=text):
            found = judge(name, made)
            if text is None:
                assert found is None
                continue
            assert (found.text.replace("\u00a0", " "), found.concern) == (text, concern)
    assert {name for name, *_ in SAID} == {*JUDGES, *OF_RANGE} <= {plot.name for plot in PLOTS}


def test_what_is_said_of_a_range_is_said_of_its_algorithm():
    def said(figure, made, **algorithm):
        found = judge(figure, made, {"algorithm": algorithm})
        return found and found.text.replace("\u00a0", " ")

    assert {name for name, row in ALGORITHMS.items() if row.level == "token" and row.epsilon is not None} == BY_TOKEN
    wide = clipped(0.13, 0.058, learning=0.15)
    assert said("clip", wide, name="gspo", epsilon="auto") == "13 % clipped: the range follows algorithm.clip_target."
    assert said("clip", wide, name="gspo", epsilon=0.058) == "13 % clipped: usual for this range."
    assert said("clip", clipped(0.25, 0.02), name="grpo").startswith("25 % clipped: much for this range")
    assert said("noise", floor(1e-2, 0.2), name="grpo") is None  # the noise is that of s_i


def test_nothing_is_judged_where_the_number_says_nothing():
    assert judge("no_signal", run(frac_reward_zero_std=[1.0], teacher__kl=[0.1])) is None
    assert judge("no_signal", run(frac_reward_zero_std=[1.0], value__loss=[0.1])) is None
    assert judge("entropy", run(entropy=[2.0, 0.2], loss=[1.0, 0.5])) is None  # imitation


@pytest.mark.parametrize("value", [0.0, -1.0, 1e150])
def test_nothing_is_said_of_nothing_and_odd_numbers_stop_no_judgement(value):
    more = ("clip/epsilon", "mismatch/kl", "eval/accuracy_low", "eval/accuracy_high", "time/train")
    metrics = [*(plot.keys[0][0] for plot in PLOTS if plot.keys), *more]
    for lines in ([], [dict.fromkeys(metrics, value)] * 9):
        found = [judge(plot.name, RunMetrics("r", lines)) for plot in PLOTS]
        assert "nan" not in str(found)
        assert lines or not any(found)


@pytest.mark.parametrize(("name", "metric"), [("kl", "mismatch/kl"), ("truncated", "completions/clipped_ratio")])
def test_a_figure_asks_for_a_look_where_the_guard_warns(name, metric):
    (limit,) = (signal.warn for signal in SIGNALS if (signal.metric, signal.judged) == (metric, "above"))
    asks = [judge(name, run(**{metric.replace("/", "__"): [limit * factor] * 2})).concern for factor in (0.99, 1.01)]
    assert asks == [False, True]
