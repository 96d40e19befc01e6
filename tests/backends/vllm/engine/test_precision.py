"""Engines that decode speculatively, and those that round their weights: their likelihoods, and whether they follow."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import Swap
from gspo.backends.vllm.transfer import WEIGHTS
from gspo.learner import layout
from gspo.learner.weights import PolicyWeights
from gspo.rollout.credit import completion_of
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import change, policy_of, prompts, served
from tests.backends.vllm.engine.test_agreement import five_weight_updates

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def surprise(policy, rollouts):
    """How far the samples' log-probabilities are from minus the entropy, in standard errors: 0 on average for samples of
    the policy, since each term has mean 0 given the tokens before it.
    """
    with torch.no_grad():
        out = policy.forward(layout.build([completion_of(rollout, 0.0) for rollout in rollouts]), entropy=True)
    terms = (out.logp + out.entropy).double()
    return float(terms.sum() / terms.square().sum().sqrt()), len(terms)


def test_drafts_by_ngrams_change_neither_likelihoods_nor_samples():
    policy = policy_of("dense")
    with served(policy, speculative_config=NGRAM) as sampler:
        five_weight_updates(policy, sampler, 1e-5, 0)
        assert 0.01 < sampler.counts()["engines/draft_acceptance"] < 0.99
        z, tokens = surprise(policy, sampler.generate(prompts(), 32, Sampling(24, seed=9)))
        assert abs(z) < 4 and tokens > 2000
        assert abs(surprise(policy, sampler.generate(prompts(), 32, Sampling(24, 0.7, seed=9)))[0]) > 8  # it would be seen


@pytest.mark.parametrize("keys_and_values", ["auto", "fp8"])
def test_weights_that_are_rounded_on_loading_follow_the_trainers(keys_and_values):
    policy = policy_of("dense", "bfloat16")
    with served(policy, quantization="fp8_per_channel", kv_cache_dtype=keys_and_values) as sampler:
        five_weight_updates(policy, sampler, 0.8, 0)
        version = sampler.version + 1
        change(policy.model.model, 1e-3, version)
        sampler.load(PolicyWeights(policy, version))
        file = sampler.weight_dir / WEIGHTS / "model.safetensors"
        weights = load_file(file)
        del weights["model.layers.1.mlp.down_proj.weight"]  # so small a change that old weights would pass
        save_file(weights, file, metadata={"format": "pt"})
        sampler.server.swap(Swap(version, sampler.weight_dir / WEIGHTS))
        with pytest.raises(EngineError, match=f"disagree about version {version} of the weights"):
            sampler.check(PolicyWeights(policy, version))


def test_rounded_keys_and_values_follow_the_trainers_weights():
    policy = policy_of("dense", "bfloat16")
    with served(policy, kv_cache_dtype="fp8") as sampler:
        five_weight_updates(policy, sampler, 0.8, 0)


@pytest.mark.slow
def test_a_draft_model_that_is_left_behind_costs_acceptance_alone(tmp_path):
    policy = policy_of("dense")
    policy.model.save(tmp_path / "draft")
    drafts = {"method": "draft_model", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3}
    with served(policy, speculative_config=drafts) as sampler:
        sampler.generate(prompts(), 8, Sampling(24, 0.7, seed=1))
        fresh = sampler.counts()["engines/draft_acceptance"]
        five_weight_updates(policy, sampler, 1e-5, 0)
        sampler.counts()
        z, _ = surprise(policy, sampler.generate(prompts(), 32, Sampling(24, seed=9)))
        assert abs(z) < 4 and sampler.counts()["engines/draft_acceptance"] < 0.7 * fresh
