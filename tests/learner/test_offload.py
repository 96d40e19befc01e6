"""AdamW with its moments in the host's memory steps as a plain one, to the last bit."""

import copy
from types import SimpleNamespace

import pytest
import torch

from gspo.assembly import learners
from gspo.config.policy import ResolvedOptimizer
from gspo.config.schema import Config
from gspo.config.training import TrainConfig
from gspo.learner import offload
from gspo.learner.offload import Resting
from gspo.learner.optimizer import Optimizer
from tests.backends.hf.families import tiny

CONFIG = ResolvedOptimizer(lr=1e-2, weight_decay=0.1, warmup=2)


def weights():
    draw = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in ((3, 4), (5,), (40,), (2, 2), ())]


def optimizer(own, offloaded):
    return Optimizer(own, CONFIG, 10, 0, offload=offloaded)


def step(made, seed, without=()):
    draw = torch.Generator().manual_seed(seed)
    for i, parameter in enumerate(made.parameters):
        gradient = torch.randn(parameter.shape, generator=draw)
        parameter.grad = None if i in without else gradient
    return made.step(1.0)


def same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, other.parameters))


@pytest.mark.parametrize("bucket", [1, 20, 1000])
def test_steps_as_a_plain_optimizer(bucket, monkeypatch):
    monkeypatch.setattr(offload, "BUCKET", bucket)
    plain, ours = optimizer(weights(), False), optimizer(weights(), True)
    for seed in range(5):
        without = (1, 3) if seed == 2 else ()  # weights that saw no gradient are not stepped
        assert step(plain, seed, without) == step(ours, seed, without)
        same(plain, ours)
        assert not ours.adamw.state and all(p.grad is None for p in ours.parameters)


@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_zero_gradients_step_what_earlier_steps_have_reached(offloaded, begun):
    """As zeros in each gradient do: moments and weights decay. What was never reached, here the third weight, stays."""
    plain, ours = optimizer(weights(), False), optimizer(weights(), offloaded)
    if begun:
        assert step(plain, 0, without=(2,)) == step(ours, 0, without=(2,))
    for p in plain.parameters:
        p.grad = torch.zeros_like(p)
    if begun:
        plain.parameters[2].grad = None
    ours.set_zero_gradients()
    before = [p.detach().clone() for p in ours.parameters]
    assert plain.step(0.0) == ours.step(0.0)
    same(plain, ours)
    moved = [not torch.equal(p, x) for p, x in zip(ours.parameters, before)]
    assert moved == ([True, True, False, True, True] if begun else [True, False, False, True, False])


@pytest.mark.parametrize("first", [False, True])
def test_a_checkpoint_of_either_continues_in_the_other(first):
    begun, other = optimizer(weights(), first), optimizer(weights(), not first)
    for seed in range(3):
        step(begun, seed)
    with torch.no_grad():
        for a, b in zip(begun.parameters, other.parameters):
            b.copy_(a)
    other.load_state_dict(copy.deepcopy(begun.state_dict()))
    for seed in range(3, 6):
        step(begun, seed)
        step(other, seed)
        same(begun, other)


def test_buckets_hold_no_more_than_their_size_or_one_weight(monkeypatch):
    ours = offload.Offloaded(optimizer(weights(), False).adamw, weights())
    for parameter in ours.parameters:
        parameter.grad = torch.zeros_like(parameter)
    ours.parameters[3].grad = None
    monkeypatch.setattr(offload, "BUCKET", 20)
    assert [[p.numel() for p in part] for part in ours.buckets()] == [[12, 5], [40], [1]]


def held(made):
    return {id(x) for state in made.moments.host.values() for x in state.values()}


def test_a_loaded_state_takes_the_room_that_is_there():
    ours = optimizer(weights(), True)
    step(ours, 0)
    before, state = held(ours), copy.deepcopy(ours.state_dict())
    del state["adamw"]["state"][1]
    ours.load_state_dict(state)
    assert held(ours) < before and len(ours.moments.host) == len(ours.parameters) - 1


def test_a_model_rests_on_the_host_and_works_on_its_device(monkeypatch):
    monkeypatch.setattr(offload, "arrived", lambda host, device: host.clone())  # as if the device were another
    model = tiny("qwen3").model
    weight = model.lm_head.weight
    expected = {name: x.clone() for name, x in model.state_dict().items()}
    resting = Resting(model)
    held = weight.data_ptr()
    with pytest.raises(KeyError), resting.on_device():
        assert weight.data_ptr() != held and weight is model.lm_head.weight
        assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())
        raise KeyError
    assert weight.data_ptr() == held
    assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


def test_a_model_on_the_host_is_not_copied():
    model = tiny("qwen3").model
    weight, resting = model.lm_head.weight, Resting(model)
    held = weight.data_ptr()
    with resting.on_device():
        assert weight.data_ptr() == held


def test_a_run_offloads_where_it_is_told():
    """On a CPU the setting is refused (config/conflicts.py)."""
    policy = SimpleNamespace(parameters=weights, model=SimpleNamespace(model=torch.nn.Module(), named_parameters=tuple))
    for told in (False, True):
        made = learners.optimizer_of(Config(train=TrainConfig(offload_optimizer=told)), policy, 10)
        assert isinstance(made.moments, offload.Offloaded) == told
