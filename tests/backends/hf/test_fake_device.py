"""Whole updates and the embedded sampler on a GPU that is not there: numbers, devices, and what the host waits for."""

import dataclasses
from collections import Counter
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from gspo.backends.hf import flex
from gspo.backends.hf.critic import Critic
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import AlgorithmConfig, LoraConfig, ModelConfig, OptimizerConfig
from gspo.learner import layout
from gspo.learner.algorithm import resolve
from gspo.learner.learner import PolicyLearner
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.types import Prompt, Sampling
from tests.backends.hf.families import FAMILIES, TOKENIZER, tiny
from tests.backends.hf.test_policy import completions
from tests.fake_device import NUMBER, SIZE, TO_HOST, fake_gpu

CASES = {
    "dense": {},
    "dense, autocast": {"autocast": "bfloat16"},
    "dense, bfloat16": {"dtype": "bfloat16"},
    "dense, shared": {"layout": "shared"},
    "dense, packed": {"layout": "packed"},
    "dense, three micro-batches": {"budget": 45},
    "dense, checkpointing": {"checkpointing": True},
    "dense, KL": {"beta": 0.01},
    "dense, adapters": {"rank": 4},
    "dense, critic": {"algorithm": "ppo", "critic": "shared"},
    "dense, critic of its own": {"algorithm": "ppo", "critic": "copy"},
    "mixture": {"name": "qwen3_moe"},
    "mixture, autocast": {"name": "qwen3_moe", "autocast": "bfloat16"},
    "mixture, shared": {"name": "qwen3_moe", "layout": "shared"},
    "mixture, three micro-batches": {"name": "qwen3_moe", "budget": 45},
    "mixture, R2, checkpointing": {"name": "qwen3_moe", "replay": "R2", "checkpointing": True},
    "mixture, auxiliary loss": {"name": "qwen3_moe", "aux_loss": 0.01},
    "mixture, adapters": {"name": "qwen3_moe", "rank": 4, "autocast": "bfloat16"},
    "windows": {"name": "gemma3"},
    "tokens": {"algorithm": "grpo"},
    "turns": {"algorithm": "gspo_turn"},
}  # fmt: skip


def plain_flex(query, key, value, block_mask, scale, enable_gqa, kernel_options):
    """FlexAttention without its kernel, which this device has not: all pairs, under the same mask."""
    place = torch.arange(query.shape[2], device=query.device)
    pairs = block_mask.mask_mod(None, None, place[:, None], place[None])
    return F.scaled_dot_product_attention(query, key, value, pairs, scale=scale, enable_gqa=enable_gqa)


@pytest.fixture(autouse=True)
def without_a_kernel(monkeypatch):
    monkeypatch.setattr(flex, "kernel", lambda: plain_flex)


@cache
def batch_of(name):
    """Completions of three prompts whose advantages differ, half of them by a policy that has moved away since."""
    g = torch.Generator().manual_seed(1)
    made = []
    for i, c in enumerate(completions(tiny(name))):
        old = c.logp_mu + 0.01 * torch.randn(len(c.logp_mu), generator=g) * (i % 2)
        made.append(dataclasses.replace(c, logp_mu=old, logp_old=old, advantage=1.0 - 2.0 * (i % 3)))
    return made


def learner_of(device, name="qwen3", autocast="none", dtype="float32", layout="padded", budget=10_000, checkpointing=False,
               algorithm="gspo", critic="", replay="none", rank=0, beta=0.0, aux_loss=0.0):  # fmt: skip
    cfg = ModelConfig(device=device, autocast=autocast, dtype=dtype)
    model = build_tiny(FAMILIES[name], TOKENIZER, 0, cfg)
    if rank:
        model = adapted(model, LoraConfig(rank=rank))
    policy = HFPolicy(
        model, layout=layout, gradient_checkpointing=checkpointing, critic=Critic(model, critic) if critic else None,
        router_logits=aux_loss > 0,
    )  # fmt: skip
    reference = HFPolicy(build_tiny(FAMILIES[name], TOKENIZER, 1, cfg)) if beta else None
    row, config, _ = resolve(AlgorithmConfig(name=algorithm, beta=beta, aux_loss=aux_loss))
    optimizer = Optimizer(policy.parameters(), OptimizerConfig(lr=1e-3), 10, 0)
    return PolicyLearner(
        policy, optimizer, PolicyObjective(row, config, 9), budget, router_replay=replay, reference=reference
    )


def step(device, gpu=None, **case):
    """Two updates of one batch. Returns their metrics, the weights after them, and what each waited for."""
    learner = learner_of(device, **case)
    learner.prepare([batch_of(case.get("name", "qwen3"))], recompute=False)
    metrics, waits = [], []
    for _ in range(2):
        if gpu is not None:
            gpu.clear()
        metrics.append(learner.update(0).metrics)
        waits += [] if gpu is None else [list(gpu.syncs)]
    return metrics, [p.detach().cpu() for p in learner.policy.parameters()], waits


@pytest.mark.filterwarnings("ignore:the model was given from Python")
@pytest.mark.parametrize("label", CASES)
def test_an_update_is_the_cpus_and_waits_three_times_with_one_micro_batch(label):
    case = CASES[label]
    expected, weights, _ = step("cpu", **case)
    with fake_gpu() as gpu:
        metrics, moved, waits = step("cuda", gpu, **case)
    near = {"rel": 1e-4, "abs": 1e-6} if case.get("layout") == "shared" else {"rel": 0, "abs": 0}  # other sums in attention
    for actual, wanted in zip(metrics, expected):
        assert actual.keys() == wanted.keys()
        for name, value in wanted.items():
            assert actual[name] == pytest.approx(value, nan_ok=True, **near), name
    for actual, wanted in zip(moved, weights):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=2e-5 if case.get("layout") == "shared" else 0)
    passes = len(layout.micro_batches(batch_of(case.get("name", "qwen3")), case.get("budget", 10_000)))
    assert passes == (3 if "budget" in case else 1)
    turns = passes if case.get("algorithm") == "gspo_turn" else 0  # how many tokens each has
    for seen in waits:  # the gradient's norm; metrics with the loss; which tokens of a pass have a gradient
        assert Counter(sync.kind for sync in seen) == {NUMBER: 1, TO_HOST: 1, SIZE: passes + turns}, Counter(seen)


@pytest.mark.parametrize("least, read", [(None, "padded"), (1.2, "shared"), (9.0, "padded")])
def test_auto_on_a_gpu_goes_by_what_was_timed_there(least, read, monkeypatch):
    """The batch spares 1.5 times: three prompts of 4, 9 and 1 tokens with three completions each."""
    monkeypatch.setattr(layout, "GATHERING_ON_GPU", least)
    asked = []
    for name in ("padded", "shared"):
        real = getattr(layout, name)
        monkeypatch.setattr(layout, name, lambda *given, name=name, real=real: (asked.append(name), real(*given))[1])
    with fake_gpu():
        policy = learner_of("cuda", layout="auto").policy
        policy.forward(layout.build(batch_of("qwen3"), policy.shares_prompts))
    assert asked == [read]
    assert policy.layout == ("padded" if least is None else "auto")
    assert bool(policy.unshared) == (least is None)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_reading_waits_once_a_pass(name):
    learner = learner_of("cpu", name, replay="R2" if name == "qwen3_moe" else "none", budget=45)
    learner.prepare([batch_of(name)], recompute=True)
    with fake_gpu() as gpu:
        there = learner_of("cuda", name, replay="R2" if name == "qwen3_moe" else "none", budget=45)
        gpu.clear()
        there.prepare([batch_of(name)], recompute=True)
    assert [sync.kind for sync in gpu.syncs] == [TO_HOST] * 3
    for actual, expected in zip(there.mini_batches[0], learner.mini_batches[0]):
        assert torch.equal(actual.logp_old, expected.logp_old)
        assert name == "qwen3" or torch.equal(actual.routes, expected.routes)


def sampled(device, name, gpu=None, **options):
    model = build_tiny(FAMILIES[name], TOKENIZER, 0, ModelConfig(device=device, autocast="none"))
    sampler, prompts = HFSampler(model, 16), [Prompt(str(n), "", tuple(range(5, 5 + n))) for n in (4, 9, 1)]
    if gpu is not None:
        gpu.clear()
    return sampler.generate(prompts, 4, Sampling(22, stop_ids=model.stop_ids, seed=3, **options))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "stop": ("ab", "7")}, {"routes": True}, {"temperature": 0.0}])
def test_the_sampler_draws_what_it_draws_on_a_cpu_and_waits_every_fourth_token(name, options):
    expected = sampled("cpu", name, **options)
    with fake_gpu() as gpu:
        rollouts = sampled("cuda", name, gpu, **options)
    for actual, wanted in zip(rollouts, expected):
        assert torch.equal(actual.tokens, wanted.tokens) and actual.stop == wanted.stop
        assert torch.equal(actual.logp, wanted.logp)
        assert wanted.routes is None or torch.equal(actual.routes, wanted.routes)
    looks = [sync for sync in gpu.syncs if sync.place.startswith("backends/hf/stopping.py") and sync.kind == TO_HOST]
    assert len(looks) == 6  # of 22 tokens: at every fourth, and at the last
    # The stop tokens there; transformers' look at the padding of the prompts; all finite; tokens and likelihoods back.
    rest = 5 + 2 * ("routes" in options and name == "qwen3_moe")
    assert len(gpu.syncs) - len(looks) == rest, Counter(gpu.syncs)
