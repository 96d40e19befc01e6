"""A handle on weights: what a sampler may ask it."""

import torch
from transformers import AutoModelForCausalLM

from gspo.backends.hf.policy import HFPolicy
from gspo.learner.weights import PolicyWeights
from tests import tiny_run


def test_tensors_are_the_policys_own_and_a_folder_holds_them(tmp_path):
    model = tiny_run.model()
    weights = PolicyWeights(HFPolicy(model), 4)
    tensors = dict(weights.tensors())
    assert weights.version == 4 and all(tensors[name] is value for name, value in model.model.named_parameters())
    weights.save(str(tmp_path / "plain"))
    weights.save(str(tmp_path / "merged"), merged=True)  # nothing to merge: the same
    for folder in ("plain", "merged"):
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
        assert all(torch.equal(saved[name], value) for name, value in model.model.state_dict().items())
