"""Random completions, and the rows of the table called as the learner does."""

import torch

from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions

LENGTHS = [3, 1, 7, 4]
BUDGET = 9


def case(seed=0, lengths=LENGTHS, shift=0.3):
    g = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    old = -torch.rand(n, generator=g, dtype=torch.float64) * 3
    logp = (old + shift * torch.randn(n, generator=g, dtype=torch.float64)).requires_grad_()
    A = torch.randn(len(lengths), generator=g, dtype=torch.float64)
    return logp, old, A, Completions.of(torch.tensor(lengths))


def denominator(name, lengths):
    return {"completions": len(lengths), "tokens": sum(lengths), "budget": len(lengths) * BUDGET}[ALGORITHMS[name].counts]


def terms(name, logp, old, A, y, low, high, mu=None):
    """The Surrogate of a row, called as the learner does."""
    row = ALGORITHMS[name]
    given = {"logp_old": old, "logp_mu": old if mu is None else mu}
    clip = {} if row.epsilon is None else {"e_low": low, "e_high": high}
    return row.loss_function(logp=logp, A=A, y=y, **{name: given[name] for name in row.likelihoods}, **clip, **row.constants)


def value_and_gradient(name, logp, old, A, y, low, high, mu=None):
    loss = terms(name, logp, old, A, y, low, high, mu).loss.sum() / denominator(name, y.length.tolist())
    return loss, torch.autograd.grad(loss, logp)[0]
