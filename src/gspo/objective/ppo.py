"""The parts of PPO beyond its clipped token ratio (arXiv 1707.06347): advantages from values, and the value loss."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.objective.completions import Completions


def gae(rewards: Tensor, values: Tensor, y: Completions, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, Eq. 16) for completions that are rewarded at their last token.

    delta_t = r_t + gamma V_t+1 - V_t; A_t = delta_t + gamma lam A_t+1; V and A are 0 after the last token. rewards: [S].
    values: V of the state before each token [N]. Returns advantages A_it [N] and returns A_it + V_it [N].
    """
    last = y.length.cumsum(0) - 1  # [S] each completion's last token
    A = torch.zeros_like(values)
    after_V, after_A, r = torch.zeros_like(rewards), torch.zeros_like(rewards), rewards
    for back in range(int(y.length.max())):
        live = y.length > back
        t = last[live] - back
        delta = r[live] + gamma * after_V[live] - values[t]
        A[t] = delta + gamma * lam * after_A[live]
        after_V, after_A, r = after_V.clone(), after_A.clone(), torch.zeros_like(rewards)
        after_V[live], after_A[live] = values[t], A[t]
    return A, A + values


def value_loss(values: Tensor, values_old: Tensor, returns: Tensor, e_value: float) -> Tensor:
    """1/2 max( (V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2 ), per token [N]: PPO's clipped value loss."""
    near = values_old + (values - values_old).clamp(-e_value, e_value)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2


def whiten(A: Tensor) -> Tensor:
    """A standardised to mean 0 and standard deviation 1 over all tokens; zeros if all are equal."""
    centred = A - A.mean()
    spread = centred.std() if len(A) > 1 else centred.new_zeros(())
    return centred / spread if spread > 0 else torch.zeros_like(A)
