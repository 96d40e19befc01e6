"""The drop-in losses: this project's objectives on another program's padded rows."""

import dataclasses

import pytest
import torch

from gspo import dropin
from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.learner import layout
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.objective.losses import grpo, gspo_token
from gspo.types import Outputs
from tests.bigram import Bigram
from tests.learner.cases import LENGTHS, completions, objective_of

NAMES = [name for name, row in ALGORITHMS.items() if not row.critic and not row.by_group]


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
    objective = objective_of(name)
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


def test_bfloat16_is_taken_as_what_it_says():
    """Not computed in: its steps near 1 are wider than the clip range."""
    generator = torch.Generator().manual_seed(0)
    logp_old = (-torch.rand(8, 512, generator=generator)).bfloat16()
    logp = (logp_old + 0.02 * torch.randn(8, 512, generator=generator)).bfloat16()
    given = torch.tensor([1.0, -1.0] * 4), torch.ones(8, 512)
    coarse, wide = (dropin.loss("gspo", a, b, *given)[1] for a, b in ((logp, logp_old), (logp.float(), logp_old.float())))
    assert coarse == wide and coarse["clip_ratio/tokens"] > 0


def test_uneven_micro_batches_need_the_whole_count_and_padding_does_not_count():
    _, built, out = given()
    wide, mask = rows(out.logp.detach())
    old, A = rows(built.logp_old)[0], built.advantage
    for name, counted in (("gspo", 6), ("dapo", int(mask.sum())), ("dr_grpo", 6)):  # the last also divides by the longest
        whole, _ = dropin.loss(name, wide, old, A, mask, max_completion_length=9)
        count = {"denominator": counted, "max_completion_length": 9}
        parts = [dropin.loss(name, wide[s], old[s], A[s], mask[s], **count)[0] for s in (slice(0, 1), slice(1, 6))]
        assert float(sum(parts)) == pytest.approx(float(whole))
    expected, _ = dropin.loss("gspo", wide[1:], old[1:], A[1:], mask[1:])
    mask[0] = 0  # a completion that is all padding
    assert float(dropin.loss("gspo", wide, old, A, mask)[0]) == pytest.approx(float(expected))


def test_advantages_by_token():
    """Eq. 13: A_it stands beside its token."""
    _, built, out = given()
    y = Completions(built.completion, built.length)
    A = torch.linspace(-1, 1, len(built.logp_old), dtype=torch.float64)
    wide, mask = rows(out.logp.detach())
    wide.requires_grad_()
    for name, loss in (("gspo_token", gspo_token), ("grpo", grpo)):
        _, config, _ = resolve(AlgorithmConfig(name=name))
        logp = out.logp.detach().requires_grad_()
        expected = loss(logp, built.logp_old, A, y, config.epsilon, config.epsilon_high).loss.mean()
        (gradient,) = torch.autograd.grad(expected, logp)
        value, metrics = dropin.loss(name, wide, rows(built.logp_old)[0], rows(A)[0], mask)
        (theirs,) = torch.autograd.grad(value, wide)
        assert float(value) == pytest.approx(float(expected), rel=1e-12)
        torch.testing.assert_close(theirs[mask.bool()], gradient, rtol=1e-12, atol=1e-15)
        assert not theirs[~mask.bool()].any() and set(metrics) == set(dropin.METRICS)


def test_advantages_where_no_token_was_sampled_are_not_read():
    _, built, out = given()
    wide, mask = rows(out.logp.detach())
    mask[0] = 0
    A = torch.linspace(-1, 1, len(mask), dtype=torch.float64)[:, None].expand(mask.shape)
    clean, junk = (dropin.loss("gspo", wide, rows(built.logp_old)[0], x, mask) for x in (A, A.where(mask > 0, torch.nan)))
    assert torch.equal(clean[0], junk[0]) and clean[1] == junk[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_micro_batch_without_a_token_has_loss_and_gradient_zero(name):
    """As where all completions of it were cut off and are left out; what stands at padding is not read."""
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    junk = torch.tensor([[float("nan"), float("-inf"), 0.0]]).expand(2, 3)
    value, metrics = dropin.loss(name, logp + junk, junk, torch.zeros(2), torch.zeros(2, 3), max_completion_length=3)
    value.backward()
    assert float(value) == 0.0 and torch.equal(logp.grad, torch.zeros(2, 3))
    full = dropin.loss(name, logp, logp.detach(), torch.ones(2), torch.ones(2, 3), max_completion_length=3)[1]
    assert metrics.keys() == full.keys() and metrics == dict.fromkeys(full, 0.0) | {"ratio/mean": 1.0}


IDLE = {
    "beta": 0.1, "entropy_bonus": 0.1, "top_entropy": 0.2, "clip_cov": 0.1, "kl_cov": 0.1, "kl_cov_weight": 2.0,
    "router_replay": "R2", "old_logprobs": "recompute", "epochs": 2, "mini_batches": 2, "scale_rewards": "none",
    "kl_estimator": "k1", "credit": "turn", "discount": 0.9, "clip_target": 0.2, "aux_loss": 0.1, "correction": "tis",
    "correction_ratio": "product", "correction_low": 0.9, "correction_high": 1.1, "opsm": 0.1, "critic": "copy",
}  # fmt: skip


def test_each_setting_counts_or_is_refused():
    fields = {field.name for field in dataclasses.fields(AlgorithmConfig)}
    assert IDLE.keys() | set(dropin.EFFECTIVE) | {"name"} == fields


X, M = torch.zeros(2, 3), torch.ones(2, 3)
GOOD = ("gspo", X, X, X[:, 0], M)
BAD = [
    ("algorithm.name = 'gsop'.*gspo", ("gsop", *GOOD[1:]), {}),
    (r"logp: a tensor \[B, T\]", ("gspo", X[0], X[0], X[0], M[0]), {}),
    (r"logp_old: shape \[2, 2\]", ("gspo", X, X[:, :2], X[:, 0], M), {}),
    (r"advantages: shape \[3\]; \[2\] or \[2, 3\]", ("gspo", X, X, X[0], M), {}),
    ("or take gspo_token, gspo_turn, grpo, grpo_dual, reinforce$", ("gspo", X, X, torch.arange(6.0).view(2, 3), M), {}),
    ("not for a drop-in loss", GOOD, {"epsilon": "auto"}),
    *((f"{key} = .* no effect in a drop-in loss", GOOD, {key: value}) for key, value in IDLE.items()),
    ("not for a drop-in loss", ("ppo", *GOOD[1:]), {}),
    ("weights within a group are not for a drop-in loss", ("gepo", *GOOD[1:]), {}),
    ("pass max_completion_length", ("dr_grpo", *GOOD[1:]), {}),
    ("algorithm.epsilon = -1.0", GOOD, {"epsilon": -1.0, "epsilon_high": 0.1}),
    ("epsilon_hihg.*did you mean.*epsilon_high", GOOD, {"epsilon_hihg": 0.1}),
]


def test_bad_input(subtests):
    for message, arguments, settings in BAD:
        with subtests.test(message=message), pytest.raises(ValueError, match=message):
            dropin.loss(*arguments, **settings)
