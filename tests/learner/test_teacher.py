"""On-policy distillation: the teacher's log-probability of each sampled token in the token's advantage."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.learner import layout
from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.objective.algorithms import ALGORITHMS
from gspo.types import Completion
from tests.bigram import Bigram
from tests.learner.cases import LENGTHS, completions, optimizer_of
from tests.objective.reference import objective

BY_TOKEN = [name for name, row in ALGORITHMS.items() if row.by_turn]


def teacher_of(seed=1):
    teacher = Bigram(seed=seed)
    teacher.on_device = nullcontext
    return teacher


def update(name, batch, weight=0.7, budget=40, recompute=False, **settings):
    """The learner after an update on the batch, its gradient and its metrics."""
    row, config, _ = resolve(AlgorithmConfig(name=name, **settings))
    policy, kept = Bigram(), []
    optimizer = optimizer_of(policy, lr=1e-3, max_grad_norm=1e9)
    step = optimizer.adamw.step
    optimizer.adamw.step = lambda: (kept.append(policy.table.grad.clone()), step())
    taught = PolicyObjective(row, config, 9, weight)
    learner = PolicyLearner(policy, optimizer, taught, MicroBatches(budget), frozen={"logp_teacher": teacher_of()})
    learner.prepare([batch], recompute)
    metrics = learner.update(0).metrics
    return learner, kept[0], metrics


def without_reference(**changes):
    return [replace(one, logp_ref=None, **changes) for one in completions()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", BY_TOKEN)
def test_an_update_equals_the_naive_loop(name, recompute):
    """A_it = A_i + weight (log pi_T - log pi_old), in float64."""
    batch, policy, teacher, row = without_reference(), Bigram(), teacher_of(), ALGORITHMS[name]
    _, gradient, metrics = update(name, batch, recompute=recompute)
    A, olds, gaps = [], [], []
    for one in batch:
        old = (policy.logp_of(one).detach() if recompute else one.logp_old).tolist()
        gap = [a - b for a, b in zip(teacher.logp_of(one).tolist(), old)]
        own = float(torch.tensor(one.advantage, dtype=torch.float32))  # as in a batch
        A.append([own + 0.7 * each for each in gap])
        olds, gaps = olds + old, gaps + gap
    logp = torch.cat([policy.logp_of(one) for one in batch])
    old = torch.tensor(olds, dtype=torch.float64)
    expected = -objective(name, logp, old, A, LENGTHS, row.epsilon, row.epsilon_high, 9, **row.constants)
    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, policy.table)[0], rtol=1e-12, atol=1e-16)
    assert metrics["teacher/kl"] == pytest.approx(-sum(gaps) / len(gaps), rel=1e-12)


def test_a_teacher_alone_teaches_and_micro_batches_change_no_gradient():
    """Completions without an advantage of their own are read too."""
    batch = without_reference(advantage=0.0)
    learner, whole, metrics = update("grpo", batch)
    assert len(learner.at) == len(batch) and whole.abs().sum() > 0 and metrics["no_signal/completions"] == 0
    for budget in (1, 12):
        torch.testing.assert_close(update("grpo", batch[::-1], budget=budget)[1], whole, rtol=1e-12, atol=1e-15)


def test_the_expected_gradient_is_that_of_the_reverse_kl():
    """All next tokens, weighted by their probability: the sum over samples becomes the expectation."""
    policy, teacher, V = Bigram(), teacher_of(), 12
    row, config, _ = resolve(AlgorithmConfig(name="reinforce"))
    logp, logp_T = (each.table[3].log_softmax(-1) for each in (policy, teacher))
    tokens, last, old = torch.tensor([[3, y] for y in range(V)]), torch.tensor([False, True]), logp.detach().split(1)
    batch = layout.build(
        [Completion(tokens[y], last, old[y], old[y], 0.0, logp_teacher=logp_T[y : y + 1].detach()) for y in range(V)]
    )
    terms, _ = PolicyObjective(row, config, 9, 1.0).terms(policy.forward(batch, entropy=True), batch)
    (found,) = torch.autograd.grad((logp.exp().detach() * terms).sum(), policy.table)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - logp_T.detach())).sum(), policy.table)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_a_correction_also_weighs_what_the_teacher_adds():
    batch = without_reference(advantage=0.0)
    _, plain, _ = update("grpo", batch, recompute=True)
    _, weighed, metrics = update("grpo", batch, recompute=True, correction="tis", old_logprobs="recompute")
    assert metrics["correction/weight_mean"] != 1 and not torch.allclose(plain, weighed)
    heavy = [replace(one, logp_mu=one.logp_mu - 9) for one in batch]  # every weight is at the cap, 2
    _, twice, metrics = update("grpo", heavy, recompute=True, correction="tis", old_logprobs="recompute")
    cap = metrics["correction/weight_mean"]
    torch.testing.assert_close(twice, cap * plain, rtol=1e-10, atol=1e-15)
