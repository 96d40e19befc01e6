"""Whole runs, as `gspo train` makes them: with the embedded sampler, with adapters on weights of few bits, and with vLLM;
and the time of a step of models of a real size.
"""

import importlib.util
import json
import math
import os

import pytest
from models import MODELS

import gspo
from gspo.config.files import from_dict
from gspo.config.policy import ModelConfig
from tests.tiny_run import ROWS, likes_a, model, settings

pytestmark = pytest.mark.gpu
KL = 1e-2  # nats a token between sampler and trainer, under autocast to bfloat16
ENGINE = os.environ.get("GSPO_VLLM_PYTHON", "")
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
ROLLOUTS = {
    "vLLM": {},
    "vLLM, weights and keys in fp8": {"quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8"},
    "vLLM, experts in int8": {"quantization": "int8_per_channel_weight_only"},
    "vLLM, drafts by n-grams": {"speculative_config": DRAFTS},
}


def lines(folder, device, **changes):
    """The metrics of a run of two steps."""
    model(hidden=128, expert_width=128).save(folder / "model")  # heads of 64, as fp8 kernels want
    made = settings(folder / "runs", **changes)
    made["model"] = {"path": str(folder / "model"), "device": device} | changes.get("model", {})
    made["train"] = made["train"] | {"steps": 2}
    gspo.train(None, ROWS, likes_a, config=from_dict(made))
    run = next(path for path in (folder / "runs").rglob("metrics.jsonl"))
    return [line for line in map(json.loads, run.read_text().splitlines()) if "loss" in line]


def tell(report, what, found):
    assert len(found) == 2 and all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in found)
    report.check(f"a run with {what}: updates that were skipped", sum(line["updates/skipped"] for line in found), most=0)
    report.check(f"a run with {what}: KL of sampler and trainer, nats a token", found[0]["mismatch/kl"], most=KL)


def test_with_the_embedded_sampler(device, report, tmp_path):
    tell(report, "the embedded sampler", lines(tmp_path, device))


def test_with_offloaded_moments(device, report, tmp_path):
    if device == "cpu":
        pytest.skip("on a CPU there is nowhere to offload to")
    train = {"offload_optimizer": True, "offload_reference": True}
    found = lines(tmp_path, device, train=train, algorithm={"beta": 0.01})
    tell(report, "moments and reference in the host's memory", found)


@pytest.mark.filterwarnings("ignore")
def test_with_adapters_on_weights_of_four_bits(device, report, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'gspo[quantized]')")
    tell(report, "adapters on nf4", lines(tmp_path, device, lora={"rank": 4}, model={"quantize": "nf4"}))


@pytest.mark.parametrize("what", ROLLOUTS)
def test_with_vllm(what, device, report, tmp_path):
    if device == "cpu" and "quantization" in ROLLOUTS[what]:
        pytest.skip("vLLM rounds to these on a GPU")
    if not ENGINE and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here; GSPO_VLLM_PYTHON may name the Python of another environment that has it")
    sampler = {"engine": "vllm", "engine_args": {"gpu_memory_utilization": 0.4}} | ROLLOUTS[what]
    found = lines(tmp_path, device, sampler=sampler | ({"python": ENGINE} if ENGINE else {}))
    tell(report, what, found)
    if "speculative_config" in sampler:
        accepted = [line.get("engines/draft_acceptance", 0.0) for line in found]
        report.tell(f"a run with {what}: share of drafted tokens accepted", accepted[1])
        assert max(accepted) > 0


def by_place(prompts, completions, **columns):
    """A reward that differs within each group, whatever a model with random weights has said."""
    return [float(i % 4) for i in range(len(completions))]


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_a_step_of_a_real_size(kind, device, size, report, tmp_path):
    """16 prompts of 128 tokens, 8 completions each of at most 256, in 4 mini-batches; the second step is told."""
    MODELS[size][kind](ModelConfig(device=device, autocast="none")).save(tmp_path / "model")
    dry = device == "cpu"
    made = {
        "model": {"path": str(tmp_path / "model"), "device": device},
        "rollout": {"num_prompts": 4 if dry else 16, "num_generations": 8, "max_completion_length": 8 if dry else 256},
        "algorithm": {"mini_batches": 4}, "eval": {"num_prompts": 0}, "log": {"dir": str(tmp_path / "runs")},
        "train": {"steps": 2, "micro_batch_tokens": 16_384},
    }  # fmt: skip
    rows = [{"prompt": f"{i:03}".rjust(128, "7")} for i in range(64)]
    gspo.train(None, rows, by_place, config=from_dict(made))
    found = [json.loads(line) for line in next((tmp_path / "runs").rglob("metrics.jsonl")).read_text().splitlines()]
    line = [each for each in found if "loss" in each][-1]
    step = f"a step of {size}, {kind}"
    for part in ("sample", "train", "step"):
        report.tell(f"{step}, of {line['tokens']:,.0f} sampled tokens: {part}, seconds", line[f"time/{part}"])
    report.check(f"{step}: KL of sampler and trainer, nats a token", line["mismatch/kl"], most=KL)
