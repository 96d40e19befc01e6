import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.completions import Completions
from gspo.objective.ppo import gae, value_loss, whiten


def naive(rewards, values, lengths, gamma, lam):
    out, start = [], 0
    for r, n in zip(rewards, lengths):
        V, A = values[start : start + n] + [0.0], [0.0] * (n + 1)
        for t in reversed(range(n)):
            delta = (r if t == n - 1 else 0.0) + gamma * V[t + 1] - V[t]
            A[t] = delta + gamma * lam * A[t + 1]
        out += A[:n]
        start += n
    return out


@given(st.integers(0, 10_000), st.floats(0.5, 1), st.floats(0, 1), st.lists(st.integers(1, 6), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_gae_equals_the_naive_loop(seed, gamma, lam, lengths):
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(len(lengths), generator=g, dtype=torch.float64)
    values = torch.randn(sum(lengths), generator=g, dtype=torch.float64)
    A, returns = gae(rewards, values, Completions.of(torch.tensor(lengths)), gamma, lam)
    assert A.tolist() == pytest.approx(naive(rewards.tolist(), values.tolist(), lengths, gamma, lam))
    assert torch.allclose(returns, A + values)


def test_gae_by_hand():
    # One completion of two tokens, V = 0.2, 0.5, reward 1: delta = 0.3, 0.5; A = 0.3 + 0.9 * 0.5 = 0.75, 0.5
    y = Completions.of(torch.tensor([2]))
    A, returns = gae(torch.tensor([1.0]), torch.tensor([0.2, 0.5]), y, gamma=1.0, lam=0.9)
    assert A.tolist() == pytest.approx([0.75, 0.5]) and returns.tolist() == pytest.approx([0.95, 1.0])
    A, _ = gae(torch.tensor([1.0]), torch.tensor([0.2, 0.5]), y, gamma=1.0, lam=1.0)
    assert A.tolist() == pytest.approx([0.8, 0.5])  # reward less value


def test_value_loss_by_hand():
    values = torch.tensor([1.0, 1.0, 0.1], requires_grad=True)
    loss = value_loss(values, torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 2.0, 1.0]), 0.2)
    # |V - R| = 1, 1, 0.9; clipped V = 0.7, 0.7, 0.1: |.| = 0.7, 1.3, 0.9
    assert loss.tolist() == pytest.approx([0.5, 1.3**2 / 2, 0.405])
    assert torch.autograd.grad(loss.sum(), values)[0].tolist() == pytest.approx([1.0, 0.0, -0.9])


def test_whitened():
    A = whiten(torch.tensor([1.0, 2.0, 6.0]))
    assert float(A.mean()) == pytest.approx(0, abs=1e-6) and float(A.std()) == pytest.approx(1)
    assert not whiten(torch.ones(3)).any() and not whiten(torch.ones(1)).any()
