"""Where the queries of stages and of a refresh come from, what is left out of them, and what is refused at the start."""

import dataclasses
import json
import re

import pytest

from gspo.assembly.models import room
from gspo.assembly.queries import OtherSources, curriculum
from gspo.backends.hf.files import outline
from gspo.cli.main import main
from gspo.config.files import from_dict
from gspo.config.stages import RefreshConfig
from gspo.data.chat_template import Encoder
from gspo.data.decontamination import Overlap
from gspo.data.prompts import load_prompts
from gspo.data.splits import read_stages, read_tables
from gspo.interfaces import RefreshFailed
from tests.tiny_run import ROWS, model
from tests.training.whole import lines, numbers, train

HELD_OUT = [row["prompt"] for row in ROWS[-4:]]
CALLS = []


def new(step):
    """Rows of which the last four are held out, and one is of a benchmark."""
    CALLS.append(step)
    own = [{"prompt": f"{step}+{i}?", "answer": "a"} for i in range(6)]
    return [*own, {"prompt": "0 1 2 3 4 5 6 7 8 9", "answer": "a"}, *ROWS[-4:]]


def fails(step):
    """Works at the start, and not later."""
    if step > 2 or CALLS.count("fails"):
        raise OSError("the disk is gone")
    CALLS.append("fails")
    return new(step)


def wrong(rows):
    return rows


def not_json(step):
    return [{"prompt": "1+1=", "answer": {1, 2}}]


def none(step):
    return []


def only_held_out(step):
    return ROWS[-4:]


def others(**tables):
    tables = {"task": {"source": "rows", "system": ""}, "eval": {"num_prompts": 4}} | tables
    config, tiny = from_dict(tables), model()
    made = outline(tiny.model, tiny.tokenizer)
    known = Overlap(config.task)
    tables = read_tables(config.task, config.eval, ROWS)
    prompts, held_out = load_prompts(config.task, tables, Encoder(made.tokenizer, config.task))
    stages = read_stages(config.task, config.stage, {})
    return config, prompts, OtherSources(config, made, known, held_out, lambda prompts: None, stages)


SHORT = {"max_completion_length": 8}


def test_held_out_prompts_and_those_of_benchmarks_never_come_in(tmp_path):
    (tmp_path / "b.txt").write_text("say 1 2 3 4 5 6 7 8\n")
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new(5)))
    stage = {"at": 9, "source": str(tmp_path / "more.jsonl")}
    task = {"source": "rows", "system": "", "benchmarks": [str(tmp_path / "b.txt")]}
    config, prompts, made = others(task=task, stage=[stage], rollout=SHORT)
    queries = curriculum(config, prompts, made)
    assert [p.messages for p in queries.pools["stage9"].prompts] == [f"5+{i}?" for i in range(6)]
    assert [p.id for p in queries.pools["stage9"].prompts] == [f"stage9-{i}" for i in range(6)]
    rules = RefreshConfig(every=6, source=f"{__name__}:new")
    fresh = dataclasses.replace(made, config=dataclasses.replace(config, refresh=rules))
    assert [p.messages for p in fresh.made("refresh6", 6).prompts] == [f"6+{i}?" for i in range(6)]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"stage": [{"at": 5, "max_completion_length": 64}]}, r"stage\[0\]\.max_completion_length = 64 leaves no room"),
        ({"refresh": {"every": 2, "source": f"{__name__}:not_json"}}, "gave no rows after step 2: TypeError: .*set"),
        ({"refresh": {"every": 2, "source": f"{__name__}:none"}}, "gave no rows after step 2: .*there are no rows"),
        ({"refresh": {"every": 2, "source": f"{__name__}:only_held_out"}}, "no row is left to train on: each of"),
        ({"refresh": {"every": 2, "drop_above": 0.5, "keep": 99}}, "refresh.keep = 99: train has only 36 queries"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_sampled(tables, message):
    config, prompts, made = others(**{"rollout": SHORT} | tables)
    with pytest.raises(ValueError, match=message):
        room(config, made.outline.context_length)
        curriculum(config, prompts, made)


FILE = """
model = {path = "some/model"}
task = {source = "rows.jsonl", benchmarks = []}
reward = {functions = ["exact"]}
train = {steps = 9}
"""
STAGE = "\n[[stage]]\nat = 2\nsource = "
REFRESH = "\n[refresh]\nevery = 2\nsource = "


@pytest.mark.parametrize(
    ("table", "source", "message"),
    [
        (STAGE, "row.jsonl", r"stage\[0\].source = 'row.jsonl': there is no such file in .*, did you mean rows.jsonl?"),
        (STAGE, "half.jsonl", "half.jsonl, line 2: not valid JSON"),
        (STAGE, "hard.txt", r"stage\[0\].source = 'hard.txt': files can be .jsonl, .json, .parquet, .csv, not .txt"),
        (STAGE, "gone:rows", r"stage\[0\].source = 'gone:rows': there is no module 'gone'"),
        (STAGE, "benchmark:gone", r"stage\[0\].source = 'benchmark:gone': benchmark 'gone': is none of aime24"),
        (STAGE, "reasoning_gym:gone", r"stage\[0\].source = 'reasoning_gym:gone': reasoning-gym has no such task"),
        (REFRESH, "rows.jsonl", "refresh.source = 'rows.jsonl': expected module:function"),
        (REFRESH, f"{__name__}:wrong", "refresh.source = .* cannot be called with step = 2: .*'rows'"),
    ],
)
def test_a_source_that_is_not_there_is_told_before_a_model_is_asked_for(
    table, source, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "half.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"pro')
    (tmp_path / "run.toml").write_text(f'{FILE}{table}"{source}"\n')
    assert main(["train", "run.toml"]) == 2
    heard = capsys.readouterr()
    assert re.search(f"^gspo: error: {message}", heard.err, re.MULTILINE), heard.err
    assert not heard.out


def test_a_stage_must_fit_vllms_context_too():
    vllm = {"engine": "vllm", "engine_args": {"max_model_len": 48}}
    stage = {"at": 5, "max_completion_length": 50}
    assert room(from_dict({"stage": [stage]}), 400) == 400 - 256
    assert room(from_dict({"rollout": SHORT, "stage": [stage]}), 64) == 14
    message = r"stage\[0\]\.max_completion_length = 50 leaves no room .*vLLM's context .* 48 tokens"
    with pytest.raises(ValueError, match=message):
        room(from_dict({"rollout": SHORT, "sampler": vllm, "stage": [stage]}), 64)
    assert room(from_dict({"rollout": SHORT, "sampler": vllm}), 64) == 40
    dashes = vllm | {"engine_args": {"max-model-len": 40}}
    assert room(from_dict({"rollout": SHORT, "sampler": dashes}), 64) == 32


RUN = {"train": {"steps": 6, "save_every": 3}, "eval": {"every": 0, "num_prompts": 4}}


def test_a_run_on_new_queries_resumes_bit_for_bit(tmp_path):
    run = RUN | {"refresh": {"every": 2, "source": f"{__name__}:new"}}
    folder = train(tmp_path / "run", **run).folder
    whole, rollouts = numbers(folder), (folder / "rollouts.jsonl").read_bytes()
    names = {r["step"]: r["prompt_id"].partition("-")[0] for r in lines(folder / "rollouts.jsonl")}
    assert names == {1: "train", 2: "train", 3: "refresh2", 4: "refresh2", 5: "refresh4", 6: "refresh4"}
    assert not {r["prompt"] for r in lines(folder / "rollouts.jsonl")} & set(HELD_OUT)
    assert [line["queries/new"] for line in whole] == [0, 0, 7, 0, 6, 0]  # one of them came before
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone")
    CALLS.clear()
    train(folder, resume=True, **run)
    assert CALLS == [2, 4]  # the trial at the start, and what is new
    assert numbers(folder) == whole and (folder / "rollouts.jsonl").read_bytes() == rollouts


def test_a_function_that_fails_later_ends_the_run_with_its_work(tmp_path):
    run = RUN | {"refresh": {"every": 2, "source": f"{__name__}:fails"}, "train": {"steps": 6, "save_every": 50}}
    with pytest.raises(RefreshFailed, match=r"gave no rows after step 2: OSError: the disk is gone"):
        train(tmp_path / "run", **run)
    assert (tmp_path / "run" / "checkpoints" / "step_000002").exists()
    mended = RUN | {"refresh": {"every": 2, "source": f"{__name__}:fails"}}
    CALLS.clear()
    with pytest.raises(RefreshFailed):
        train(tmp_path / "run", resume=True, **mended)
    assert [event["step"] for event in lines(tmp_path / "run" / "events.jsonl") if event["kind"] == "error"] == [3]
