"""Whole evaluations: a tiny model and an endpoint, kills, resumes, comparisons."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from fastapi.responses import JSONResponse

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.cli.main import main
from gspo.sandbox import drivers
from tests.compare.forked import ForkedGspo
from tests.patience import PATIENCE
from tests.rewards.endpoint import listening, said
from tests.sandbox.boxes import without_compiler

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


def of_rows(folder, benchmark, rows, *more):
    """The command for rows of a benchmark at an endpoint whose --url is to be added."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--benchmark", benchmark, "--data", str(folder / "rows.jsonl"), "--dir", str(folder / "out")]
    return ["eval", "any", *given, *more, "--url"]


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
    assert len(results["manifest"]["weights"]) == 64 and 0 <= results["results"]["aime24"]["avg@2,none"] < 0.2
    samples = [json.loads(line) for line in (first / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 30 and len(samples[0]["resps"][0]) == 2 and samples[7]["target"] == "204"
    page = (first / "benchmark.html").read_text()
    assert "over problems like these" in page and "2024-I-7" in page and page.count("<figure ") == 2


def test_a_kill_at_any_moment_loses_no_reply(place, first, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "gspo", *words(place, out, "--sampler.batch_size", "4")]
    process = ForkedGspo(command, stdout=subprocess.DEVNULL)
    path = out / "replies.jsonl"
    while process.poll() is None and path_size(path) < 2000:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    there = path.read_bytes()
    assert b"\n" in there and not (out / "results.json").exists()
    assert main(command[3:]) == 0
    assert path.read_bytes().startswith(there[: there.rfind(b"\n") + 1])
    found, uninterrupted = ({(r["problem"], r["sample"]): r["text"] for r in replies(folder)} for folder in (out, first))
    assert found == uninterrupted and len(replies(out)) == len(found) == 60


def path_size(path):
    return path.stat().st_size if path.exists() else 0


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


def test_an_endpoint_whose_template_begins_the_thinking_is_scored_as_a_model_here(place, tmp_path):
    """A reply that was cut off in its thoughts is wrong, also if the right answer is in them."""

    def answer(body):
        ends = body["messages"][0]["content"].startswith("0 + 1?")
        thought = "So try 101: \\boxed{101}? Wait, that"
        return said(thought + " is 100.</think>\\boxed{100}") if ends else said(thought, finish_reason="length")

    rows = [json.loads(line) for line in (place / "aime.jsonl").read_text().splitlines()[:2]]
    with listening(answer) as server:
        assert main([*of_rows(tmp_path, "aime24", rows, "--eval.num_generations", "1"), server.url]) == 0
    problems = json.loads((tmp_path / "out" / "results.json").read_text())["problems"]
    assert [(row["correct"], row["majority"]) for row in problems] == [(1, "100"), (0, None)]


def test_an_endpoint_that_fails_keeps_what_it_gave_and_goes_on(place, tmp_path, capsys):
    out, served = tmp_path / "failing", []

    def answer(body):
        served.append(body)
        return said("\\boxed{1}") if len(served) <= 20 else {"choices": []}

    with listening(answer) as server:
        again = words(place, out, "--url", server.url, "--sampler.batch_size", "2", model="any")
        assert main(again) == 1
        assert "the same command goes on" in capsys.readouterr().err
        assert len(replies(out)) == 20 and len(served) < 60  # what fails everywhere is not asked for everywhere
        server.answer = lambda body: said("\\boxed{2}")
        assert main(again) == 0
    assert len(replies(out)) == 60 and {reply["text"] for reply in replies(out)} == {"\\boxed{1}", "\\boxed{2}"}


def refusing(*problems):
    """A server that refuses these problems at once, and has replies to the others after a while."""

    def answer(body):
        question = body["messages"][0]["content"]
        if any(question.startswith(f"{problem} + 1?") for problem in problems):
            return JSONResponse({"error": {"message": "too long for me"}}, status_code=400)
        return 0.3, said("\\boxed{1}")

    return answer


def test_a_problem_that_the_server_refuses_costs_no_other_its_replies(place, tmp_path, capsys):
    out = tmp_path / "refused"
    with listening(refusing(0, 3)) as server:
        given = words(place, out, "--url", server.url, model="any")
        assert main(given) == 1
        errors = capsys.readouterr().err
        assert "it refused problems 2024-I-0, 2024-I-3 (HTTP 400" in errors and "--refused-as-wrong" in errors
        assert "4 of 60 replies are missing" in errors and len(replies(out)) == 56
        assert not (out / "results.json").exists()
        assert main([*given, "--refused-as-wrong"]) == 0
        assert main(given) == 0 and sum("too long" in str(body) for body in server.asked) == 0
    text = capsys.readouterr().out
    told = "4 replies could not be scored and count as wrong; the endpoint refused to answer problems 2024-I-0, 2024-I-3"
    assert told in text and told in (out / "benchmark.html").read_text()
    assert json.loads((out / "results.json").read_text())["figures"]["refused"] == ["2024-I-0", "2024-I-3"]


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
        (["--eval.max_completion_length", "250"], "only 6 fit"),
        (["--eval.temperature", "0.5"], "holds another evaluation: sampling was"),
        (["--against", "nowhere"], "is not the folder of an evaluation"),
        (["--contests", "nowhere.jsonl"], "its problems are of no contest"),
        (["--as-published"], "--as-published has no effect without --contests"),
        (["--split", "test"], "has none to choose; leave it out"),
        (["--key-variable", "KEY"], "has no effect without --url"),
        (["--refused-as-wrong"], "--refused-as-wrong has no effect without --url"),
        (["--out", "x.jsonl"], "--out: has no effect beside --benchmark"),
        (["--data", "aime.txt"], "--data = 'aime.txt': files can be"),
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


HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Return 1.\"\"\"\n", "entry_point": "one",
    "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
}  # fmt: skip


@pytest.mark.parametrize(
    "asked, drivers", [([], ("bwrap", "landlock")), (["--code.sandbox", "landlock"], ("landlock",)),
                       (["--code.sandbox", "none"], ("none",))]
)  # fmt: skip
def test_replies_that_are_programs_are_run_in_the_sandbox_that_is_asked_for(asked, drivers, tmp_path, capsys):
    command = of_rows(tmp_path, "humaneval", [HUMANEVAL, {**HUMANEVAL, "task_id": "HumanEval/1"}], *asked)
    with listening(lambda body: said("```python\ndef one():\n    return 1\n```")) as server:
        assert main([*command, server.url]) == 0
    text = "".join(capsys.readouterr())
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


def test_a_codeforces_rating_from_eight_submissions(tmp_path, capsys):
    rows = [CODEFORCES | {"id": f"1/{index}", "index": index} for index in "AB"]
    (tmp_path / "contests.jsonl").write_text(json.dumps(CONTEST) + "\n")
    more = ["--contests", str(tmp_path / "contests.jsonl"), "--eval.num_generations", "3"]
    with listening(lambda body: said("```python\nprint(sum(map(int, input().split())))\n```")) as server:
        assert main([*of_rows(tmp_path, "codeforces", rows, *more), server.url]) == 0
    text = capsys.readouterr().out
    assert "CodeElo-style rating, local tests: " in text and "over 1 contest." in text
    (rated,) = json.loads((tmp_path / "out/results.json").read_text())["rating"]
    assert rated["place"] == 1 and rated["bound"] == "at least" and rated["of"] == 201


def test_problems_that_cannot_be_judged_are_left_out_and_said(tmp_path, capsys, monkeypatch):
    """From a configuration and a split of a data set, as from the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [CODEFORCES | {"id": f"1/{index}", "index": index, "official_tests_complete": index != "B"} for index in "ABC"]
    rows[2]["interaction_format"] = "Ask."
    rows.append(CODEFORCES | {"id": "1/D", "index": "D", "generated_checker": "print("})
    rows = [{"interaction_format": None, "generated_checker": None} | row for row in rows]
    source = tmp_path / "set"
    source.mkdir()
    datasets.Dataset.from_list(rows).to_json(source / "held.jsonl")
    (source / "README.md").write_text(
        "---\nconfigs:\n- config_name: verifiable\n  data_files:\n  - split: held\n    path: held.jsonl\n---\n"
    )
    given = ["--benchmark", "codeforces", "--data", str(source), "--dir", str(tmp_path / "out")]
    given += ["--name", "verifiable", "--split", "held", "--eval.num_generations", "1"]
    with listening(lambda body: said("```python\nprint(sum(map(int, input().split())))\n```")) as server:
        assert main(["eval", "any", *given, "--url", server.url]) == 0
        assert len(server.asked) == 1
    text = " ".join("".join(capsys.readouterr()).split())
    told = "3 problems left out (1 official_tests_complete is not true, 1 interactive, 1 generated_checker fails)"
    assert "2 problems left out (1 official_tests_complete is not true, 1 interactive), of 4" in text
    assert "problem 1/D is left out: generated_checker fails" in text and "SyntaxError" in text
    assert f"{told}." in text and "avg@1 100.00 %" in text
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["data"]["left_out"] == {
        "official_tests_complete is not true": 1, "interactive": 1, "generated_checker fails": 1,
    }  # fmt: skip
    assert manifest["data"]["options"] == {"data": str(source), "name": "verifiable", "split": "held"}
    assert told in (tmp_path / "out/benchmark.html").read_text()


def test_problems_whose_own_solution_is_wrong_are_known_before_sampling(tmp_path, capsys):
    wrong = HUMANEVAL | {"task_id": "HumanEval/1", "canonical_solution": "    return 2\n"}
    with listening(lambda body: said("```python\ndef one():\n    return 1\n```")) as server:
        assert main([*of_rows(tmp_path, "humaneval", [wrong]), server.url]) == 2
        assert not server.asked and not (tmp_path / "out").exists()
        assert "there is no problem that can be judged: 1 problem left out" in " ".join(capsys.readouterr().err.split())


def test_without_compiler_or_sandbox_nothing_is_sampled(tmp_path, capsys, monkeypatch):
    command = [*of_rows(tmp_path, "codeforces", [CODEFORCES | {"id": "1/A", "index": "A"}]), "http://127.0.0.1:9/v1"]
    other = tmp_path / "bin" / "g++"  # one that no sandbox uses
    other.parent.mkdir()
    shutil.copy("/bin/true", other)
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    words = [*without_compiler(), sys.executable, "-m", "gspo", *command]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == 1 and "C++ programs need /usr/bin/g++: install the package g++" in ended.stderr
    assert "codeforces" in ended.stderr and not (tmp_path / "out").exists()

    monkeypatch.setattr(drivers, "bwrap", lambda: None)
    monkeypatch.setattr(drivers, "pythons", list)
    assert main(command) == 1
    errors = capsys.readouterr().err
    assert "no sandbox works here" in errors and 'code.sandbox = "none"' in errors and not (tmp_path / "out").exists()


def test_contests_that_do_not_fit_are_refused_before_anything_is_sampled(tmp_path, capsys):
    rows, file = [CODEFORCES | {"id": "1/C", "index": "C"}], str(tmp_path / "contests.jsonl")
    command = [*of_rows(tmp_path, "codeforces", rows, "--contests", file), "http://127.0.0.1:9/v1"]
    assert main(command) == 2
    assert f"--contests {file}: there is no such file" in capsys.readouterr().err
    (tmp_path / "contests.jsonl").write_text(json.dumps(CONTEST) + "\n")
    assert main(command) == 2 and not (tmp_path / "out").exists()
    told = f"--contests {file}: contest 1: the benchmark has its problem C, and its own list does not"
    assert told in " ".join(capsys.readouterr().err.split())
