"""The plan for the CPU of this machine."""

import re
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gspo.backends.hf.tiny import build_tiny
from gspo.cli.main import main
from gspo.config.files import from_dict, to_toml
from gspo.plan import this_cpu
from gspo.plan.cost_model import Spread, Work
from gspo.plan.meta_sharding import shard_on_meta
from gspo.plan.plan import render
from gspo.plan.this_cpu import EFFICIENCY, Model, Product, Rates, rate, sampling_seconds, training_seconds
from gspo.plan.work import Lengths
from tests.assembly.test_early_checks import SYSTEM, saved
from tests.backends.hf.families import FAMILIES, TOKENIZER


def figures(text, name):
    """The numbers in the rows of this name."""
    return [float(found) for found in re.findall(rf"^  {re.escape(name)} +([\d.]+)$", text, re.M)]


RATES = Rates(body=1e9, head=2e9, decoding_body=5e8, decoding_head=1e8)


def planned(folder, family="qwen3", **sizes):
    """The model of a plan, and the model itself."""
    made = build_tiny(FAMILIES[family] | sizes, TOKENIZER)
    made.save(folder)
    layout = shard_on_meta(from_dict({"model": {"path": str(folder)}}).model, Spread(1))
    return Model(layout.weights, layout.shape, layout.embedded // layout.shape.hidden), made


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "mixtral"])
@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_that_torch_counts(tmp_path, family, tied):
    model, made = planned(tmp_path, family, tie_word_embeddings=tied)
    ids = torch.arange(12)[None] + 2
    made.model.set_attn_implementation("eager")
    if family in ("qwen3_moe", "mixtral"):
        made.model.set_experts_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        hidden = made.hidden(input_ids=ids)
        made.model.get_output_embeddings()(hidden)
    body = sum(product.operations for product in model.body(12)) + model.attention(12, 12)
    found = counted.get_total_flops()
    assert body + model.head(12).operations == pytest.approx(found, rel=0.02 if "m" not in family else 0.2)


def test_seconds_are_the_sum_of_all_passes(tmp_path):
    model, _ = planned(tmp_path)
    ops = lambda tokens: sum(2 * tokens * w.size for w in model.weights if w.row > 1 and w.size != 32 * model.vocabulary)  # noqa: E731
    expected = 0.0
    for _prompt in range(2):
        expected += (ops(5) + 4 * 2 * 32 * 5 * 2.5) / 1e9
    for _batch in range(2):
        for _token in range(4):
            expected += (ops(3) + 4 * 2 * 32 * 3 * 7) / 5e8 + 2 * 3 * 32 * model.vocabulary / 1e8
    config = from_dict({"rollout": {"num_prompts": 2, "num_generations": 3}, "sampler": {"batch_size": 3}})
    assert sampling_seconds(model, config, 5, 4, RATES) == pytest.approx(expected / EFFICIENCY)

    work = Work(training=2, reading=1, training_tokens=40, reading_tokens=20)
    forward = lambda tokens: ops(tokens) + 4 * 2 * 32 * tokens * 4.5  # noqa: E731
    head = 2 * 8 * 32 * model.vocabulary
    for checkpointing, frozen, times, back in ((False, False, 3, 3), (True, False, 4, 3), (False, True, 2, 2)):
        one = Model(model.weights, model.shape, model.vocabulary, frozen=frozen)
        expected = (times * forward(40) + forward(20)) / 1e9 + head * (2 * back + 1) / 2e9
        assert training_seconds(one, work, 8, 9, RATES, checkpointing) == pytest.approx(expected / EFFICIENCY)


def test_logits_that_do_not_stay_are_computed_again(tmp_path, monkeypatch):
    model, _ = planned(tmp_path)
    work = Work(1, 0, 40, 0)
    kept = training_seconds(model, work, 8, 9, RATES, False)
    monkeypatch.setattr(this_cpu, "KEPT", 0)
    again = training_seconds(model, work, 8, 9, RATES, False)
    assert again - kept == pytest.approx(model.head(8).operations / 2e9 / EFFICIENCY)


@pytest.mark.parametrize(
    "product",
    [Product(1, 1, 1), Product(64, 48, 32), Product(5000, 300_000, 64), Product(1, 10, 1 << 20), Product(3, 1 << 26, 7)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_shape_is_timed_in_a_moment(product, dtype):
    pool, begin = torch.ones(1 << 25, dtype=dtype), time.process_time()
    assert 0 < rate([product], pool) < 1e15
    assert time.process_time() - begin < 5


def test_slower_products_make_a_slower_model(monkeypatch):
    monkeypatch.setattr(this_cpu, "_seconds_each", lambda product, pool: product.rows * 1e-9)
    one, two = Product(1, 10, 10, count=3), Product(4, 10, 10)
    operations = one.operations + two.operations
    assert rate([one, two], None) == pytest.approx(operations / (one.operations * 1e-9 + two.operations * 4e-9))


@pytest.mark.parametrize(
    ("tables", "memory", "gpu", "here"),
    [
        ({}, None, False, True),
        ({}, None, True, False),
        ({}, 80.0, False, False),
        ({"model": {"device": "cpu"}}, 80.0, True, True),
        ({"model": {"device": "cuda"}}, None, False, False),
        ({"scale": {"ranks": 2}}, None, False, False),
        ({"scale": {"ranks": 2}, "model": {"device": "cpu"}}, None, False, False),
    ],
)
def test_a_plan_is_for_this_cpu_where_nothing_says_otherwise(monkeypatch, tables, memory, gpu, here):
    monkeypatch.setattr(this_cpu, "pick_device", lambda name: torch.device("cuda" if gpu else "cpu"))
    assert this_cpu.for_this_cpu(from_dict(tables), memory) == here


def test_the_plan_of_a_run_on_this_cpu(tmp_path, capsys):
    tables = saved(tmp_path, SYSTEM, task={"system": ""})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(from_dict(tables)))
    assert main(["plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("All figures are predicted, only some matrix products were timed on this CPU.")
    assert f"({torch.get_num_threads()} of " in text and "assumed to reach 60% of that" in text
    assert f"prompts of {len('[system]be kind;[user]11+1=;[assistant]')} tokens" in text  # the longest
    sampling, training, together = (figures(text, name) for name in ("sampling", "training", "together"))
    assert sampling[0] + training[0] == pytest.approx(together[1], abs=0.011)
    assert figures(text, "Python and its libraries")[0] > 0.1 and "not at the same time" not in text
    assert main(["plan", str(file), "--memory", "80"]) == 0
    assert "on this CPU" not in capsys.readouterr().out
    config = from_dict(tables | {"sampler": {"engine": "vllm"}})
    assert "  sampling " not in render(config, Lengths(8), None)[0].split("a step on this CPU")[1]
