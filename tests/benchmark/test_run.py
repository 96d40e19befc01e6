"""Whole evaluations: a tiny model and an endpoint, kills, resumes, comparisons."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.cli import main
from gspo.rewards.sandbox import drivers
from tests.rewards.endpoint import listening, said

SMALL = {"hidden": 32, "layers": 2, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 256}
SETTINGS = ["--eval.num_generations", "2", "--eval.max_completion_length", "24"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    pieces = [chr(i) for i in range(32, 127)] + ["\n"]
    made = build_tiny(tiny_qwen3_moe(**SMALL), longest_match_tokenizer(pieces), 0)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    rows = [{"ID": f"2024-I-{i}", "Problem": f"{i} + 1?", "Solution": "", "Answer": i + 100} for i in range(30)]
    rows[7]["Answer"] = 204
    (folder / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def words(place, out, *more, model=None):
    given = [model or str(place / "model"), "--benchmark", "aime24", "--data", str(place / "aime.jsonl"), "--dir", str(out)]
    return ["eval", *given, *SETTINGS, *([] if model else ["--model.device", "cpu"]), *more]


def replies(out):
    return [json.loads(line) for line in (out / "replies.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def first(place):
    out = place / "first"
    assert main(words(place, out)) == 0
    return out


def test_an_evaluation_leaves_all_that_it_says(first):
    assert len({(reply["problem"], reply["sample"]) for reply in replies(first)}) == 60
    results = json.loads((first / "results.json").read_text())
    assert results["figures"]["problems"] == 30 and results["manifest"]["data"]["problems"] == 30
    assert 0 <= results["results"]["aime24"]["avg@2,none"] < 0.2
    samples = [json.loads(line) for line in (first / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 30 and len(samples[0]["resps"][0]) == 2 and samples[7]["target"] == "204"
    page = (first / "benchmark.html").read_text()
    assert "over problems like these" in page and "2024-I-7" in page and page.count("<figure>") == 2


def test_all_that_is_there_is_not_sampled_again(place, first, capsys):
    before = (first / "replies.jsonl").read_bytes()
    assert main(words(place, first)) == 0
    assert "60 replies are there" in capsys.readouterr().out
    assert (first / "replies.jsonl").read_bytes() == before


def test_what_is_missing_is_sampled_as_it_was(place, first, tmp_path):
    out = tmp_path / "again"
    out.mkdir()
    whole = (first / "replies.jsonl").read_bytes()
    (out / "manifest.json").write_bytes((first / "manifest.json").read_bytes())
    (out / "replies.jsonl").write_bytes(whole[: len(whole) // 2])
    assert main(words(place, out)) == 0
    key = lambda reply: (reply["problem"], reply["sample"])  # noqa: E731
    assert sorted(replies(out), key=key) == sorted(replies(first), key=key)


@pytest.mark.timeout(300)
def test_a_kill_at_any_moment_loses_no_reply(place, first, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "gspo", *words(place, out, "--sampler.batch_size", "4")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    path, begin = out / "replies.jsonl", time.monotonic()
    while time.monotonic() - begin < 120 and process.poll() is None and (not path.exists() or path.stat().st_size < 2000):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = path.read_bytes()
    assert b"\n" in there and not (out / "results.json").exists()
    assert main(command[3:]) == 0
    assert path.read_bytes().startswith(there[: there.rfind(b"\n") + 1])
    found = replies(out)
    assert len(found) == len({(reply["problem"], reply["sample"]) for reply in found}) == 60
    assert {(r["problem"], r["sample"]): r["text"] for r in found} == {
        (r["problem"], r["sample"]): r["text"] for r in replies(first)
    }


def test_answering_204_everywhere_scores_one_problem_of_thirty(place, tmp_path, capsys):
    out = tmp_path / "204"
    with listening(lambda body: said("So it is \\boxed{204}.")) as server:
        assert main(words(place, out, "--url", server.url, "--preset", "qwen3", model="any")) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["figures"]["avg"] == results["figures"]["maj"]["2"]["value"] == pytest.approx(1 / 30)
    assert [row["id"] for row in results["problems"] if row["correct"]] == ["2024-I-7"]
    assert server.asked[0]["temperature"] == 0.6 and server.asked[0]["max_tokens"] == 24
    text = capsys.readouterr().out
    assert "avg@2   3.33 %" in text and "with an answer 100.0 %" in text


def test_an_endpoint_that_fails_keeps_what_it_gave_and_goes_on(place, tmp_path, capsys):
    out, served = tmp_path / "failing", []

    def answer(body):
        served.append(body)
        return said("\\boxed{1}") if len(served) <= 20 else {"choices": []}

    with listening(answer) as server:
        again = words(place, out, "--url", server.url, "--sampler.batch_size", "2", model="any")
        assert main(again) == 1
        assert "the same command goes on" in capsys.readouterr().err
        assert 10 <= len(replies(out)) <= 20
        server.answer = lambda body: said("\\boxed{2}")
        assert main(again) == 0
    assert len(replies(out)) == 60 and {reply["text"] for reply in replies(out)} == {"\\boxed{1}", "\\boxed{2}"}


def test_two_evaluations_are_compared(place, first, tmp_path, capsys):
    out = tmp_path / "better"

    def right(body):
        return said(f"\\boxed{{{int(body['messages'][0]['content'].split()[0]) + 100}}}")

    with listening(right) as server:
        assert main(words(place, out, "--url", server.url, "--against", str(first), model="any")) == 0
    text = capsys.readouterr().out
    assert "any is better than" in text and "at 30 problems" in text
    assert "any is better than" in (out / "benchmark.html").read_text()


@pytest.mark.parametrize(
    "more, why",
    [
        (["--eval.max_completion_length", "300"], "leaves no room for a prompt"),
        (["--eval.max_completion_length", "250"], "only 6 fit"),
        (["--eval.temperature", "0.5"], "holds another evaluation: sampling was"),
        (["--against", "nowhere"], "is not the folder of an evaluation"),
        (["--contests", "nowhere.jsonl"], "its problems are of no contest"),
        (["--as-published"], "--as-published has no effect without --contests"),
        (["--release", "v5"], "has no such option"),
        (["--key-variable", "KEY"], "has no effect without --url"),
        (["--out", "x.jsonl"], "--out: has no effect beside --benchmark"),
        (["--data", "aime.txt"], "--data = 'aime.txt': files can be"),
        (["--preset", "qwen"], "is none of qwen3"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sampled(place, first, capsys, more, why):
    before = sorted(path.name for path in first.iterdir())
    assert main(words(place, first, *more)) == 2
    assert why in capsys.readouterr().err
    assert sorted(path.name for path in first.iterdir()) == before


def test_words_that_need_a_benchmark_are_refused_without_one(capsys):
    assert main(["eval", "run.toml", "--preset", "qwen3"]) == 2
    assert "--preset: is for a benchmark" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_ctrl_c_says_how_to_go_on(place, tmp_path):
    out = tmp_path / "stopped"
    with listening(lambda body: (1.0, said("\\boxed{1}"))) as server:
        given = words(place, out, "--url", server.url, "--sampler.batch_size", "4", model="any")
        process = subprocess.Popen([sys.executable, "-m", "gspo", *given], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        while time.monotonic() - begin < 120 and (not (out / "replies.jsonl").exists() or not replies(out)):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; the same command goes on with what is left" in errors and b"Traceback" not in errors


HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Return 1.\"\"\"\n", "entry_point": "one",
    "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
}  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asked, drivers", [([], ("bwrap", "landlock")), (["--code.sandbox", "landlock"], ("landlock",)),
                       (["--code.sandbox", "none"], ("none",))]
)  # fmt: skip
def test_replies_that_are_programs_are_run_in_the_sandbox_that_is_asked_for(asked, drivers, tmp_path, capsys):
    rows = [HUMANEVAL, {**HUMANEVAL, "task_id": "HumanEval/1"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--benchmark", "humaneval", "--data", str(tmp_path / "rows.jsonl"), "--dir", str(tmp_path / "out")]
    with listening(lambda body: said("```python\ndef one():\n    return 1\n```")) as server:
        assert main(["eval", "any", *given, *asked, "--url", server.url]) == 0
    text = capsys.readouterr().out
    assert "avg@1   100.00 %" in text and ("programs run in no sandbox" in text) == ("none" in asked)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["scoring"]["sandbox"] in drivers and manifest["scoring"]["limits"]["seconds"] == 3.0


CODEFORCES = {
    "contest_id": "1", "title": "Sum", "description": "Add.", "official_tests": [{"input": "1 2\n", "output": "3\n"}],
    "official_tests_complete": True,
}  # fmt: skip
PEOPLE = [(f"p{i}", 1000 + 5 * i) for i in range(201)]
CONTEST = {
    "contest_id": "1",
    "problems": [{"index": "A", "points": 500}, {"index": "B", "points": 1000}],
    "standings": [{"handle": name, "points": 1500 if rating > 1900 else 0} for name, rating in PEOPLE],
    "rating_changes": [{"handle": name, "oldRating": rating} for name, rating in PEOPLE],
}


@pytest.mark.timeout(300)
def test_a_codeforces_rating_from_eight_submissions(tmp_path, capsys):
    rows = [CODEFORCES | {"id": f"1/{index}", "index": index} for index in "AB"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "contests.jsonl").write_text(json.dumps(CONTEST) + "\n")
    given = ["--benchmark", "codeforces", "--data", str(tmp_path / "rows.jsonl"), "--dir", str(tmp_path / "out")]
    given += ["--contests", str(tmp_path / "contests.jsonl"), "--eval.num_generations", "3"]
    with listening(lambda body: said("```python\nprint(sum(map(int, input().split())))\n```")) as server:
        assert main(["eval", "any", *given, "--url", server.url]) == 0
    text = capsys.readouterr().out
    assert "CodeElo-style rating, local tests: " in text and "over 1 contest." in text
    (rated,) = json.loads((tmp_path / "out/results.json").read_text())["rating"]
    assert rated["place"] == 1 and rated["bound"] == "at least" and rated["of"] == 201


def test_without_compiler_or_sandbox_nothing_is_sampled(tmp_path, capsys, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps(CODEFORCES | {"id": "1/A", "index": "A"}) + "\n")
    given = ["--benchmark", "codeforces", "--data", str(tmp_path / "rows.jsonl"), "--dir", str(tmp_path / "out")]
    given += ["--url", "http://127.0.0.1:9/v1"]
    with monkeypatch.context() as patch:
        which = shutil.which
        patch.setattr("shutil.which", lambda name, *more, **path: None if name == "g++" else which(name, *more, **path))
        assert main(["eval", "any", *given]) == 2
    assert "needs the compiler g++" in capsys.readouterr().err

    monkeypatch.setattr(drivers, "bwrap", lambda: None)
    monkeypatch.setattr(drivers, "pythons", list)
    assert main(["eval", "any", *given]) == 1
    errors = capsys.readouterr().err
    assert "no sandbox works here" in errors and 'code.sandbox = "none"' in errors and not (tmp_path / "out").exists()


def test_contests_that_do_not_fit_are_refused_before_anything_is_sampled(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(json.dumps(CODEFORCES | {"id": "1/C", "index": "C"}) + "\n")
    given = ["--benchmark", "codeforces", "--data", str(tmp_path / "rows.jsonl"), "--dir", str(tmp_path / "out")]
    given += ["--contests", str(tmp_path / "contests.jsonl"), "--url", "http://127.0.0.1:9/v1"]
    for contest, why in (
        (CONTEST, "the benchmark has its problem C, and its own list does not"),
        (CONTEST | {"contest_id": "2"}, "none of these 1 contests has a problem of the benchmark"),
        (CONTEST | {"standings": []}, "standings is empty"),
    ):
        (tmp_path / "contests.jsonl").write_text(json.dumps(contest) + "\n")
        assert main(["eval", "any", *given]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
