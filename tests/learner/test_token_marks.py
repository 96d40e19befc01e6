"""Tokens that are marked before the first update of a step: detached or penalised, whatever the micro-batches."""

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
    metrics = made.update(1).metrics
    assert metrics["loss"] == pytest.approx(-expected.item(), rel=1e-12) and wanted.any()
    assert metrics["marked/tokens"] == pytest.approx(sum(H[x] < tau - 1e-12 for states in at[3:] for x in states) / 11)
    torch.testing.assert_close(found[0], wanted, rtol=1e-10, atol=1e-14)


def wide(seed, idle):
    """A batch with large advantages, and so large covariances; A = 0 in the completion `idle`."""
    batch = [replace(c, advantage=12 * c.advantage) for part in parts(seed) for c in part]
    batch[idle] = replace(batch[idle], advantage=0.0)
    return [batch[:3], batch[3:]]


def naive_cov(batch, logp):
    """Cov_t of all tokens of these completions."""
    A = [c.advantage for c in batch for _ in c.logp_old]
    logp = [x for row in logp for x in row]
    centre, mean = sum(logp) / len(logp), sum(A) / len(A)
    return [(x - centre) * (a - mean) for x, a in zip(logp, A)]


def second_update(made, batch, recompute):
    """The policy before it, its gradient, its metrics, and log pi_old of all completions."""
    made.optimizer.config = replace(made.optimizer.config, max_grad_norm=1e9)
    old = [made.policy.logp_of(c).tolist() if recompute else c.logp_old.tolist() for part in batch for c in part]
    made.prepare(batch, recompute)
    made.update(0)
    before, step, found = made.policy.table.detach().clone().requires_grad_(), made.optimizer.adamw.step, []
    made.optimizer.adamw.step = lambda: (found.append(made.policy.table.grad.clone()), step())
    return before, made.update(1).metrics, found[0], old


def marks(made):
    return [mark for part in made.mini_batches for c in part if c.marked is not None for mark in c.marked.tolist()]


NAMES = pytest.mark.parametrize("name", ["gspo", "gspo_token", "grpo", "dapo", "cispo", "reinforce"])
RECOMPUTE = pytest.mark.parametrize("recompute", [False, True])
SIZES = pytest.mark.parametrize("max_tokens", [40, 1])


def terms(table, part, old, detached):
    """log pi_theta of the tokens of these completions, constants where detached; log pi_old; A."""
    logp, detached = [], iter(detached)
    for c in part:
        states = [c.tokens[t - 1].item() for t in range(len(c.tokens)) if c.sampled[t]]
        for x, y in zip(states, c.tokens[c.sampled].tolist()):
            one = table[x].log_softmax(-1)[y]
            logp.append(one.detach() if next(detached) else one)
    pi_old = torch.tensor([x for row in old for x in row], dtype=torch.float64)
    return torch.stack(logp), pi_old, [float(torch.tensor(c.advantage)) for c in part]


@NAMES
@SIZES
@RECOMPUTE
def test_clip_covs_tokens_have_no_gradient(name, max_tokens, recompute):
    """In the second update, by a naive loop: they are constants, in s_i too, and count in every mean."""
    made, batch = learner(name=name, clip_cov=0.2), wide(4, 0)
    made.micro_batches.max_tokens, read = max_tokens, [*batch[0][1:], *batch[1]]  # no update reads the first
    table, metrics, gradient, old = second_update(made, batch, recompute)
    inside, marked = [1 <= x <= 5 for x in naive_cov(read, old[1:])], marks(made)
    assert sum(marked) == round(0.2 * 19) < sum(inside) and all(i for i, mark in zip(inside, marked) if mark)
    assert 0 < sum(marked[8:]) == pytest.approx(metrics["marked/tokens"] * 11)
    row = made.objective.row
    logp, logp_old, A = terms(table, batch[1], old[3:], marked[8:])
    J = objective(name, logp, logp_old, A, LENGTHS[3:], row.epsilon, row.epsilon_high, 9, **row.constants)
    (wanted,) = torch.autograd.grad(-J, table)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-14)
    assert metrics["loss"] == pytest.approx(-J.item(), rel=1e-12) and wanted.any()


@NAMES
@SIZES
@RECOMPUTE
def test_kl_covs_tokens_are_held_at_pi_old(name, max_tokens, recompute):
    """In the second update, by a naive loop; among them are some of a completion with A = 0."""
    made, batch = learner(name=name, kl_cov=0.18, kl_cov_weight=3.0), wide(6, 4)
    made.micro_batches.max_tokens = max_tokens
    table, metrics, gradient, old = second_update(made, batch, recompute)
    cov, marked = naive_cov([*batch[0], *batch[1]], old), marks(made)
    least = sorted(cov, reverse=True)[round(0.18 * 22) - 1]
    assert marked == [x >= least for x in cov] and any(marked[15:17]) and metrics["no_signal/completions"] == 0
    assert sum(marked[11:]) == pytest.approx(metrics["marked/tokens"] * 11)
    row = made.objective.row
    logp, logp_old, A = terms(table, batch[1], old[3:], [False] * 11)
    J = objective(name, logp, logp_old, A, LENGTHS[3:], row.epsilon, row.epsilon_high, 9, **row.constants)
    for n, start in zip(LENGTHS[3:], (0, 4, 6)):
        for t in range(start, start + n):
            if marked[11 + t]:
                w = (logp[t] - logp_old[t]).exp()
                J = J - 3.0 * (w - 1 - w.log()) / {"dapo": 11, "cispo": 11}.get(name, 3 * n)
    (wanted,) = torch.autograd.grad(-J, table)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-14)
    assert metrics["loss"] == pytest.approx(-J.item(), rel=1e-12)


def test_the_draw_depends_on_the_seed_the_updates_and_the_token(tmp_path):
    def drawn(made):
        made.prepare(wide(4, 0), recompute=False)
        return marks(made)

    made, again = learner(clip_cov=0.2), learner(clip_cov=0.2)
    first = drawn(made)
    made.micro_batches.max_tokens = 1
    assert drawn(made) == first == drawn(again)
    again.seed = 1
    assert drawn(again) != first
    again.seed = 0
    made.update(0)
    made.save(tmp_path)
    later = drawn(made)
    again.resume(tmp_path)
    assert later != first and drawn(again) == later  # the log-probabilities are the sampler's, and so the same


def test_a_teacher_counts_in_the_covariance():
    batch = wide(6, 4)
    taught = [[replace(c, logp_teacher=c.logp_old + torch.linspace(-9, 9, len(c.logp_old))) for c in part] for part in batch]
    made = learner(name="grpo", kl_cov=0.18)
    made.objective.teacher_weight = 2.0
    made.prepare(taught, recompute=False)
    A = [c.advantage + 2.0 * x for c in [*batch[0], *batch[1]] for x in torch.linspace(-9, 9, len(c.logp_old)).tolist()]
    logp = [x for part in batch for c in part for x in c.logp_old.tolist()]
    cov = [(x - sum(logp) / 22) * (a - sum(A) / 22) for x, a in zip(logp, A)]
    assert marks(made) == [x >= sorted(cov, reverse=True)[3] for x in cov]
