"""Whole runs on a tiny mixture of experts."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.objective.reference import gdpo
from tests.runs.events import texts
from tests.tiny_run import ROWS, dials, likes_a, model
from tests.training.whole import REQUIRED, lines, numbers, train

ROLLOUT = """
    step prompt_id group prompt completion token_ids reward reward_parts advantage version stop error
""".split()


def test_a_run_learns_and_leaves_what_it_promises(tmp_path):
    result = train(tmp_path / "run", train={"steps": 12, "save_every": 6})
    metrics = lines(result.folder / "metrics.jsonl")
    assert [m["step"] for m in metrics] == list(range(13))
    assert all(m[name] is not None for m in metrics[1:] for name in REQUIRED)
    assert [m["step"] for m in metrics if "eval/accuracy" in m] == [0, 3, 6, 9, 12]
    first, last = (sum(m["reward"] for m in part) / 3 for part in (metrics[1:4], metrics[-3:]))
    assert last > first + 0.1
    rollouts = lines(result.folder / "rollouts.jsonl")
    assert len(rollouts) == 12 * 8 * 4
    assert all(set(ROLLOUT) <= set(r) for r in rollouts)
    right = {row["prompt"]: row["answer"] for row in ROWS}
    assert all(r["answer"] == right[r["prompt"]] for r in [*rollouts, *lines(result.folder / "evaluations.jsonl")])
    assert [r["version"] for r in rollouts] == [i // 32 for i in range(12 * 32)]
    detailed = [r for r in rollouts if "log_ratio" in r]
    assert len(detailed) == 12 * 4
    assert all(len(r["tokens"]) == len(r["logp"]) == len(r["log_ratio"]) == len(r["token_ids"]) for r in detailed)
    for name in ("config.toml", "report.html", "checkpoints/step_000012"):
        assert (result.folder / name).exists()
    assert list((result.folder / "figures").glob("*.svg"))
    assert result.metrics["step"] == 12


def test_the_final_model_loads_and_is_the_trained_one(tmp_path):
    result = train(tmp_path / "run", train={"steps": 2})
    loaded = AutoModelForCausalLM.from_pretrained(result.folder / "model")
    for name, value in result.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert AutoTokenizer.from_pretrained(result.folder / "model").decode([2, 3]) == "01"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "gspo_token", "opsm": 1e-4}},
        {"algorithm": {"name": "vespo"}},
        {"algorithm": {"name": "gepo"}, "sampler": dials(lag=1)},
        {"algorithm": {"name": "grpo", "epochs": 2}},
        {"algorithm": {"name": "dr_grpo", "beta": 0.1, "kl_estimator": "k2"}},
        {"algorithm": {"name": "dapo", "old_logprobs": "recompute"}},
        {"algorithm": {"name": "gspo_turn", "top_entropy": 0.2, "old_logprobs": "recompute", "epsilon_length": 7}},
        {"algorithm": {"kl_cov": 0.01, "kl_cov_weight": 2.0}},
        {"rollout": {"temperature": 0.7, "mask_truncated_completions": True}},
        {"algorithm": {"name": "luspo", "epsilon": "auto"}},
        {"algorithm": {"name": "gmpo", "correction": "seq_mis", "old_logprobs": "recompute"}},
        {"algorithm": {"name": "cispo"}, "sampler": dials(lag=1)},
        {"algorithm": {"name": "sapo", "constants": {"tau_neg": 1.2}}},
        {"algorithm": {"name": "dppo_tv"}},
        {"algorithm": {"name": "ppo", "critic": "copy", "epochs": 2}, "train": {"layout": "shared"}},
        {"algorithm": {"name": "dppo_kl"}, "sampler": dials(kind="int8")},
        {"algorithm": {"name": "minirl", "router_replay": "R3", "old_logprobs": "recompute"}},
        {"lora": {"rank": 4}, "algorithm": {"beta": 0.1}, "optimizer": {"lr": 0.03},
         "train": {"gradient_checkpointing": True}},
        {"lora": {"rank": 2, "targets": ["q_proj"]}, "algorithm": {"name": "ppo", "critic": "copy"}},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting_runs(tmp_path, changes):
    result = train(tmp_path / "run", **changes | {"train": {"steps": 3} | changes.get("train", {})})
    steps = numbers(result.folder)[1:]
    assert [m["updates/skipped"] for m in steps] == [0, 0, 0]
    if changes.get("algorithm", {}).get("beta"):
        assert steps[0]["kl_ref"] == pytest.approx(0, abs=1e-2) != steps[-1]["kl_ref"]


def test_layout_micro_batches_and_checkpointing_change_no_number(tmp_path):
    once = {"steps": 1}  # later steps may sample another token after a rounding
    plain = numbers(train(tmp_path / "a", train=once).folder)
    for i, changes in enumerate((
        {"layout": "shared"}, {"micro_batch_tokens": 40},
        {"gradient_checkpointing": True, "layout": "shared", "micro_batch_tokens": 40},
    )):  # fmt: skip
        other = numbers(train(tmp_path / f"b{i}", train=once | changes).folder)
        for m, n in zip(plain, other, strict=True):
            for name in set(m) - {"guard/signals"}:
                assert n[name] == pytest.approx(m[name], rel=2e-3, abs=2e-5, nan_ok=True), name


def test_rewards_are_scaled_apart_in_a_run(tmp_path):
    def size(prompts, completions, **columns):
        return [1000.0 * len(c) for c in completions]

    options = {"algorithm": {"scale_rewards": "gdpo"}, "train": {"steps": 1}, "eval": {"every": 0}}
    made = lines(train(tmp_path / "run", reward=[likes_a, size], **options).folder / "rollouts.jsonl")
    parts, groups = [list(each["reward_parts"].values()) for each in made], [each["group"] for each in made]
    assert [each["advantage"] for each in made] == pytest.approx(gdpo(parts, [1.0, 1.0], groups))


def test_seeds(tmp_path):
    one, same = (numbers(train(tmp_path / name, train={"steps": 3}).folder) for name in ("a", "b"))
    other = numbers(train(tmp_path / "c", train={"steps": 3, "seed": 2}).folder)
    assert one == same
    assert one[1]["reward"] != other[1]["reward"]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_rows_in_place_of_shared_prompts_are_told(tmp_path, attention):
    tiny = model()
    tiny.model.set_attn_implementation(attention)
    train(tmp_path / "run", tiny=tiny, train={"steps": 1})
    told = [text for text in texts(tmp_path / "run") if "padded rows" in text]
    expected = "trains on padded rows: Qwen3MoeForCausalLM cannot share prompts: it runs eager attention, not sdpa"
    assert told == ([expected] if attention == "eager" else [])
