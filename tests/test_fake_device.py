"""The GPU that is not there notices what it is there to notice."""

import pytest
import torch

from tests.fake_device import ALL, NUMBER, SIZE, STAGED, TO_DEVICE, TO_HOST, OnGPU, fake_gpu

WAITS = [
    (lambda x: x.sum().item(), NUMBER),
    (lambda x: bool((x > 0).any()), NUMBER),
    (lambda x: [1] if x[0, 0] > 0 else [2], NUMBER),
    (lambda x: torch.equal(x, x), NUMBER),
    (lambda x: x.cpu(), TO_HOST),
    (lambda x: x.to("cpu", torch.float64), TO_HOST),
    (lambda x: x.tolist(), TO_HOST),
    (lambda x: torch.empty(2, 3).copy_(x), TO_HOST),
    (lambda x: torch.empty(2, 3).copy_(x, non_blocking=True), TO_HOST),
    (lambda x: torch.empty_like(x, device="cpu", pin_memory=True).copy_(x), TO_HOST),
    (lambda x: torch.cuda.synchronize(), ALL),
    (lambda x: x.nonzero(), SIZE),
    (lambda x: x[x > 0], SIZE),
    (lambda x: x.masked_select(x > 0), SIZE),
    (lambda x: x.long().abs().flatten().bincount(), SIZE),
    (lambda x: x.repeat_interleave(torch.ones(2, dtype=torch.long, device="cuda"), 0), SIZE),
    (lambda x: x.unique(), SIZE),
    (lambda x: torch.tensor([1.0, 2.0], device="cuda"), TO_DEVICE),
    (lambda x: torch.ones(2).to(x.device), TO_DEVICE),
    (lambda x: torch.ones(2).to(x), TO_DEVICE),
    (lambda x: x[torch.tensor([0])], TO_DEVICE),
    (lambda x: x.copy_(torch.ones(2, 3)), TO_DEVICE),
]


def test_what_waits_is_counted_once():
    for number, (work, kind) in enumerate(WAITS):
        with fake_gpu() as gpu:
            x = torch.randn(2, 3, device="cuda")
            gpu.clear()
            work(x)
        assert [sync.kind for sync in gpu.syncs] == [kind] and not gpu.staged, (number, kind)


def test_what_does_not_wait_is_not_counted():
    with fake_gpu() as gpu:
        x = torch.randn(2, 3, device="cuda", requires_grad=True)
        y = x.new_zeros(3) + torch.arange(3, device=x.device) + torch.tensor(1.0)
        torch.where(x > 0, x, y).masked_fill(x > 1, 0).sum().backward()
        torch.ones(2).to("cuda", non_blocking=True)
        pinned = torch.empty_like(x, device="cpu", pin_memory=True)
        pinned.copy_(x.detach(), non_blocking=True)
        pinned.to("cuda", non_blocking=True)
        zeros, meta = torch.zeros_like(x, device="cpu"), torch.zeros(2, device="meta")
        assert zeros.tolist() == [[0.0] * 3] * 2 and meta.device.type == "meta"
    assert not gpu.syncs and [sync.kind for sync in gpu.staged] == [STAGED]
    assert isinstance(x.grad, OnGPU) and pinned.device.type == "cpu"


MIXED = [
    lambda x: x + torch.ones(3),
    lambda x: torch.cat([x, torch.ones(1, 3)]),
    lambda x: x @ torch.ones(3, 1),
    lambda x: x[:, :2].index_select(0, torch.tensor([0])),
    lambda x: torch.where(torch.ones(2, 3) > 0, x, x),
]


def test_tensors_of_both_devices_in_one_operation_are_refused(subtests):
    for number, work in enumerate(MIXED):
        with subtests.test(number=number), fake_gpu(), pytest.raises(RuntimeError, match="on cuda:0 and on cpu"):
            work(torch.randn(2, 3, device="cuda"))


def test_numbers_gradients_and_ties_are_the_cpus():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    index = torch.tensor([1, 2, 2])
    model(index).square().sum().backward()
    expected = model[0].weight.grad.clone()
    model.zero_grad()
    with fake_gpu():
        model.to(device="cuda", dtype=torch.float32)
        assert model[1].weight is model[0].weight and model[0].weight.device == torch.device("cuda", 0)
        model(index.to("cuda")).square().sum().backward()
        assert torch.equal(model[0].weight.grad.cpu(), expected)
