"""Tokens that are marked before the first update of a step: without a gradient, whatever the micro-batches."""

from dataclasses import replace

import pytest
import torch

from tests.learner.cases import LENGTHS
from tests.learner.test_learner import learner, parts
from tests.objective.reference import objective


@pytest.mark.parametrize("name", ["gspo", "grpo", "gspo_token", "dapo", "cispo", "reinforce"])
@pytest.mark.parametrize("max_tokens", [40, 1])
def test_only_the_tokens_of_highest_entropy_have_a_gradient(name, max_tokens):
    """In the second update, by a naive loop: the others are constants, in s_i too, and count in every mean."""
    made = learner(name=name, top_entropy=0.3, old_logprobs="recompute")
    made.micro_batches.max_tokens, made.optimizer.config = max_tokens, replace(made.optimizer.config, max_grad_norm=1e9)
    batch = parts()
    batch[0][1] = replace(batch[0][1], advantage=0.0)  # no update reads it, so its tokens are not among those that count
    before = made.policy.table.detach().clone()
    H = [-sum(p * p.log() for p in row.softmax(-1)).item() for row in before]
    at = [[c.tokens[t - 1].item() for t in range(len(c.tokens)) if c.sampled[t]] for part in batch for c in part]
    tau = sorted((H[x] for i in (0, 2, 3, 4, 5) for x in at[i]), reverse=True)[round(0.3 * 21) - 1]
    made.prepare(batch, recompute=True)
    made.update(0)
    policy, step, found = made.policy, made.optimizer.adamw.step, []
    made.optimizer.adamw.step = lambda: (found.append(policy.table.grad.clone()), step())
    table = policy.table.detach().clone().requires_grad_()
    logp, old = [], []
    for c, states in zip(batch[1], at[3:]):
        for x, y in zip(states, c.tokens[c.sampled].tolist()):
            trained = table[x].log_softmax(-1)[y]
            logp.append(trained if H[x] >= tau - 1e-12 else trained.detach())
            old.append(before[x].log_softmax(-1)[y])
    A = [float(torch.tensor(c.advantage)) for c in batch[1]]
    row, x, y = made.objective.row, torch.stack(logp), torch.stack(old)
    expected = objective(name, x, y, A, LENGTHS[3:], row.epsilon, row.epsilon_high, 9, **row.constants)
    (wanted,) = torch.autograd.grad(-expected, table)
    assert made.update(1).metrics["loss"] == pytest.approx(-expected.item(), rel=1e-12) and wanted.any()
    torch.testing.assert_close(found[0], wanted, rtol=1e-10, atol=1e-14)
