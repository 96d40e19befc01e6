from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, ResolvedOptimizer
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.learner.update import Updater
from gspo.objective.completions import Completions
from gspo.objective.mismatch import mismatch
from tests.bigram import Bigram
from tests.learner.test_update import completions


def test_noise_floor_is_zero_for_exact_likelihoods():
    batch = completions(shift=0.0)
    policy = Bigram()
    row, config, _ = resolve(AlgorithmConfig())
    learner = Updater(policy, Optimizer(policy.parameters(), ResolvedOptimizer(), 10, 0), MicroBatches(100))
    _, stats = learner.update(PolicyObjective(row, config, 9), batch)
    found = mismatch(stats["logp"], stats["logp_mu"], Completions.of(stats["length"]))
    assert found["ratio/noise_floor"] < 1e-12
    assert found["mismatch/prob_max"] < 1e-12
