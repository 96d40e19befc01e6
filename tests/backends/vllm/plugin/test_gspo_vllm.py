"""What a worker does about its group and its adapter. What needs vLLM itself is in the folder engine."""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.plugin.gspo_vllm import Extension, repair_adapters
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
        self.gspo_receiving = torch.device("cpu"), PATIENCE
        self.device, self.rank = torch.device("cpu"), 0
        parallel = SimpleNamespace(data_parallel_index=0, world_size=1, data_parallel_size=1)
        self.vllm_config, self.model_config = SimpleNamespace(parallel_config=parallel, quant_config=None), None
        self.vllm_config.cache_config = SimpleNamespace(cache_dtype="auto")
        self.model = torch.nn.Module()
        self.model_runner = SimpleNamespace(get_model=lambda: self.model)

    def reload_weights(self, weights_iterator):
        for _ in weights_iterator:
            pass


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """The worker finds the file by its name."""
    monkeypatch.setitem(sys.modules, "gspo_transfer", wire)


@pytest.fixture
def told(monkeypatch):
    """What happens, in order. vLLM's two functions only say that they were called."""
    told = []
    config, reload = ModuleType("vllm.config"), ModuleType("vllm.model_executor.model_loader.reload")
    config.set_current_vllm_config = lambda given: nullcontext()
    reload.finalize_layerwise_reload = lambda model, given: told.append("put together")
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (config, reload):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return told


def test_a_group_that_failed_is_aborted_before_the_model_is_put_together(told):
    """Its broadcast would hold up whatever the GPU is to do next."""
    worker = Worker(told)
    with pytest.raises(RuntimeError, match="the trainer is gone"):
        worker.gspo_receive("of now")
    assert told == ["aborted", "put together"] and worker.gspo_group is None


def rounded_by(worker, name):
    """Gives the worker a model of two layers, of which a reload forgets the second, quantized by this method of vLLM, or
    not at all (None).
    """
    worker.vllm_config.quant_config = SimpleNamespace(get_name=lambda: name) if name else None
    worker.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    worker.reload_weights = lambda **given: torch.nn.init.ones_(worker.model[0].weight)
    return [p.detach().clone() for p in worker.model.parameters()]


@pytest.mark.parametrize(("method", "cached"), [("online", "auto"), (None, "fp8"), ("online", "int8_per_token_head")])
def test_a_layer_that_a_reload_forgets_keeps_no_old_weights(told, method, cached):
    """A gap of old weights can be less than that of rounded weights, keys or values; one of NaN cannot."""
    worker = Worker(told)
    rounded_by(worker, method)
    worker.vllm_config.cache_config.cache_dtype = cached
    worker.model.register_parameter("packed", torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False))
    worker.gspo_put()
    weight, *forgotten = (p.detach() for p in worker.model[:2].parameters())
    assert not told and weight.tolist() == [[1, 1], [1, 1]] and worker.model.packed.tolist() == [127] * 3
    assert all(p.isnan().all() for p in forgotten)


def test_weights_of_an_engine_that_rounds_nothing_are_only_reloaded(told):
    worker = Worker(told)
    *_, weight, bias = rounded_by(worker, None)
    worker.gspo_put()
    assert torch.equal(worker.model[1].weight, weight) and torch.equal(worker.model[1].bias, bias)


def test_weights_of_a_quantized_checkpoint_are_not_replaced(told):
    """Their scales would stay. The group is left, so that the trainer does not wait for it."""
    worker = Worker(told)
    before = rounded_by(worker, "compressed-tensors")
    with pytest.raises(RuntimeError, match=r"quantized by 'compressed-tensors', and these .*--quantization fp8_per_tensor"):
        worker.gspo_put()
    assert told == ["aborted", "put together"]
    assert all(torch.equal(p, old) for p, old in zip(worker.model.parameters(), before))


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


def test_a_step_does_not_load_the_adapter_again(monkeypatch):
    """vLLM keeps the request that loaded it and gives a copy of it to each completion."""
    read = []

    class Manager:
        """Loads as vLLM's: at a request of its own, and in each step."""

        def add_adapter(self, request):
            if not read or request.load_inplace:
                read.append(request.path)

        def set_active_adapters(self, requests, mapping):
            for request in requests:
                self.add_adapter(request)

    module = ModuleType("vllm.lora.worker_manager")
    module.WorkerLoRAManager = type("WorkerLoRAManager", (Manager,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("vllm", "vllm.lora"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    repair_adapters()
    manager = module.WorkerLoRAManager()
    for version in ("1", "2"):
        manager.add_adapter(SimpleNamespace(path=version, load_inplace=True))
        copy = SimpleNamespace(path=version, load_inplace=True)
        for _ in range(3):
            manager.set_active_adapters({1: copy}.values(), None)
    assert read == ["1", "2"]
