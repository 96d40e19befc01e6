import json

import pytest

from gspo.eval.replies import Mark, Reply
from gspo.eval.results import LIKE, PAIRS, THESE, describe, figures, pool, problem_rows, write
from gspo.types import Prompt

PROMPTS = [Prompt(name, f"{name}?", (), {"answer": answer}) for name, answer in (("a", "33"), ("b", "7"))]
VOTES = {"a": ["33", "33", "12", None], "b": ["8", "8", "8", "7"]}


def made(prompts=PROMPTS, n=4):
    marks, replies = {}, {}
    for prompt in prompts:
        for i, given in enumerate(VOTES[prompt.id][:n]):
            right = given == {"a": "33", "b": "7"}[prompt.id]
            marks[prompt.id, i] = Mark(prompt.id, i, right, given, "too slow" if given is None else None)
            replies[prompt.id, i] = Reply(prompt.id, i, f"\\boxed{{{given}}}", 10 * (i + 1), "length" if i == 3 else "eos")
    rows = problem_rows(prompts, n, replies, marks)
    return rows, figures(rows), replies, marks


def test_figures_of_a_benchmark():
    rows, found, _, _ = made()
    assert found["avg"] == 3 / 8
    assert found["pass"][1].mean == pytest.approx(3 / 8) and found["pass"][4].mean == 1.0
    assert found["pass"][2].mean == pytest.approx((1 - 1 / 6 + 1 / 2) / 2)
    assert found["maj"][4].mean == 0.5  # a by its vote, b not
    assert found[THESE].low < 3 / 8 < found[THESE].high and found[LIKE].low < found[THESE].low
    assert (found["truncated"], found["tokens"], found["failed"], found["answered"]) == (0.25, 25, 1, 7 / 8)
    assert [(row["id"], row["correct"], row["majority"]) for row in rows] == [("a", 2, "33"), ("b", 1, "8")]
    text = "\n".join(describe(found))
    assert "avg@4   37.50 %" in text and f"interval {LIKE}" in text
    assert "1 reply could not be scored and counts as wrong; the commonest reason: too slow" in text


def test_the_interval_over_other_problems_is_never_the_narrower():
    other = {"n": 2, "truncated": 0, "tokens": 9.0, "failed": 0, "errors": [], "refused": 0, "id": "a"}
    found = figures([other | {"correct": c} for c in [1] * 7 + [2]])  # the problems hardly differ: it is the sampling
    assert (found[LIKE].low, found[LIKE].high) == (found[THESE].low, found[THESE].high)


@pytest.mark.parametrize("tokens, mean", [([100, 0, 100, 0], "mean length 100 tokens"), ([0] * 4, "")])
def test_replies_of_unknown_length_have_no_part_in_the_mean(tokens, mean):
    """The endpoint refused them, or counts no tokens."""
    replies = {("a", i): Reply("a", i, "", count, "eos" if count else "refused") for i, count in enumerate(tokens)}
    right = {("a", i): Mark("a", i, False) for i in range(4)}
    found = figures(problem_rows([Prompt("a", "?", (), {})], 4, replies, right))
    text = "\n".join(describe(found))
    assert mean in text and ("mean length" in text) == bool(mean) and "nan" not in text


def marks(right, wrong):
    votes = [(vote, True) for vote in right] + [(vote, False) for vote in wrong]
    return [Mark("a", i, good, vote) for i, (vote, good) in enumerate(votes)]


@pytest.mark.parametrize(
    "right, wrong, share, majority",
    [
        (["7", "14/2"], ["0.5", "\\frac{1}{2}", "1/2"], 0.0, "0.5"),
        (["7", "14/2"], ["0.5", "\\frac{1}{3}", "1/2"], 0.5, "7"),
        (["7", "14/2", "21/3"], ["0.5", "0.5", "1/2"], 0.5, "7"),
        (["7"], ["8", "16/2", None], 0.0, "8"),
        (["7"], ["33\\%", "33"], 0.0, "33\\%"),  # right if 33 % were
        (["7"], ["", "{", "8"], 0.25, "7"),  # nothing that could be compared
        ([None, "7"], [None], 1.0, "7"),
        ([], [None], 0.0, None),
    ],
)
def test_a_wrong_answer_is_one_answer_however_it_is_written(right, wrong, share, majority):
    prompt = Prompt("a", "?", (), {"answer": "7"})
    given = {("a", mark.sample): mark for mark in marks(right, wrong)}
    (row,) = problem_rows([prompt], len(given), {key: Reply(*key, "", 1, "eos") for key in given}, given)
    assert (figures([row])["maj"][len(given)].mean, row["majority"]) == (share, majority)
    assert row["answered"] == sum(vote is not None for vote in right + wrong)


def test_votes_that_all_differ_cost_little(monkeypatch):
    compared = []
    monkeypatch.setattr("gspo.eval.results.same", lambda *pair: compared.append(pair))
    integers = [str(i) for i in range(300)]
    assert pool(marks([], integers)) == integers and not compared
    others = [f"1/{i}" for i in range(300)] + ["x" * 10**5, "x" * 10**5 + "+0"]
    assert pool(marks([], others)) == others and len(compared) == 2 * PAIRS


def test_the_files_are_readable_by_others(tmp_path):
    rows, found, replies, marks = made(n=1)
    manifest = {"benchmark": "aime24", "sampling": {"temperature": 0.6}}
    write(tmp_path, manifest, found, rows, PROMPTS, replies, marks, {"rating": []})
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["figures"][THESE] == [None, None] and results["rating"] == []
    assert results["figures"]["pass"]["1"].keys() == {"value", "low", "high"}
    assert results["results"]["aime24"]["avg@1,none"] == 0.5
    first = json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])
    assert (first["doc_id"], first["target"], first["resps"], first["filtered_resps"], first["exact_match"]) == (
        0, "33", [["\\boxed{33}"]], ["33"], 1.0,
    )  # fmt: skip
    assert {"doc_hash", "prompt_hash", "target_hash", "arguments", "filter", "metrics"} <= first.keys()


def test_benchmarks_without_answers_have_no_vote():
    prompts = [Prompt(prompt.id, "?", (), {"tests": []}) for prompt in PROMPTS]
    rows, found, _, _ = made(prompts)
    assert "maj" not in found and "majority" not in rows[0] and found["avg"] == 3 / 8
