"""What is foretold of a rank's memory, against the tensors of an update."""

import json

import pytest
import torch
from torch import nn

from gspo.assembly.host_memory import GIB
from gspo.assembly.learners import optimizer_of
from gspo.backends.hf.load import load_model
from gspo.backends.hf.lora import adapted, packed
from gspo.backends.hf.policy import HFPolicy
from gspo.config.algorithm import resolve
from gspo.config.files import from_dict
from gspo.config.policy import ResolvedOptimizer
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.learner.update import Updater
from gspo.plan.memory import ACTIVATIONS, moments
from gspo.plan.plan import plan, render
from gspo.plan.work import Lengths
from gspo.types import Completion
from tests.live import Live
from tests.tiny_run import model

SIZES = {"hidden": 96, "layers": 5, "heads": 6, "kv_heads": 2, "vocab_size": 1500, "context": 512}
DENSE, MIXTURE = {"model_type": "qwen3", "intermediate_size": 256}, {"experts": 8, "top_k": 2, "expert_width": 96}
COUNT, LENGTHS = 12, Lengths(40, 60)
# Of few tokens little is kept beside the weights. Wider layers with more tokens would have the same shares of memory, and
# products in bfloat16 take a minute on a processor that has none.
HEAVY, FEW = DENSE | {"intermediate_size": 400, "vocab_size": 60}, Lengths(10, 15)
ADAPTERS = {"rank": 8, "targets": ["all-linear", "experts"]}
CASES = {
    "dense": (DENSE, {}),
    "three micro-batches": (DENSE, {"train": {"micro_batch_tokens": 400}}),
    "checkpointing": (DENSE, {"train": {"gradient_checkpointing": True}}),
    "autocast": (DENSE, {"model": {"autocast": "bfloat16"}}),
    "autocast, little but weights": (HEAVY, {"model": {"autocast": "bfloat16"}, "train": {"micro_batch_tokens": 100}}),
    "the same, checkpointing": (
        HEAVY,
        {"model": {"autocast": "bfloat16"}, "train": {"micro_batch_tokens": 100, "gradient_checkpointing": True}},
    ),
    "the same in one micro-batch": (HEAVY, {"model": {"autocast": "bfloat16"}, "train": {"gradient_checkpointing": True}}),
    "moments of 8 bits": (DENSE, {"optimizer": {"name": "adamw_8bit"}}),
    "mixture": (MIXTURE, {}),
    "adapters on dense layers": (DENSE, {"lora": {"rank": 8}}),
    "bfloat16": (DENSE, {"model": {"dtype": "bfloat16"}}),
    "adapters": (MIXTURE, {"lora": ADAPTERS}),
    "packed": (MIXTURE, {"lora": ADAPTERS, "model": {"quantize": "nf4"}}),
    "packed, with autocast": (MIXTURE, {"lora": ADAPTERS, "model": {"quantize": "int8", "autocast": "bfloat16"}}),
}


def config(path, lengths=LENGTHS, **changes):
    changes["model"] = {"path": str(path), "device": "cpu"} | changes.get("model", {})
    tables = {
        "rollout": {"num_prompts": COUNT // 4, "num_generations": 4, "max_completion_length": lengths.completion},
        "algorithm": {"mini_batches": 1},
        "train": {"layout": "padded"},
    }
    return from_dict({name: tables.get(name, {}) | changes.get(name, {}) for name in {*tables, *changes}})


@pytest.mark.parametrize("case", CASES)
def test_an_update_takes_what_was_foretold(tmp_path, case):
    sizes, changes = CASES[case]
    model(**SIZES | sizes).save(tmp_path)
    lengths = FEW if sizes is HEAVY else LENGTHS
    settings = config(tmp_path, lengths, **changes)
    made = load_model(settings.model)
    made = adapted(made, settings.lora) if settings.lora.rank else made
    made = packed(made, settings.model) if settings.model.quantize != "none" else made
    policy = HFPolicy(made, layout="padded", gradient_checkpointing=settings.train.gradient_checkpointing)
    optimizer = optimizer_of(settings, policy, 3)
    row, algorithm, _ = resolve(settings.algorithm)
    sampled = torch.arange(lengths.prompt + lengths.completion) >= lengths.prompt
    logp = torch.zeros(lengths.completion, dtype=torch.float64) - 7
    batch = [
        Completion(torch.randint(2, 15, sampled.shape), sampled, logp, logp, 1.0 if i % 2 else -1.0) for i in range(COUNT)
    ]
    micro_batches = MicroBatches(settings.train.micro_batch_tokens)
    with Live() as live:
        for part in (batch[:2], batch):  # the first makes the moments
            Updater(policy, optimizer, micro_batches).update(PolicyObjective(row, algorithm, 9), part)
    own = {x.data_ptr(): x for x in [*made.model.parameters(), *made.model.buffers()]}
    found = live.peak + sum(x.numel() * x.element_size() for x in own.values())
    foretold = plan(settings, lengths).memory
    assert foretold.together == pytest.approx(found, rel=0.1), foretold


def test_adapters_and_few_bits_are_counted(tmp_path):
    model(**SIZES | MIXTURE).save(tmp_path)
    whole, adapters, packs = (
        plan(config(tmp_path, **changes), LENGTHS).memory
        for changes in ({}, {"lora": ADAPTERS}, {"lora": ADAPTERS, "model": {"path": str(tmp_path), "quantize": "nf4"}})
    )
    rotary_tables = 64
    assert whole.standing["gradients"] == whole.standing["weights"] - rotary_tables > 7 * adapters.standing["gradients"]
    assert adapters.standing["AdamW's moments"] == 2 * adapters.standing["gradients"]
    assert packs.standing["weights"] < 0.4 * adapters.standing["weights"] and packs.read == whole.standing["gradients"]
    assert "a packed weight made whole" in packs.passing and adapters.read == whole.read == 0
    reference = plan(config(tmp_path, algorithm={"beta": 0.1}), LENGTHS).memory
    assert reference.standing["reference model"] == reference.standing["weights"]
    same = plan(config(tmp_path, algorithm={"beta": 0.1}, lora=ADAPTERS), LENGTHS).memory
    assert same.standing == adapters.standing  # the reference is the model without its adapters
    model(**SIZES | MIXTURE | {"layers": 1}).save(tmp_path / "teacher")
    taught = plan(config(tmp_path, algorithm={"name": "grpo"}, teacher={"path": str(tmp_path / "teacher")}), LENGTHS).memory
    assert 0 < taught.standing["teacher"] < whole.standing["weights"]


def test_what_is_said_where_it_does_not_fit(tmp_path):
    model(**SIZES | MIXTURE).save(tmp_path)
    for changes, words in (
        ({}, "; or train adapters (lora.rank)."),
        ({"lora": ADAPTERS}, 'set model.quantize = "nf4", or take a smaller model'),
        ({"lora": ADAPTERS, "model": {"path": str(tmp_path), "quantize": "nf4"}}, "take a smaller model"),
    ):
        settings = config(tmp_path, **changes)
        text, fits = render(settings, LENGTHS, 1000 / GIB)
        assert words in text and "STATE ALONE DOES NOT FIT" in text and not fits
        assert "sent by a rank" not in text and ("before it packs them" in text) == ("quantize" in str(changes))


def test_a_model_whose_pass_needs_numbers_is_estimated(tmp_path, monkeypatch):
    model(**SIZES | MIXTURE).save(tmp_path)
    exact = plan(config(tmp_path), LENGTHS).memory
    monkeypatch.setattr("gspo.plan.activation_memory._saved_bytes", lambda *given: json.loads("no number"))
    estimate = plan(config(tmp_path), LENGTHS).memory
    assert ACTIVATIONS in exact.passing and f"{ACTIVATIONS} (estimate)" in estimate.passing
    assert exact.standing == estimate.standing


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_are_as_large_as_those_of_the_optimizer(name, dtype):
    weights = [nn.Parameter(torch.randn(*size).to(dtype)) for size in ((64, 100), (64, 63), (5000,), (7,))]
    optimizer = Optimizer(weights, ResolvedOptimizer(name=name), 1, 0)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step(0.0)
    shared = {"step", "qmap1", "qmap2"}  # a number, and tables that all weights share
    state = [x for of in optimizer.adamw.state.values() for key, x in of.items() if key not in shared]
    found = sum(x.numel() * x.element_size() for x in state)
    assert moments(tuple(w.numel() for w in weights), dtype.itemsize, name == "adamw_8bit") == found
