import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.routing import changed, loads, max_violation


def test_changed_by_hand():
    a = torch.tensor([[[0, 1, 2], [3, 4, 5]]])
    b = torch.tensor([[[2, 1, 0], [3, 0, 1]]])
    assert changed(a, b).tolist() == [[0.0, pytest.approx(2 / 3)]]
    with pytest.raises(ValueError, match="cannot be compared"):
        changed(a, b[..., :2])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(4, 9))
def test_changed_is_symmetric_and_ignores_order(seed, k, experts):
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.stack([torch.randperm(experts, generator=draw)[:k] for _ in range(6)])[None] for _ in range(2))
    share = changed(a, b)
    assert torch.allclose(share, changed(b, a)) and not changed(a, a.flip(-1)).any()
    naive = [1 - len(set(x) & set(y)) / k for x, y in zip(a[0].tolist(), b[0].tolist())]
    assert share[0].tolist() == pytest.approx(naive, abs=1e-6)


def test_max_violation_by_hand():
    even = torch.tensor([[[0, 1], [2, 3]]])
    assert max_violation(loads(even, 4)) == 0
    assert max_violation(loads(torch.tensor([[[0, 1], [0, 1]]]), 4)) == 1  # experts / k - 1
    assert max_violation(loads(torch.tensor([[[0, 1], [-1, -1]], [[0, 1], [2, 3]]]), 4)) == 0.5  # mean over layers


def test_unknown_choices_have_not_changed():
    a = torch.tensor([[0, 1], [-1, -1], [2, 3]])
    assert changed(a, torch.tensor([[1, 2], [0, 1], [3, 2]])).tolist() == [0.5, 0.0, 0.0]
