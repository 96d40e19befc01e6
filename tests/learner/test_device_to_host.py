import torch

from gspo.learner.device_to_host import nonzero, on_host
from tests.fake_device import SIZE, TO_HOST, fake_gpu

TENSORS = [
    torch.tensor([True, False, True]), torch.arange(5, dtype=torch.int16), torch.randn(2, 3), torch.tensor(2.5),
    torch.randn(3, dtype=torch.float64), torch.zeros(0), torch.arange(6).view(2, 3).T, torch.randn(3).bfloat16(),
]  # fmt: skip


def test_all_come_to_the_host_by_one_copy():
    with fake_gpu() as gpu:
        there = [x.to("cuda") for x in TENSORS]
        gpu.clear()
        here = on_host(there)
        assert [sync.kind for sync in gpu.syncs] == [TO_HOST]
    for actual, expected in zip(here, TENSORS):
        assert actual.dtype == expected.dtype and torch.equal(actual, expected)
        assert actual.untyped_storage().nbytes() == expected.numel() * expected.element_size()  # and nothing of the others


def test_what_is_there_stays_as_it_is():
    assert all(a is b for a, b in zip(on_host(TENSORS), TENSORS))


def test_who_asks_again_does_not_wait_again_unless_the_numbers_changed():
    with fake_gpu() as gpu:
        x = torch.tensor([0.0, 2.0, 0.0, -1.0]).to("cuda")
        gpu.clear()
        assert nonzero(x) is nonzero(x) and nonzero(x).tolist() == [1, 3]
        assert [sync.kind for sync in gpu.syncs] == [SIZE, TO_HOST]
        x[0] = 5.0
        assert nonzero(x).tolist() == [0, 1, 3]


def test_nan_is_not_zero():
    assert nonzero(torch.tensor([0.0, float("nan")])).tolist() == [1]
