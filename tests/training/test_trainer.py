"""Whole runs on a tiny mixture of experts."""

import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gspo
from gspo.backends.hf.sampler import HFSampler
from gspo.build import assemble
from gspo.learner.optimizer import Optimizer
from gspo.ports import SamplerError
from gspo.runs import checkpoint
from tests.campaign import CAMPAIGN
from tests.tiny_run import ROWS, likes_a, model, settings

REQUIRED = """
    step reward reward_std frac_reward_zero_std clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean
    clip_ratio/tokens ratio/mean ratio/std ratio/noise_floor entropy kl grad_norm lr completions/mean_length
    completions/clipped_ratio tokens time/sample time/score time/train tokens_per_second
""".split()
ROLLOUT = """
    step prompt_id group prompt completion token_ids reward reward_parts advantage version stop error
""".split()


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def numbers(folder):
    """The metrics without times and throughputs."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and k != "tokens_per_second"}
        for line in lines(folder / "metrics.jsonl")
    ]


def train(folder, resume=False, seed=0, **changes):
    tiny = model(seed)
    return gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, resume=resume, config=settings(folder, **changes))


def test_a_run_learns_and_leaves_what_it_promises(tmp_path):
    result = train(tmp_path / "run", train={"steps": 12, "save_every": 6})
    metrics = lines(result.folder / "metrics.jsonl")
    assert [m["step"] for m in metrics] == list(range(13))
    assert all(set(REQUIRED) <= set(m) for m in metrics[1:])
    assert all(m[name] is not None for m in metrics[1:] for name in REQUIRED)
    assert [m["step"] for m in metrics if "eval/accuracy" in m] == [0, 3, 6, 9, 12]
    first, last = (sum(m["reward"] for m in part) / 3 for part in (metrics[1:4], metrics[-3:]))
    assert last > first + 0.1
    rollouts = lines(result.folder / "rollouts.jsonl")
    assert len(rollouts) == 12 * 8 * 4
    assert all(set(ROLLOUT) <= set(r) for r in rollouts)
    assert [r["version"] for r in rollouts] == [i // 32 for i in range(12 * 32)]
    detailed = [r for r in rollouts if "log_ratio" in r]
    assert len(detailed) == 12 * 4
    for r in detailed:
        assert len(r["tokens"]) == len(r["logp"]) == len(r["log_ratio"]) == len(r["token_ids"])
    for name in ("config.toml", "report.html", "figures", "checkpoints/step_000012"):
        assert (result.folder / name).exists()
    assert list((result.folder / "figures").glob("*.png"))
    assert result.metrics["step"] == 12


def test_the_final_model_loads_and_is_the_trained_one(tmp_path):
    result = train(tmp_path / "run", train={"steps": 2})
    loaded = AutoModelForCausalLM.from_pretrained(result.folder / "model")
    for name, value in result.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert AutoTokenizer.from_pretrained(result.folder / "model").decode([2, 3]) == "01"


def test_first_update_is_on_policy(tmp_path):
    """One update a batch and the sampler's likelihoods: s_i is 1 up to rounding, nothing clips."""
    result = train(tmp_path / "run", algorithm={"mini_batches": 1}, train={"steps": 3})
    for m in numbers(result.folder)[1:]:
        assert m["clip_ratio/region_mean"] == 0
        assert m["ratio/noise_floor"] == pytest.approx(m["ratio/std"], abs=1e-7)
        assert m["ratio/std"] < 1e-6
        assert m["mismatch/prob_max"] < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "gspo_token"}},
        {"algorithm": {"name": "grpo", "epochs": 2}},
        {"algorithm": {"name": "dr_grpo", "beta": 0.1, "kl_estimator": "k2"}},
        {"algorithm": {"name": "dapo", "old_logprobs": "recompute"}},
        {"train": {"layout": "packed", "micro_batch_tokens": 64}},
        {"train": {"layout": "shared", "gradient_checkpointing": True}},
        {"train": {"gradient_checkpointing": True}},
        {"rollout": {"temperature": 0.7, "mask_truncated_completions": True}},
        {"algorithm": {"name": "luspo", "epsilon": "auto"}},
        {"algorithm": {"name": "gmpo", "correction": "seq_mis", "old_logprobs": "recompute"}},
        {"algorithm": {"name": "cispo"}, "rollout": {"delay": 1}},
        {"algorithm": {"name": "sapo", "constants": {"tau_neg": 1.2}}},
        {"algorithm": {"name": "dppo_tv"}},
        {"algorithm": {"name": "ppo", "critic": "copy", "epochs": 2}, "train": {"layout": "packed"}},
        {"algorithm": {"name": "dppo_kl"}, "sampler": {"quantize": "int8"}},
        {"algorithm": {"name": "minirl", "router_replay": "R3", "old_logprobs": "recompute"}},
        {
            "lora": {"rank": 4},
            "algorithm": {"beta": 0.1},
            "optimizer": {"lr": 0.03},
            "train": {"gradient_checkpointing": True},
        },
        {"lora": {"rank": 2, "targets": ["q_proj"]}, "algorithm": {"name": "ppo", "critic": "copy"}},
    ],
    ids=str,
)
def test_every_setting_runs(tmp_path, changes):
    result = train(tmp_path / "run", **changes | {"train": {"steps": 3} | changes.get("train", {})})
    steps = numbers(result.folder)[1:]
    assert len(steps) == 3
    assert all(m["updates/skipped"] == 0 for m in steps)
    if changes.get("algorithm", {}).get("beta"):
        assert steps[0]["kl_ref"] == pytest.approx(0, abs=1e-2) != steps[-1]["kl_ref"]


def test_layout_micro_batches_and_checkpointing_change_no_number(tmp_path):
    once = {"steps": 1}  # later steps may sample another token after a rounding
    plain = numbers(train(tmp_path / "a", train=once).folder)
    for i, changes in enumerate(
        (
            {"layout": "packed"},
            {"layout": "shared"},
            {"micro_batch_tokens": 40},
            {"gradient_checkpointing": True, "layout": "packed"},
            {"gradient_checkpointing": True, "layout": "shared", "micro_batch_tokens": 40},
        )
    ):
        other = numbers(train(tmp_path / f"b{i}", train=once | changes).folder)
        for m, n in zip(plain, other, strict=True):
            for name in set(m) - {"guard/signals"}:
                assert n[name] == pytest.approx(m[name], rel=2e-3, abs=2e-5, nan_ok=True), name


def test_seeds(tmp_path):
    one, same = (numbers(train(tmp_path / name, train={"steps": 3}).folder) for name in ("a", "b"))
    other = numbers(train(tmp_path / "c", train={"steps": 3, "seed": 2}).folder)
    assert one == same
    assert one[1]["reward"] != other[1]["reward"]


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": {"beta": 0.05}}, {"algorithm": {"beta": 0.05}, "lora": {"rank": 4}}], ids=str
)
def test_resume_is_bit_equal(tmp_path, changes):
    schedule = {"schedule": "cosine", "warmup": 3}
    folder = train(tmp_path / "run", optimizer=schedule, **changes).folder
    whole, rollouts = numbers(folder), (folder / "rollouts.jsonl").read_text()
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone")  # go on from step 4
    assert checkpoint.latest(folder / "checkpoints").name == "step_000004"
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "half a li')
    train(folder, resume=True, optimizer=schedule, **changes)
    assert numbers(folder) == whole
    assert (folder / "rollouts.jsonl").read_text() == rollouts


def test_offloading_changes_no_number_and_may_begin_at_a_resume(tmp_path, monkeypatch):
    changes = {"algorithm": {"beta": 0.05}}
    away = {"offload_reference": True, "offload_optimizer": True}
    folder = train(tmp_path / "run", **changes).folder
    plain = numbers(folder)
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone")
    monkeypatch.setattr(assemble, "Optimizer", lambda *given: Optimizer(*given[:4], offload=True))  # a CPU run has it off
    train(folder, resume=True, train=away, **changes)
    assert numbers(folder) == plain
    assert numbers(train(tmp_path / "away", train=away, **changes).folder) == plain
    told = [event["text"] for event in lines(tmp_path / "away" / "events.jsonl")]
    assert sum("move nothing: the model is on a CPU" in text for text in told) == 1


def test_resume_goes_on_from_an_earlier_end(tmp_path):
    train(tmp_path / "run", train={"steps": 3})
    train(tmp_path / "run", resume=True)
    assert [m["step"] for m in numbers(tmp_path / "run")] == [0, 1, 2, 3, 4, 5, 6]


def test_resume_refuses_another_run(tmp_path):
    train(tmp_path / "run", train={"steps": 2})
    with pytest.raises(ValueError, match=r"optimizer\.lr = 0\.1 cannot be changed by --resume"):
        train(tmp_path / "run", resume=True, optimizer={"lr": 0.1})
    with pytest.raises(ValueError, match="go on with that run by --resume"):
        train(tmp_path / "run")


def test_a_run_whose_rewards_all_fail_goes_on_and_counts(tmp_path):
    def broken(prompts, completions, **columns):
        raise ZeroDivisionError("no reward today")

    tiny = model()
    result = gspo.train(
        tiny.model, ROWS, broken, tokenizer=tiny.tokenizer, config=settings(tmp_path / "run", train={"steps": 1})
    )
    m = lines(result.folder / "metrics.jsonl")[1]
    assert (m["rollouts/failed"], m["groups/dropped"], m["updates"]) == (32, 8, 0)
    assert set(REQUIRED) <= set(m)
    assert "no reward today" in lines(result.folder / "rollouts.jsonl")[0]["error"]


def test_cold_start_learns_and_resumes_bit_equal(tmp_path):
    rows = [{"prompt": f"{i}=", "completion": "ab" * (i % 3 + 1)} for i in range(10)]

    def fit(folder, steps, resume=False):
        tiny = model()
        return gspo.sft(
            tiny.model, rows, tokenizer=tiny.tokenizer, resume=resume, optimizer={"lr": 1e-2},
            train={"steps": steps, "batch_size": 5, "save_every": 10}, log={"dir": str(tmp_path / folder)},
        )  # fmt: skip

    whole = fit("whole", 40)
    losses = [m["loss"] for m in numbers(whole.folder)]
    assert losses[-1] < losses[0] / 4
    fit("parts", 20)
    fit("parts", 40, resume=True)
    assert numbers(tmp_path / "parts") == numbers(whole.folder)


def run_in_a_process(folder, resume, output):
    """A whole run, told to the file `output`."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    torch.set_num_threads(1)
    train(folder, resume, train={"steps": KILLS[-1] + 8, "save_every": 3})


def start(folder, resume=False):
    """A process of its own, and where it writes. It is forked off one that has loaded the libraries and nothing else."""
    output = folder.with_suffix(".out")
    output.unlink(missing_ok=True)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=run_in_a_process, args=(folder, resume, output))
    process.start()
    return process, output


def wait_for(path, pattern, process):
    """Until the file `path` holds what is sought, or the process has ended."""
    while process.is_alive() and not (path.exists() and re.search(pattern, path.read_text())):
        time.sleep(0.01)


KILLS = range(2, 90, 4) if CAMPAIGN else (2, 6)  # after so many lines of metrics, and a moment


def test_kill_9_at_random_points_and_ctrl_c_lose_nothing(tmp_path):
    whole, folder, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    reference, _ = start(whole)
    resume = False
    for count in KILLS:
        process, output = start(folder, resume)
        wait_for(folder / "metrics.jsonl", rf"(.+\n){{{count}}}", process)
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.join()
        resume = (folder / "config.toml").exists()
    process, output = start(folder, resume)
    wait_for(output, "(?m)^step ", process)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0, output.read_text()
    assert "SIGINT: finishing this step, then saving" in output.read_text()
    assert "go on with --resume" in output.read_text()
    process, output = start(folder, True)
    process.join()
    assert process.exitcode == 0, output.read_text()
    reference.join()
    assert reference.exitcode == 0
    assert [m["step"] for m in numbers(folder)] == list(range(KILLS[-1] + 9))
    assert numbers(folder) == numbers(whole)


class Failing:
    """Makes a method of the sampler fail at its k-th call in training, as a dead engine does."""

    def __init__(self, monkeypatch, name, k):
        method, calls = getattr(HFSampler, name), []

        def wrapped(sampler, *args):
            calls.append(name)
            if len(calls) == k:
                if name == "load":
                    sampler.version = args[0].version  # as the port has it
                raise SamplerError("the engine is dead")
            return method(sampler, *args)

        monkeypatch.setattr(HFSampler, name, wrapped)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A whole run by its delay, made once."""
    return cache(lambda delay: train(tmp_path_factory.mktemp("whole") / "run", **brief(delay)))


def brief(delay):
    return {"rollout": {"delay": delay}, "eval": {"every": 2, "num_prompts": 4}, "train": {"steps": 5, "save_every": 100}}


@pytest.mark.parametrize(("name", "k"), [("generate", 4), ("generate", 1), ("load", 3), ("generate", 5)])
@pytest.mark.parametrize("delay", [0, 2])
def test_a_sampler_that_dies_costs_nothing(tmp_path, undisturbed, name, k, delay, monkeypatch):
    """While it samples (4: a step, 5: an evaluation in between), and while it takes new weights."""
    options, whole = brief(delay), undisturbed(delay)
    with monkeypatch.context() as patch:
        Failing(patch, name, k)
        with pytest.raises(RuntimeError, match="the engine is dead"):
            train(tmp_path / "part", **options)
    again = train(tmp_path / "part", resume=True, **options)
    drop = (lambda line: {n: v for n, v in line.items() if not n.startswith("eval/")}) if name == "generate" else dict
    assert [drop(line) for line in numbers(again.folder)] == [drop(line) for line in numbers(whole.folder)]
    a, b = (lines(run.folder / "rollouts.jsonl") for run in (again, whole))
    assert [(r["step"], r["prompt_id"], r["token_ids"]) for r in a] == [
        (r["step"], r["prompt_id"], r["token_ids"]) for r in b
    ]


def test_a_full_disk_at_a_checkpoint(tmp_path, monkeypatch):
    """One in the middle is warned of and tried again; at the end the run says so, and loses only what it must."""
    plain, full = torch.save, {2}

    def save(state, path):
        if state["step"] in full:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        plain(state, path)

    monkeypatch.setattr(torch, "save", save)
    options = {"train": {"steps": 6, "save_every": 2}}
    folder = train(tmp_path / "run", **options).folder
    events = [line["text"] for line in lines(folder / "events.jsonl") if line["kind"] == "warning"]
    assert any("step_000002 could not be written" in text and "No space left" in text for text in events)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step_000004", "step_000006"]
    full |= {4, 6}
    with pytest.raises(RuntimeError, match=r"step_000006 could not be written .*No space left.*GiB are free"):
        train(tmp_path / "late", **options)
    assert not list((tmp_path / "late" / "checkpoints").iterdir())
    assert [line["step"] for line in lines(tmp_path / "late" / "metrics.jsonl")] == list(range(7))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_rows_in_place_of_shared_prompts_are_told(tmp_path, attention):
    tiny = model(0)
    tiny.model.set_attn_implementation(attention)
    config = settings(tmp_path / "run", train={"steps": 1})
    gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config)
    told = [event["text"] for event in lines(tmp_path / "run" / "events.jsonl") if "padded rows" in event["text"]]
    expected = "trains on padded rows: Qwen3MoeForCausalLM cannot share prompts: it runs eager attention, not sdpa"
    assert told == ([expected] if attention == "eager" else [])
