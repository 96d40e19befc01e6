"""Completions of a bigram, and the objectives and updaters that most tests take."""

import torch

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, ResolvedOptimizer
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.learner.update import Updater
from gspo.types import Completion
from tests.bigram import Bigram

LENGTHS = [3, 1, 7, 4, 2, 5]


def completions(seed=0, shift=0.2):
    g = torch.Generator().manual_seed(seed)
    policy, made = Bigram(), []
    for n in LENGTHS:
        tokens = torch.randint(0, 12, (2 + n,), generator=g)
        logp = policy.table.detach()[tokens[:-1]].log_softmax(-1).gather(-1, tokens[1:, None])[1:, 0]
        old = logp + shift * torch.randn(n, generator=g, dtype=torch.float64)
        advantage = float(torch.randn((), generator=g))
        made.append(Completion(tokens, torch.arange(2 + n) >= 2, old, old, advantage, logp_ref=old - 0.1))
    return made


def objective_of(name="gspo", **settings):
    row, config, _ = resolve(AlgorithmConfig(name=name, **settings))
    return PolicyObjective(row, config, 9)


def optimizer_of(policy, **settings):
    return Optimizer(policy.parameters(), ResolvedOptimizer(**settings), 10, 0)


def updater_of(policy, *micro_batches, **settings):
    """micro_batches: the arguments of MicroBatches. settings: of the optimizer."""
    return Updater(policy, optimizer_of(policy, **settings), MicroBatches(*micro_batches))
