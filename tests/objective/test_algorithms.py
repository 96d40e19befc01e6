import inspect
import re

import pytest
import torch

from gspo.objective.algorithms import ALGORITHMS, ANY_SCALE
from tests.objective.cases import case, terms, value_and_gradient


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_policy_every_gradient_is_the_plain_policy_gradient(name):
    """At ratio 1 each token of a completion has the gradient -A_i, up to one factor for the completion. SAPO's gate has
    slope 1.
    """
    _, old, A, y = case(6)
    logp = old.clone().requires_grad_()
    out = terms(name, logp, old, A, y, 0.1, 0.1)
    assert not (out.clipped_low | out.clipped_high).any()
    _, gradient = value_and_gradient(name, logp, old, A, y, 0.1, 0.1)
    share = gradient / -y.spread(A)
    for part, n in zip(share.split(y.length.tolist()), y.length.tolist()):
        per_token = {"completions": 1 if name == "luspo" else 1 / n, "tokens": 1, "budget": 1}[ALGORITHMS[name].counts]
        total = {"completions": 4, "tokens": 15, "budget": 36}[ALGORITHMS[name].counts]
        torch.testing.assert_close(part, torch.full_like(part, per_token / total))


@pytest.mark.parametrize("row", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_row_is_whole(row):
    """What stands in it is what its loss takes, and no more."""
    takes = set(inspect.signature(row.loss_function).parameters)
    clip = {"e_low", "e_high"} if row.epsilon is not None else set()
    assert takes == {"logp", "A", "y", *row.likelihoods, *row.constants, *clip}
    assert (row.epsilon is None) == (row.epsilon_high is None)
    assert row.level in ("sequence", "turn", "token") and row.counts in ("completions", "tokens", "budget")
    assert row.scale_rewards and set(row.scale_rewards) <= set(ANY_SCALE)
    assert re.search(r"\d{4}\.\d{5}", row.source)


def test_the_papers_numbers():
    """Sections 4.1 and 5.1 of GSPO: clip ranges of 3e-4 and 4e-4, for GRPO 0.2 and 0.27, and four mini-batches."""
    gspo, grpo = ALGORITHMS["gspo"], ALGORITHMS["grpo"]
    assert (gspo.epsilon, gspo.epsilon_high, gspo.level, gspo.counts) == (3e-4, 4e-4, "sequence", "completions")
    assert (grpo.epsilon, grpo.epsilon_high, grpo.level) == (0.2, 0.27, "token")
    assert gspo.mini_batches == grpo.mini_batches == 4 and gspo.scale_rewards[0] == "group"
