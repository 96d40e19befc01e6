"""What a study leaves, from rows whose numbers are known."""

import csv
import json
import math
from dataclasses import replace

import pytest

from gspo.compare.page import summarise, write_html, write_rows, write_summary
from gspo.compare.spec import Cell, Study
from gspo.config.schema import Config


def row(variant, seed, reward, status="done", **more):
    known = {
        "collapsed": False, "fall": 0.0, "clipped": 0.1, "volatility": math.nan, "seconds": 60.0, "seconds_train": 1.0,
        "steps": 9, "unscored": 0.0, "eval_unscored": math.nan,
    }  # fmt: skip
    here = {"setting": "runs", "variant": variant, "seed": seed, "status": status, "reason": ""}
    return here | (known | {"reward": reward} if status == "done" else {}) | more


STUDY = Study(
    "NaN or one & other", "Fixed <first>.", "GRPO", "", 2, 1, 1,
    [Cell("runs", variant, seed, Config()) for variant in ("GRPO", "GSPO") for seed in range(3)],
)  # fmt: skip
ROWS = [
    row("GRPO", 0, 0.1), row("GRPO", 1, 0.2), row("GRPO", 2, 0.3),
    row("GSPO", 0, 0.3), row("GSPO", 1, 0.4, collapsed=True), row("GSPO", 2, 0.0, "failed", reason="<out of memory>"),
]  # fmt: skip


def test_a_summary_by_hand():
    grpo, gspo = summarise(STUDY, ROWS, "reward")
    assert (grpo["cells"], grpo["collapsed"], grpo["reward"].mean) == (3, 0, pytest.approx(0.2))
    assert "difference" not in grpo and "verdict" not in grpo  # it is the baseline
    assert (gspo["cells"], gspo["collapsed"], gspo["reward"].mean) == (2, 1, pytest.approx(0.35))
    assert (gspo["difference"].n, gspo["difference"].mean) == (2, pytest.approx(0.2))  # the seeds that both have
    wide = summarise(
        STUDY, [row("GRPO", seed, 0.5, clipped=share, fall=share) for seed, share in enumerate((0, 0, 0.9))], "reward"
    )
    assert wide[0]["clipped"].low == wide[0]["fall"].low == 0 and wide[0]["clipped"].high == 1  # a share
    assert gspo["verdict"].startswith("reward of the last 2 steps: GSPO collapsed in 1 of 2 seeds.")


def test_those_that_did_not_collapse_decide_nothing(tmp_path):
    """The guard stopped two of four baseline cells, so that these have no accuracy; on the reward all count."""
    study = replace(STUDY, metric="eval/accuracy")
    rows = [row("GSPO", seed, 0.5, metric=0.5 + 0.01 * seed) for seed in range(4)]
    rows += [row("GRPO", seed, 0.6 - 0.1 * seed, metric=0.6 + 0.02 * seed if seed < 2 else math.nan, collapsed=seed >= 2)
             for seed in range(4)]  # fmt: skip
    summaries = {by: summarise(study, rows, by) for by in ("metric", "reward")}
    of_metric, of_reward = (lines[1]["verdict"] for lines in summaries.values())
    assert of_metric == (
        "eval/accuracy at the end: GRPO collapsed in 2 of 4 seeds. GSPO against GRPO: no verdict: 2 cells have no value."
    )
    assert "GRPO collapsed in 2 of 4 seeds. GSPO against GRPO: no difference resolvable at 4 seeds" in of_reward
    page = write_html(study, rows, summaries, {}, tmp_path).read_text()
    assert "0.610 [0.483, 0.737] (n = 2)" in page and page.count("(n = ") == 1
    alone = [each | {"seed": each["seed"] + 4 * (each["variant"] == "GRPO")} for each in rows]
    assert "0 paired seeds, no verdict" in summarise(study, alone, "metric")[1]["verdict"]


def test_equal_seeds_get_no_interval(tmp_path):
    rows = [row(variant, seed, reward) for variant, reward in (("GRPO", 0.75), ("GSPO", 1.0)) for seed in range(3)]
    lines = summarise(STUDY, rows, "reward")
    assert lines[1]["verdict"].endswith("+0.250 at each of 3 seeds, so no noise is seen: no verdict.")
    page = write_html(STUDY, rows, {"reward": lines}, {}, tmp_path).read_text()
    assert ">1.000<" in page and ">+0.250<" in page


def test_a_verdict_says_what_its_rewards_leave_out():
    rows = [row(v, seed, 0.5, unscored=0.25 * (v == "GSPO"), eval_unscored=2.0) for v in ("GSPO", "GRPO") for seed in (0, 1)]
    verdicts = [line["verdict"] for line in summarise(STUDY, rows, "reward") if "verdict" in line]
    assert verdicts[0].endswith(" Left out, as completions without a reward: GSPO 25.0%, GRPO 0.0%.")
    alone = [line["verdict"] for line in summarise(STUDY, rows[:2], "reward") if "verdict" in line]
    assert "nan" not in str(alone)
    rows = [each | {"metric": 0.5, "unscored": 0.0} for each in rows]
    assert "Left out" not in str(summarise(STUDY, rows, "reward"))
    for metric, said in (
        ("eval/reward/exact", "held-out completions without a reward: GSPO 2.0, GRPO 2.0."),
        ("entropy", ""),
    ):
        told = summarise(replace(STUDY, metric=metric), rows, "metric")[1]["verdict"]
        assert told.endswith(said) and ("Left out" in told) == bool(said)


def test_the_tables_hold_each_cell_and_no_nan(tmp_path):
    write_rows(ROWS, tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(line["variant"], line["seed"], line["status"]) for line in found][-1] == ("GSPO", "2", "failed")
    assert found[-1]["reward"] == "" and found[0]["reward"] == "0.1" and "clipped" in found[0]
    write_summary(STUDY, {"reward": summarise(STUDY, ROWS, "reward")}, tmp_path)
    told = json.loads((tmp_path / "results.json").read_text())
    assert (told["baseline"], told["title"]) == ("GRPO", "NaN or one & other")
    assert told["reward"][0]["volatility"]["mean"] is None and told["reward"][1]["reward"]["n"] == 2


def test_the_page_says_it_all_as_text(tmp_path):
    text = write_html(STUDY, ROWS, {"reward": summarise(STUDY, ROWS, "reward")}, {}, tmp_path).read_text()
    assert "NaN or one &amp; other" in text and "Fixed &lt;first&gt;." in text and "5 of 6 cells" in text
    assert "the same number of steps. Variants do not differ." in text and "below 50% of its best" in text
    ended = write_html(STUDY, [row("GRPO", 0, 0.1), row("GSPO", 0, 0.1, steps=5)], {}, {}, tmp_path).read_text()
    assert "the same model to begin with. Variants do not differ." in ended  # one ended early
    assert "1 setting, seeds 0, 1, 2. Cells with the same seed" in text
    others = replace(STUDY, cells=[replace(cell, seed=cell.seed + 3) for cell in STUDY.cells])
    page = write_html(others, [row("GRPO", 3, 0.1)], {}, {}, tmp_path).read_text()
    assert "seeds 3, 4, 5. " in page and "Settings that may not be meant" not in page  # a setting may have its own
    odd = replace(STUDY, cells=[replace(cell, warnings=("a <low> range",)) for cell in STUDY.cells])
    page = write_html(odd, [row("GRPO", 0, 0.1)], {}, {}, tmp_path).read_text()
    assert "Settings that may not be meant" in page and page.count("runs / GRPO: a &lt;low&gt; range") == 1
    assert "seed 2: failed. &lt;out of memory&gt;" in text and "1 of 2" in text and "10.00%" in text
