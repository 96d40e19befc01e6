"""The drop-in losses: this project's objectives on another program's padded rows."""

import pytest
import torch

from gspo import dropin
from gspo.config.policy import AlgorithmConfig
from gspo.learner import layout
from gspo.learner.algorithm import resolve
from gspo.learner.objective import PolicyObjective
from gspo.objective.algorithms import ALGORITHMS
from gspo.types import Outputs
from tests.bigram import Bigram
from tests.learner.test_update import LENGTHS, completions

NAMES = [name for name, row in ALGORITHMS.items() if not row.critic]


def rows(values, T=12, before=2):
    """[N] as rows [B, T], with `before` places of padding or tool output ahead of each completion."""
    wide = torch.full((len(LENGTHS), T + before), 7.5, dtype=values.dtype)
    mask = torch.zeros(len(LENGTHS), T + before)
    for row, part in enumerate(values.split(LENGTHS)):
        wide[row, before : before + len(part)] = part
        mask[row, before : before + len(part)] = 1
    return wide, mask


def given():
    batch = completions()
    built = layout.build(batch)
    return batch, built, Bigram().forward(built, entropy=True)


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_are_the_learners(name):
    batch, built, out = given()
    row, config, _ = resolve(AlgorithmConfig(name=name))
    objective = PolicyObjective(row, config, 9)
    logp = out.logp.detach().requires_grad_()
    terms, stats = objective.terms(Outputs(logp, out.entropy), built)
    expected = terms.sum() / objective.denominator(batch)
    (gradient,) = torch.autograd.grad(expected, logp)
    wide, mask = rows(out.logp.detach())
    wide.requires_grad_()
    A = torch.tensor([completion.advantage for completion in batch], dtype=torch.float64)
    for advantages in (A, A[:, None], A[:, None].expand(wide.shape)):
        value, metrics = dropin.loss(
            name, wide, rows(built.logp_old)[0], advantages, mask, logp_mu=rows(built.logp_mu)[0], max_completion_length=9
        )
        (theirs,) = torch.autograd.grad(value, wide)
        assert float(value) == pytest.approx(float(expected), rel=1e-12)
        torch.testing.assert_close(theirs[mask.bool()], gradient, rtol=1e-12, atol=1e-15)
        assert not theirs[~mask.bool()].any()
    summary = objective.summary(stats)
    for key in ("clip_ratio/tokens", "ratio/mean"):
        assert metrics[key] == pytest.approx(summary[key], rel=1e-6)


def test_uneven_micro_batches_need_the_whole_count():
    _, built, out = given()
    wide, mask = rows(out.logp.detach())
    old, A = rows(built.logp_old)[0], built.advantage
    whole, _ = dropin.loss("gspo", wide, old, A, mask)
    parts = [dropin.loss("gspo", wide[s], old[s], A[s], mask[s], denominator=6)[0] for s in (slice(0, 1), slice(1, 6))]
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_a_completion_that_is_all_padding_does_not_count():
    _, built, out = given()
    wide, mask = rows(out.logp.detach())
    old, A = rows(built.logp_old)[0], built.advantage
    expected, _ = dropin.loss("gspo", wide[1:], old[1:], A[1:], mask[1:])
    mask[0] = 0
    assert float(dropin.loss("gspo", wide, old, A, mask)[0]) == pytest.approx(float(expected))


X, M = torch.zeros(2, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("gsop", X, X, X[:, 0], M), {}, "algorithm.name = 'gsop'.*gspo"),
        (("gspo", X[0], X[0], X[0], M[0]), {}, r"logp: a tensor \[B, T\]"),
        (("gspo", X, X[:, :2], X[:, 0], M), {}, r"logp_old: shape \[2, 2\]"),
        (("gspo", X, X, X[0], M), {}, r"advantages: shape \[3\]; \[2\] or \[2, 3\]"),
        (("gspo", X, X, X[:, 0], 0 * M), {}, "mask: no token"),
        (("gspo", X, X, torch.arange(6.0).view(2, 3), M), {}, "advantages differ within a completion"),
        (("gspo", X, X, X[:, 0], M), {"epsilon": "auto"}, "not for a drop-in loss"),
        (("gspo", X, X, X[:, 0], M), {"beta": 0.1}, "not for a drop-in loss"),
        (("ppo", X, X, X[:, 0], M), {}, "not for a drop-in loss"),
        (("dr_grpo", X, X, X[:, 0], M), {}, "pass max_completion_length"),
        (("gspo", X, X, X[:, 0], M), {"epsilon": -1.0, "epsilon_high": 0.1}, "algorithm.epsilon = -1.0"),
        (("gspo", X, X, X[:, 0], M), {"epsilon_hihg": 0.1}, "epsilon_hihg.*did you mean.*epsilon_high"),
    ],
)
def test_bad_input(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        dropin.loss(*arguments, **settings)
