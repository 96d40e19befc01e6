"""Whole runs whose reward is a model's or a judge's."""

import html
import json

import pytest

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.report.read import read_lines
from tests import tiny_run
from tests.patience import PATIENCE
from tests.rewards.classifiers import saved
from tests.rewards.endpoint import listening, material, said, score
from tests.sandbox.boxes import box_of


def train(folder, functions, timeout=0.01, **sections):
    tiny = tiny_run.model()
    sections |= {"train": {"steps": 2}, "eval": {"every": 0}, "reward": {"functions": functions, "timeout": timeout}}
    settings = tiny_run.settings(folder / "run", **sections)
    result = gspo.train(tiny.model, tiny_run.ROWS, config=settings, tokenizer=tiny.tokenizer)
    return list(read_lines(folder / "run" / "metrics.jsonl")), list(read_lines(folder / "run" / "events.jsonl")), result


def test_a_run_with_a_reward_model(tmp_path):
    saved(tmp_path / "classifier")
    steps, _, _ = train(tmp_path, ["model"], reward_model={"path": str(tmp_path / "classifier")})
    assert [step["rollouts/failed"] for step in steps] == [0, 0]
    assert all(step["reward/model"] == pytest.approx(step["reward"]) and step["reward_std"] > 0 for step in steps)
    assert [step["scoring/model/too_long"] for step in steps] == [0, 0]


def share(body):
    """The share of the letter a; nothing readable for an empty completion."""
    completion = material(body)["REPLY"]
    return score(round(10 * completion.count("a") / len(completion))) if completion else said("It is empty.")


def test_a_run_with_a_judge(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-hidden-7")
    with listening(share) as endpoint:
        judge = {"model": "m", "url": endpoint.url, "rubric": "Likes a.", "key_variable": "JUDGE_KEY", "retries": 0}
        cache = {"cache": str(tmp_path / "answers")}
        steps, events, _ = train(tmp_path, ["judge", "tests.rewards.graders:length"], PATIENCE, judge=judge | cache)
    rollouts = list(read_lines(tmp_path / "run" / "rollouts.jsonl"))
    assert len(rollouts) == 64
    for rollout in rollouts:
        completion = rollout["completion"]
        expected = round(10 * completion.count("a") / len(completion)) / 10 if completion else None
        assert rollout["reward_parts"] == {"judge": expected, "length": len(completion)}
    questions = {(rollout["prompt"], rollout["completion"]) for rollout in rollouts}
    assert 0 < sum(step["scoring/judge/requests"] for step in steps) <= len(questions) + 4  # unreadable ones in each step
    assert all(step["scoring/judge/requests"] + step["scoring/judge/cached"] == 32 for step in steps)
    assert all("sk-hidden-7" not in path.read_text() for path in (tmp_path / "run").glob("*.*l"))
    assert any(not rollout["completion"] for rollout in rollouts) == any(
        "not scored" in json.dumps(event) for event in events
    )


JUDGE = {"model": "m", "rubric": "r", "key_variable": "", "reference_column": "gold"}


@pytest.mark.parametrize(
    ("functions", "sections", "message"),
    [
        (["judge"], {"judge": JUDGE}, "no column 'gold' with the right answer; set judge.reference_column to"),
        (["exact"], {"reward": {"weights": [-1e-7]}}, r"reward.weights = \[-1e-07\]: a weight is 0, or of a size between"),
    ],
)
def test_what_cannot_work_stops_before_the_run(functions, sections, message, tmp_path):
    tiny = tiny_run.model()
    settings = {"log": {"dir": str(tmp_path / "run")}} | sections
    settings["reward"] = {"functions": functions} | sections.get("reward", {})
    settings["rollout"] = {"max_completion_length": 8}
    with pytest.raises(ValueError, match=message):
        gspo.train(tiny.model, tiny_run.ROWS, config=settings, tokenizer=tiny.tokenizer)
    assert not (tmp_path / "run").exists()


COPY, REVERSE = "```\nprint(input())\n```\n", "```\nprint(input()[::-1])\n```\n"


def test_a_run_with_programs_learns_to_write_the_right_ones(tmp_path):
    sandbox = box_of("bwrap").driver
    tokenizer = longest_match_tokenizer(["0", "1", "copy ", "turn ", COPY, REVERSE])
    tiny = build_tiny(tiny_qwen3_moe(hidden=32, expert_width=32, context=32), tokenizer, 0)
    rows = [
        {"prompt": f"{word}{i:04b}", "tests": [{"input": text, "output": text[::way]} for text in (f"ab{i}", "xyz")]}
        for i in range(16)
        for word, way in (("copy ", 1), ("turn ", -1))
    ]
    settings = tiny_run.settings(
        tmp_path / "run", train={"steps": 12}, eval={"every": 12, "num_prompts": 4}, optimizer={"lr": 1e-2},
        reward={"functions": ["code"], "workers": 2}, code={"cpu_seconds": 8.0}, rollout={"max_completion_length": 2},
    )  # fmt: skip
    gspo.train(tiny.model, rows, config=settings, tokenizer=tiny.tokenizer)
    steps = [step for step in read_lines(tmp_path / "run" / "metrics.jsonl") if "reward" in step]
    assert sum(step["rollouts/failed"] for step in steps) == 0
    for one in read_lines(tmp_path / "run" / "rollouts.jsonl"):
        right, wrong = (COPY, REVERSE) if one["prompt"].startswith("copy") else (REVERSE, COPY)
        text = "\n" + one["completion"]  # a fence begins a line
        assert one["reward"] == float(text.rfind("\n" + right) > text.rfind("\n" + wrong)), one
    assert sum(step["reward"] for step in steps[-3:]) > sum(step["reward"] for step in steps[:3]) + 0.3
    texts = [event["text"] for event in read_lines(tmp_path / "run" / "events.jsonl")]
    assert f"programs run in the sandbox '{sandbox}'" in texts
    assert f"Programs run in the sandbox '{sandbox}'." in html.unescape((tmp_path / "run" / "report.html").read_text())
    metrics, _ = gspo.evaluate(tiny.model, rows[:4], config=settings, tokenizer=tiny.tokenizer)
    assert 0 <= metrics["eval/accuracy"] <= 1 and metrics["eval/failed"] == 0
