"""Whole updates and the embedded sampler on a GPU that is not there: numbers, devices, and what the host waits for."""

from collections import Counter

import pytest
import torch

from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from gspo.types import Prompt, Sampling
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.backends.hf.updates import CASES, batch_of, learner_of, step, waits_of
from tests.fake_device import ALL, NUMBER, SIZE, TO_HOST, fake_gpu


@pytest.mark.parametrize("label", CASES)
def test_an_update_is_the_cpus_and_waits_three_times_with_one_micro_batch(label):
    case = CASES[label]
    expected, weights, _ = step("cpu", **case)
    with fake_gpu() as gpu:
        metrics, moved, waits = step("cuda", gpu.watched, **case)
    shared = case.get("layout") == "shared"  # other sums in attention
    near = {"rel": 1e-4, "abs": 1e-6} if shared else {"rel": 0, "abs": 0}
    for actual, wanted in zip(metrics, expected):
        assert actual.keys() == wanted.keys()
        for name, value in wanted.items():
            assert actual[name] == pytest.approx(value, nan_ok=True, **near), name
    torch.testing.assert_close(moved, weights, rtol=0, atol=2e-4 if shared else 0)
    offloads, passes = "offload" in case, 3 if "budget" in case else 1
    assert waits_of(case) == 2 + offloads + passes
    for seen in waits:
        counted = Counter(sync.kind for sync in seen)
        assert counted == Counter({NUMBER: 1, TO_HOST: 1, SIZE: passes, ALL: offloads}), Counter(seen)


@pytest.mark.parametrize("least, read", [(None, "padded"), (1.2, "shared"), (9.0, "padded")])
def test_auto_on_a_gpu_goes_by_what_was_timed_there(least, read, monkeypatch):
    """The batch spares 1.5 times: three prompts of 4, 9 and 1 tokens with three completions each."""
    monkeypatch.setattr(layout, "GATHERING_ON_GPU", least)
    with fake_gpu():
        policy = learner_of("cuda", layout="auto").policy
        rows = policy._rows(layout.build(batch_of("qwen3"), policy.shares_prompts))
    assert ("padded" if rows.forest is None else "shared") == read
    assert policy.layout == ("padded" if least is None else "auto")
    assert bool(policy.unshared) == (least is None)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_reading_waits_once_a_pass(name):
    case = {"name": name, "replay": "R2" if name == "qwen3_moe" else "none", "budget": 45}
    learner = learner_of("cpu", **case)
    learner.prepare([batch_of(name)], recompute=True)
    with fake_gpu() as gpu:
        there = learner_of("cuda", **case)
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
    # transformers' look at the padding of the prompts; all finite; tokens and likelihoods back.
    rest = 4 + 2 * ("routes" in options and name == "qwen3_moe")
    assert len(gpu.syncs) - len(looks) == rest, Counter(gpu.syncs)


@pytest.mark.parametrize("device, kept", [("cpu", True), ("cuda", False)])
def test_attention_that_plans_for_each_shape_is_left_out_on_a_gpu(device, kept):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with fake_gpu():
            build_tiny(FAMILIES["qwen3"], TOKENIZER, 0, ModelConfig(device=device))
        assert torch.backends.cuda.cudnn_sdp_enabled() == kept
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
