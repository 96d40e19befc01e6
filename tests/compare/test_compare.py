"""Whole studies on a tiny model."""

import csv
import json
from pathlib import Path

import pytest

from gspo.cli.main import main
from gspo.compare.compare import compare
from gspo.compare.spec import read
from gspo.config.files import to_toml
from tests.compare.studies import BASE, write


def rows(folder):
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_study_from_start_to_end_and_again(place, capsys):
    study = write(place, BASE + '[variants.broken]\ntask = {source = "rows.csv"}\nseeds = [4]\n')
    assert compare(study, place / "out") == 1
    output = capsys.readouterr().out
    assert "5 of 5 cells to run" in output and "failed  runs/broken/seed4" in output and "rows.csv" in output
    cells_now = rows(place / "out")
    assert [(r["variant"], r["seed"], r["status"]) for r in cells_now] == [
        ("GRPO", "3", "done"), ("GRPO", "4", "done"), ("GSPO auto", "3", "done"), ("GSPO auto", "4", "done"),
        ("broken", "4", "failed"),
    ]  # fmt: skip
    page = (place / "out" / "compare.html").read_text()
    assert "Which one?" in page and "&lt;b&gt;before" in page and "Not in the numbers" in page and "rows.csv" in page
    summary = json.loads((place / "out" / "results.json").read_text())["reward"]
    assert [line["variant"] for line in summary] == ["GRPO", "GSPO auto", "broken"]
    assert summary[1]["difference"]["n"] == 2
    cells = place / "out" / "cells" / "runs"
    first = [json.loads((cells / v / "seed3" / "rollouts.jsonl").read_text().splitlines()[0]) for v in ("GRPO", "GSPO-auto")]
    assert first[0]["prompt_id"] == first[1]["prompt_id"] and first[0]["token_ids"] == first[1]["token_ids"]  # paired
    before = {path: path.stat().st_mtime for path in cells.rglob("metrics.jsonl")}
    write(place, BASE)
    assert compare(study, place / "out") == 0
    assert "to run" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime for path in cells.rglob("metrics.jsonl")} == before  # finished is kept
    write(place, BASE.replace("lr = 3e-3", "lr = 1e-3"))
    with pytest.raises(ValueError, match=r"holds a cell of another study: optimizer\.lr = 0\.003 there, 0\.001 in this one"):
        compare(study, place / "out")
    write(place, BASE.replace("steps = 3", "steps = 4"))
    assert compare(study, place / "out", only="runs/GRPO/seed3") == 0
    assert [(r["status"], r["steps"]) for r in rows(place / "out")] == [("done", "4")] + [("not run", "")] * 3


@pytest.mark.parametrize("guard", [False, True])
def test_a_cell_that_was_not_evaluated_at_its_end_is_told_and_counts_for_the_reward_alone(place, guard):
    study = write(place, BASE.replace("last = 2", 'last = 2\nmetric = "eval/accuracy"'))
    lost = None
    for cell in read(study, place / "out").cells:
        folder = Path(cell.config.log.dir)
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(cell.config))
        lines = [{"step": step, "reward": 0.1 * cell.seed + 0.01 * step} for step in (1, 2, 3)]
        lost = (cell.variant, cell.seed) == ("GSPO auto", 4)
        lines[1 if lost else 2]["eval/accuracy"] = 0.9 - 0.1 * cell.seed
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        if lost and guard:
            (folder / "events.jsonl").write_text('{"step": 3, "kind": "collapse", "text": "the reward"}\n')
    assert lost and compare(study, place / "out") == 0
    assert [row["metric"] == "nan" for row in rows(place / "out")] == [False, False, False, True]
    told = json.loads((place / "out" / "results.json").read_text())
    assert [told[by][1]["difference"]["n"] for by in ("reward", "metric")] == [2, 1]
    page = (place / "out" / "compare.html").read_text()
    assert "Not in the numbers" in page and "4 of 4 cells" in page
    assert "GSPO auto / seed 4: done. eval/accuracy has no value at its last step, 3: only its reward counts." in page
    assert ("The guard stopped it" in page, "To run it again, delete" in page) == (guard, not guard)
    assert "GSPO auto against GRPO: no verdict: 1 cell has no value." in page


def test_what_the_command_line_refuses(place, capsys):
    assert main(["compare", "none.toml"]) == 2 and "no such study file" in capsys.readouterr().err
    write(place, BASE)
    assert (
        main(["compare", "study.toml", "--only", "x"]) == 2 and "matches none of runs/GRPO/seed3" in capsys.readouterr().err
    )
    assert main(["compare", "study.toml", "--dry-run", "--train.steps", "9"]) == 0
    assert capsys.readouterr().out.count("missing") == 4
