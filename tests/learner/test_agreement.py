from gspo.learner.agreement import first_look
from tests.bigram import Bigram
from tests.learner.cases import completions, objective_of, updater_of


def test_noise_floor_is_zero_for_exact_likelihoods():
    _, stats = updater_of(Bigram(), 100).update(objective_of(), completions(shift=0.0))
    found = first_look(stats)
    assert found["ratio/noise_floor"] < 1e-12 and found["mismatch/prob_max"] < 1e-12
