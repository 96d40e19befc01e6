"""What a worker does about its group. What needs vLLM itself is in engine/test_transfer.py."""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.plugin.gspo_vllm import Extension
from tests.patience import PATIENCE


class Group:
    """A process group whose broadcasts fail. told: what happened to it."""

    def __init__(self, told):
        self.told = told

    def broadcast(self, tensors, options):
        raise RuntimeError("the trainer is gone")

    def abort(self):
        self.told.append("aborted")
        raise RuntimeError("it is broken")


class Worker(Extension):
    """A worker of a model without layers. told: in which order things happen."""

    def __init__(self, told):
        self.gspo_name, self.gspo_group = "of now", Group(told)
        self.gspo_receiving = torch.device("cpu"), PATIENCE, False
        self.device, self.rank = torch.device("cpu"), 0
        parallel = SimpleNamespace(data_parallel_index=0, world_size=1, data_parallel_size=1)
        self.vllm_config, self.model_config = SimpleNamespace(parallel_config=parallel), None
        self.model_runner = SimpleNamespace(get_model=torch.nn.Module)

    def reload_weights(self, weights_iterator):
        for _ in weights_iterator:
            pass


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """The worker finds the file by its name."""
    monkeypatch.setitem(sys.modules, "gspo_transfer", wire)


def test_a_group_that_failed_is_aborted_before_the_model_is_put_together(monkeypatch):
    """Its broadcast would hold up whatever the GPU is to do next. vLLM's two functions only say that they were called."""
    told = []
    config, reload = ModuleType("vllm.config"), ModuleType("vllm.model_executor.model_loader.reload")
    config.set_current_vllm_config = lambda given: nullcontext()
    reload.finalize_layerwise_reload = lambda model, given: told.append("put together")
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (config, reload):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    worker = Worker(told)
    with pytest.raises(RuntimeError, match="the trainer is gone"):
        worker.gspo_receive("of now")
    assert told == ["aborted", "put together"] and worker.gspo_group is None


def test_the_group_of_before_is_aborted_though_no_other_comes_about(monkeypatch):
    told = []
    worker = Worker(told)

    def nobody(*args):
        told.append("looked for the trainer")
        raise RuntimeError("nobody is there")

    monkeypatch.setattr(wire, "store_at", nobody)
    with pytest.raises(RuntimeError, match="nobody is there"):
        worker.gspo_join("127.0.0.1", "9", "gloo", str(PATIENCE), "next")
    assert told == ["aborted", "looked for the trainer"] and worker.gspo_group is None


def test_weights_of_a_group_that_was_given_up_are_not_waited_for():
    """A call that comes late would take what is sent to the next one, and the model would stay as it was."""
    told = []
    worker = Worker(told)
    with pytest.raises(RuntimeError, match="has given up the group"):
        worker.gspo_receive("before")
    assert not told and worker.gspo_group is not None
    worker.gspo_group = None
    with pytest.raises(RuntimeError, match="has given up the group"):
        worker.gspo_receive("of now")
