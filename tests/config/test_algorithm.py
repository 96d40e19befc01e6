import re

from gspo.config.algorithm import resolve, resolved
from gspo.config.files import from_dict
from gspo.config.policy import AlgorithmConfig
from gspo.objective.algorithms import ALGORITHMS


def resolved_with(settings):
    return resolve(AlgorithmConfig(**settings))


def test_the_preset_is_the_papers():
    row, config, warnings = resolve(AlgorithmConfig())
    assert (row.level, row.counts, warnings) == ("sequence", "completions", [])
    assert (config.name, config.epsilon, config.epsilon_high, config.mini_batches) == ("gspo", 3e-4, 4e-4, 4)
    assert (config.scale_rewards, config.beta, config.epochs) == ("group", 0.0, 1)


def test_every_row_resolves_to_its_own_defaults():
    for name in ALGORITHMS:
        row, config, _ = resolve(AlgorithmConfig(name=name))
        assert (config.epsilon, config.epsilon_high) == (row.epsilon, row.epsilon_high), name


def test_constants_of_a_row_can_be_changed():
    _, auto, _ = resolve(AlgorithmConfig(epsilon="auto"))
    assert resolve(auto)[1] == auto and (auto.epsilon, auto.epsilon_high) == ("auto", None)
    _, config, _ = resolve(AlgorithmConfig(name="sapo", constants={"tau_neg": 1.2}))
    assert config.constants == {"tau_pos": 1.0, "tau_neg": 1.2}
    assert ALGORITHMS["sapo"].constants["tau_neg"] == 1.05
    assert resolve(AlgorithmConfig(name="ppo", constants={"lam": 0}))[1].constants["lam"] == 0
    assert resolve(config)[1] == config  # what was resolved stays
    _, dual, _ = resolve(AlgorithmConfig(name="grpo_dual", constants={"clip_c": 1.28}))  # close to the range
    assert dual.constants == {"clip_c": 1.28} and ALGORITHMS["grpo_dual"].constants == {"clip_c": 3.0}


TIS = {"correction": "tis", "old_logprobs": "recompute"}
REFUSED = [
    ("set algorithm.epsilon_high too", {"epsilon": 0.1}),
    ("set algorithm.epsilon too", {"epsilon_high": 0.1}),
    ("no longer dr_grpo", {"name": "dr_grpo", "scale_rewards": "group"}),
    (r"sapo has no clip range: set algorithm\.constants, .*tau_pos", {"name": "sapo", "epsilon": 0.2, "epsilon_high": 0.2}),
    ("cispo has no clip range", {"name": "cispo", "epsilon": "auto"}),
    ("sets both ends", {"epsilon": "auto", "epsilon_high": 0.1}),
    ("epsilon_length = 99: grpo has no clip range of whole", {"name": "grpo", "epsilon_length": 99}),
    ("epsilon_length = 99: vespo has no clip range", {"name": "vespo", "epsilon_length": 99}),
    ('epsilon_length = 99: epsilon = "auto" follows', {"epsilon": "auto", "epsilon_length": 99}),
    ("gspo has no constant 'tau'; it has none", {"constants": {"tau": 1.0}}),
    ("did you mean tau_pos", {"name": "sapo", "constants": {"tau_poss": 1.0}}),
    ("tau_pos = 0: must be above 0", {"name": "sapo", "constants": {"tau_pos": 0}}),
    ("must be a finite number", {"name": "sapo", "constants": {"tau_pos": True}}),
    ("must be a finite number", {"name": "cispo", "constants": {"w_max": 10**400}}),
    (r"clip_c = 1.27: must be above 1.27 \(1 \+ algorithm", {"name": "grpo_dual", "constants": {"clip_c": 1.27}}),
    ("clip_c = 3.0: must be above 3.5", {"name": "grpo_dual", "epsilon": 0.2, "epsilon_high": 2.5}),
    ("must be above 1.675.*auto", {"name": "grpo_dual", "epsilon": "auto", "constants": {"clip_c": 1.6}}),
    ("lam = 1.1: must be 0 to 1", {"name": "ppo", "constants": {"lam": 1.1}}),
    ("ppo learns from values and needs a critic", {"name": "ppo", "critic": "none"}),
    ("gspo has no use for one", {"critic": "shared"}),
    ("top_entropy = 0.2 reads the entropies.*recompute", {"top_entropy": 0.2}),
    ("algorithm.clip_cov = 0.0002 and algorithm.kl_cov = 0.002: each picks", {"clip_cov": 2e-4, "kl_cov": 2e-3}),
    ("top_entropy = 0.2 and algorithm.kl_cov = 1", {"top_entropy": 0.2, "kl_cov": 1.0, "old_logprobs": "recompute"}),
    ("every weight is 1.*recompute", {"correction": "tis"}),
    ("weighs by pi_theta/mu.*twice", {"name": "minirl", "correction": "tis", "old_logprobs": "recompute"}),
    ("correction_ratio = 'product': grpo weighs tokens", TIS | {"name": "grpo", "correction_ratio": "product"}),
]


def test_what_is_no_longer_the_algorithm_is_an_error(refuses):
    refuses(resolved_with, REFUSED)


def test_a_correction_has_bounds_that_fit_what_it_weighs():
    def bounds(**settings):
        config = resolved_with(TIS | settings)[1]
        assert resolve(config)[1] == config
        return config.correction_low, config.correction_high

    assert bounds() == (None, 1.01) and bounds(correction_ratio="product") == bounds(name="grpo") == (None, 2.0)
    assert bounds(correction="icepop") == bounds(correction="seq_mis", name="grpo") == (0.99, 1.01)
    assert bounds(correction="icepop", name="grpo") == (0.5, 5.0)
    assert bounds(correction="seq_mis", name="grpo", correction_ratio="product") == (None, 2.0)
    assert bounds(correction="icepop", correction_high=1.002) == (0.99, 1.002)
    assert bounds(correction="icepop", correction_low=0.998, correction_high=1.002) == (0.998, 1.002)
    plain = resolve(AlgorithmConfig())[1]
    assert plain.correction_low is plain.correction_high is None


WARNED = [
    ("hardly acts", {"epsilon": 0.2, "epsilon_high": 0.2}),
    ("takes away most gradients", {"name": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}),
    ("0.0003/0.0004: is gspo's own, and luspo's is 0.002", {"name": "luspo", "epsilon": 3e-4, "epsilon_high": 4e-4}),
    ("divides by the group standard deviation", {"scale_rewards": "none"}),
    ("nothing is clipped, and kl_cov penalises nothing", {"mini_batches": 1, "kl_cov": 0.1}),
    ("nothing is clipped$", {"mini_batches": 1}),
    ("refills", {"name": "dapo"}),
    ("zero gradient", {"beta": 0.1, "kl_estimator": "k1"}),
    (
        "far tighter than usual: leave algorithm.epsilon unset for its own range, 0.2/0.27, or lower clip_target",
        {"name": "grpo", "epsilon": "auto"},
    ),
    ("divides by mu alone.*changes no gradient", {"name": "dppo_kl", "old_logprobs": "recompute"}),
    ("has no ratio.*changes no gradient", {"name": "reinforce", "old_logprobs": "recompute"}),
]


def test_odd_values_are_warned_of(subtests):
    for message, settings in WARNED:
        with subtests.test(message=message):
            assert any(re.search(message, warning) for warning in resolved_with(settings)[2])


def test_a_warm_up_longer_than_the_run_is_warned_of():
    config = {"train": {"steps": 2}, "algorithm": {"epochs": 3}}
    for warmup, warned in ((25, ["optimizer.warmup = 25: the run ends before, with 24 updates"]), (24, [])):
        assert resolved(from_dict(config | {"optimizer": {"warmup": warmup}}))[1] == warned


def test_what_has_its_use_is_not_warned_of():
    pi_old = AlgorithmConfig(name="reinforce", correction="tis", old_logprobs="recompute")  # the correction reads it
    assert resolve(AlgorithmConfig(name="reinforce", top_entropy=0.2, old_logprobs="recompute"))[2] == []  # as this does
    assert resolve(AlgorithmConfig(name="reinforce", clip_cov=0.1, old_logprobs="recompute"))[2] == []
    assert resolve(pi_old)[2] == resolve(AlgorithmConfig(name="dapo"), sampling_rounds=1)[2] == []
    distilled = AlgorithmConfig(name="reinforce", old_logprobs="recompute")  # its advantage is log pi_T - log pi_old
    assert resolve(distilled, teacher=True)[2] == []
    assert resolve(AlgorithmConfig(name="dapo"), samples=False)[2] == []  # a served run may set no sampling_rounds
    assert resolve(AlgorithmConfig(name="grpo_dual", epsilon="auto", clip_target=0.01))[2] == []
