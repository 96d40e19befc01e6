"""Whole runs that sample from vLLM."""

import json

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.cli.main import main
from tests.backends.vllm.engine.servers import ENGINE, MOE, PYTHON, lines, train


def test_a_run_learns_and_resumes(tmp_path):
    folder = train(tmp_path / "run", train={"steps": 8, "save_every": 4}).folder
    steps = [line for line in lines(folder) if "loss" in line]
    assert len(steps) == 8 and steps[-1]["reward"] > steps[0]["reward"] + 0.1
    assert all(line["mismatch/kl"] < 1e-8 and line["ratio/noise_floor"] < 1e-5 and line["staleness"] == 0 for line in steps)
    assert all(0 < line["clip_ratio/tokens"] < 1 for line in steps)
    versions = {}
    for line in lines(folder, "rollouts"):
        versions.setdefault(line["step"], set()).add(line["version"])
    assert versions == {step: {step - 1} for step in range(1, 9)}
    assert (folder / "vllm.log").exists()
    more = train(tmp_path / "run", resume=True, train={"steps": 10})
    assert more.metrics["step"] == 10 and more.metrics["mismatch/kl"] < 1e-8


def test_a_wrong_argument_of_vllm_is_told_before_training(tmp_path):
    with pytest.raises(RuntimeError, match=r"vLLM ended with status 2: .*no-such-argument"):
        train(tmp_path / "run", sampler=ENGINE | {"engine_args": {"no_such_argument": 1}})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_benchmark_is_answered(tmp_path):
    build_tiny(MOE, longest_match_tokenizer([*map(chr, range(32, 127)), "\n"])).save(tmp_path / "model")
    rows = [{"problem": f"{i}+1=", "answer": i + 1} for i in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--benchmark", str(tmp_path / "sums.jsonl"), "--dir", str(tmp_path / "out"), "--eval.num_generations=3"]
    given += ["--eval.max_completion_length=20", "--task.system=", "--model.device=cpu", "--sampler.engine=vllm"]
    given += [f"--sampler.python={PYTHON}", "--sampler.engine_args={enforce_eager = true, max_model_len = 128}"]
    assert main(["eval", str(tmp_path / "model"), *given]) == 0
    replies = lines(tmp_path / "out", "replies")
    assert len({(reply["problem"], reply["sample"]) for reply in replies}) == 12
    assert len({reply["text"] for reply in replies}) > 6 and all(0 < reply["tokens"] <= 20 for reply in replies)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["manifest"]["sampling"]["engine"] == "vllm" and results["figures"]["problems"] == 4

    for name in ("results.json", "index.html"):  # as a kill leaves it, in the middle of a line
        (tmp_path / "out" / name).unlink(missing_ok=True)
    written = (tmp_path / "out/replies.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out/replies.jsonl").write_text("".join(written[:5]) + written[5][:20])
    assert main(["eval", str(tmp_path / "model"), *given]) == 0
    again = (tmp_path / "out/replies.jsonl").read_text().splitlines(keepends=True)
    assert again[:5] == written[:5] and len(again) == 12
    texts = {(reply["problem"], reply["sample"]): reply["text"] for reply in replies}
    assert {(reply["problem"], reply["sample"]): reply["text"] for reply in map(json.loads, again)} == texts
    assert json.loads((tmp_path / "out/results.json").read_text())["figures"] == results["figures"]
