"""A handle on weights: what a sampler may ask it."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gspo.backends.hf.policy import HFPolicy
from gspo.learner.imitation import Imitation
from gspo.learner.learner import LocalLearner
from gspo.learner.memory import MicroBatches
from gspo.learner.weights import PolicyWeights
from tests import tiny_run
from tests.learner.cases import optimizer_of


def test_tensors_are_the_policys_own_and_a_folder_holds_them(tmp_path):
    model = tiny_run.model()
    weights = PolicyWeights(HFPolicy(model), 4)
    tensors = dict(weights.tensors())
    assert weights.version == 4 and all(tensors[name] is value for name, value in model.model.named_parameters())
    weights.save(str(tmp_path / "plain"))
    weights.save(str(tmp_path / "merged"), merged=True)  # nothing to merge: the same
    given = {name: x for layer in weights.layers() for name, x in layer.items()}
    saved = load_file(tmp_path / "plain" / "model.safetensors")
    assert given.keys() == saved.keys() and all(torch.equal(given[name], x) for name, x in saved.items())
    for folder in ("plain", "merged"):
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
        assert all(torch.equal(saved[name], value) for name, value in model.model.state_dict().items())


class Full(HFPolicy):
    """Its second weight finds no room, nor do its files."""

    def weights(self):
        yield next(iter(super().weights()))
        self.save("")  # raises the same

    def layers(self):
        yield next(iter(super().layers()))
        self.save("")

    def save(self, folder, *, merged=False):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def test_memory_that_does_not_suffice_for_weights_is_an_error_with_a_remedy(tmp_path):
    policy, got = Full(tiny_run.model()), []
    weights = PolicyWeights(policy, 0)
    learner = LocalLearner(policy, optimizer_of(policy), Imitation(), MicroBatches(100))
    gives = [lambda: got.extend(weights.tensors()), lambda: got.extend(weights.layers())]
    for work in (*gives, lambda: weights.save(str(tmp_path)), lambda: learner.save(tmp_path)):
        with pytest.raises(RuntimeError, match=r"out of memory on rank 0 while it .* change nothing: .*scale\.ranks"):
            work()
    assert len(got) == 2
