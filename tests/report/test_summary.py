import pytest

from gspo.report.numbers import NBSP
from gspo.report.read import RunMetrics
from gspo.report.summary import RunSummary, headline, lead, origin, summarise, tiles

CONFIG = {"algorithm": {"name": "gspo"}, "model": {"path": "m"}, "train": {"steps": 2}}


def summary(*lines, error="", collapsed=False, planned=2, supervised=False, served=False, config=CONFIG):
    run = RunMetrics("r", [{"step": step, "time/step": 1.0} | line for step, line in enumerate(lines, 1)])
    return RunSummary(run, config, supervised, served, error, collapsed, planned)


REWARDED = ({"reward": 0.25}, {"reward": 0.5})


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (summary(*REWARDED), "Mean reward 0.25 → 0.50 in 2 steps, 2.0 s"),
        (summary(*REWARDED, error="RuntimeError: no"), "Failed after 2 steps"),
        (summary(*REWARDED, error="RuntimeError: no", planned=9), "Failed after 2 of 9 steps"),
        (summary(*REWARDED, collapsed=True, planned=9), "Collapsed: stopped after 2 of 9 steps"),
        (summary({"loss": 3.0}, supervised=True), "Supervised fine-tuning: loss 3.000 in 1 step, 1.0 s"),
        (summary({}), "1 step, 1.0 s"),
        (
            summary(*({"reward": 0.0, "teacher/kl": kl} for kl in (0.5, 0.125))),
            "KL to the teacher 0.500 → 0.125 nats a token in 2 steps, 2.0 s",
        ),
    ],
)
def test_what_went_wrong_comes_first(made, text):
    assert headline(made).replace(NBSP, " ") == text


def test_a_run_without_evaluations_says_so():
    told = lead(summary(*REWARDED))
    assert told.startswith("Nothing was evaluated (eval.every = 0)") and "Set eval.every" in told and "`gspo eval`" in told
    assert lead(summary({"loss": 1.0}, supervised=True)).startswith("The model was trained to imitate completions.")
    assert lead(summary({"reward": 1.0, "eval/accuracy": 0.5}, planned=1)) == "Mean reward in training 1.00."
    later = lead(summary(*REWARDED, config=CONFIG | {"eval": {"every": 10}}))
    assert later.startswith("Nothing was evaluated yet: these are rewards") and "Set eval.every" not in later
    served = lead(summary(*REWARDED, served=True, planned=0))
    assert served == "These are rewards of the trajectories that it was trained on."


def test_a_failed_run_says_what_it_had_reached():
    assert lead(summary(*REWARDED, error="no", planned=9)).startswith(
        "Until then: mean reward 0.25 → 0.50 (the last in step 2)."
    )
    assert "Not finished" not in lead(summary(*REWARDED, error="no", planned=9))
    told_of = {name: note for name, _, note in tiles(summary(*REWARDED, {"moe/volatility": 0.1}, error="no", planned=9))}
    assert told_of["Reward"] == "steps 1 and 2"
    assert {name: note for name, _, note in tiles(summary(*REWARDED))}["Reward"] == "first and last step"
    assert lead(summary(*REWARDED, planned=9)).endswith("Not finished: 2 of 9 steps.")


def test_agents_decide_how_many_steps_there_are(tmp_path):
    served = {"train": {"steps": 100}, "task": {"source": None}}
    for line in ({"step": 1, "sft/loss": 1.0}, {"step": 1, "turns/trained": 3}):
        found = summarise(tmp_path, RunMetrics("r", [line]), served)
        assert (found.served, found.planned) == (True, 0)
    rows = served | {"task": {"source": "rows.jsonl"}}
    assert summarise(tmp_path, RunMetrics("r", [{"step": 1, "reward": 1.0}]), rows).planned == 100


def test_a_supervised_run_is_not_labelled_by_an_algorithm():
    assert origin(summary(*REWARDED)) == "r · gspo · m"
    assert origin(summary({"loss": 1.0}, supervised=True)) == "r · supervised fine-tuning · m"


def test_a_change_is_told_from_chance():
    for ends, said in (
        (
            (0.5, 0.55),
            "95 % intervals 45–55 % and 50–60 %. Accuracy changed by +5.0 points [−2.1, 12.1], which may be chance.",
        ),
        ((0.5, 0.2), "Accuracy fell by 30.0 points [22.9, 37.1], more than chance explains."),
        ((0.2, 0.5), "Accuracy rose by 30.0 points [22.9, 37.1], more than chance explains."),
        ((0.5,), "95 % interval 45–55 %."),
    ):
        lines = [{"eval/accuracy": a, "eval/accuracy_low": a - 0.05, "eval/accuracy_high": a + 0.05} for a in ends]
        assert lead(summary(*lines, planned=0)).replace(NBSP, " ").endswith(said)


def test_the_held_out_reward_is_told_if_it_says_more_than_the_accuracy():
    for rewards, told, noted in (((0.0, 0.25), "", ""), ((0.12, 0.37), ", reward 0.12 → 0.37", "reward 0.12 → 0.37, ")):
        lines = [{"eval/accuracy": right, "eval/reward": reward} for right, reward in zip((0.0, 0.25), rewards)]
        made = summary(*lines)
        assert headline(made) == f"Held-out accuracy 0{NBSP}% → 25{NBSP}%{told} in 2 steps, 2.0{NBSP}s"
        assert tiles(made)[0] == ("Held-out accuracy", f"0{NBSP}% → 25{NBSP}%", f"{noted}steps 1 and 2")
    assert "25 %, reward 0.37 in 1 step" in headline(summary(lines[1])).replace(NBSP, " ")


def test_an_evaluation_is_told_with_its_own_step():
    before, later = ({"step": step, "eval/accuracy": right} for step, right in ((0, 0.125), (10, 0.6)))
    steps = [{"step": step, "reward": 0.5} for step in range(1, 20) if step != 10]
    for lines, said, noted in (
        ([before, *steps], "Held-out accuracy 12 % before training", "step 0"),
        ([before, *steps[:9], later, *steps[9:]], "Held-out accuracy 12 % → 60 % in 10 steps, 11 s", "steps 0 and 10"),
    ):
        made = summary(*lines)
        assert headline(made).replace(NBSP, " ") == said and tiles(made)[0][2] == noted


def test_rewards_that_only_watch_are_told_as_what_they_are():
    config = {"reward": {"functions": ["task", "tasks:worked"], "weights": [1.0, 0.0]}}
    lines = [{"reward": 1.0, "reward/worked": value} for value in (0.25, 0.5)]
    assert ("Watched: worked", f"25{NBSP}% → 50{NBSP}%", "first and last step") in tiles(summary(*lines, config=config))
