"""The clip, accounted for; corrections; a clip range that sets itself, in whole runs."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from gspo.backends.hf import routing
from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.policy import HFPolicy
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.types import Completion
from tests.bigram import Bigram
from tests.learner.cases import LENGTHS, completions, objective_of, updater_of
from tests.runs.events import texts
from tests.tiny_run import dials, model, sharpened
from tests.training.whole import numbers, train


def update(batch, **settings):
    """Metrics and terms of one update at the policy that the bigram is, without the step."""
    objective, built = objective_of(**settings), layout.build(batch)
    terms, stats = objective.terms(Bigram().forward(built, entropy=True), built)
    return terms, objective.summary(stats), stats


def test_the_clip_by_completion_token_and_sign():
    batch = completions()
    _, metrics, stats = update(batch, name="grpo", epsilon=0.1, epsilon_high=0.15)
    w = stats["ratio"]
    A = torch.cat([torch.full((n,), r.advantage) for n, r in zip(LENGTHS, batch)])
    clipped = ((w < 0.9) & (A < 0)) | ((w > 1.15) & (A > 0))
    assert metrics["clip_ratio/tokens"] == pytest.approx(float(clipped.float().mean()))
    assert metrics["clip_ratio/positive"] == pytest.approx(float(clipped[A > 0].float().mean()))
    assert metrics["clip_ratio/negative"] == pytest.approx(float(clipped[A < 0].float().mean()))
    by_completion = [bool(part.any()) for part in clipped.split(LENGTHS)]
    assert metrics["clip_ratio/completions"] == pytest.approx(sum(by_completion) / 6)
    assert 0 < sum(by_completion) < 6


def test_ratios_are_watched_where_the_loss_has_none():
    """They are the token ratios of GRPO, and s_i where the weight is the completion's."""
    batch = completions()
    _, metrics, _ = update(batch, name="reinforce")
    _, tokens, _ = update(batch, name="grpo")
    _, whole, _ = update(batch, name="reinforce_is")
    _, sequences, _ = update(batch, name="gspo")
    for key in ("ratio/mean", "ratio/std", "kl"):
        assert metrics[key] == tokens[key] and whole[key] == sequences[key]
    assert metrics["ratio/std"] > 0.1 and metrics["clip_ratio/tokens"] == 0


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"epsilon": 0.1, "epsilon_high": 0.1}, 0.2 * 0.25 + 0.2 * 0.5),
        ({"name": "cispo"}, 0.2 * 0.75),  # capped whatever the sign
        ({"name": "dppo_tv"}, 0.2 * 0.5),  # only the last moved by more than 0.15
        ({"name": "sapo"}, 0.0),
        ({"name": "grpo_dual"}, 0.2 * 0.25 + 0.2 * 0.5 + 0.2 * 0.25),  # above, also with A < 0
        ({"name": "reinforce"}, 0.0),
        ({"name": "vespo"}, 0.0),
        ({"name": "reinforce_is"}, 0.0),  # 6 is below its cap
        ({"name": "reinforce_is", "constants": {"w_max": 5.0}}, 0.2 * 0.75),
    ],
)
def test_what_numerics_alone_would_clip_by_hand(settings, share):
    logp = torch.tensor([0.08, 0.1, 0.1, 0.1, 0.6]).log()  # a fifth of the ratios below, a fifth above
    logp_mu, y, A = torch.full((5,), 0.1).log(), Completions.of(torch.ones(5).long()), torch.tensor([1.0, 1.0, -1.0, 0.0])
    assert objective_of(**settings).numerics(logp, logp_mu, y, A) == pytest.approx(share)


def test_a_correction_weighs_terms_and_no_ratio(subtests):
    """Where mu is pi_old it changes nothing; where mu is half of it, every term is doubled within wide bounds."""
    names = [name for name, row in ALGORITHMS.items() if "logp_mu" not in row.likelihoods]
    for name, correction in product(names, ["tis", "icepop", "seq_mis"]):
        with subtests.test(name=name, correction=correction):
            batch = completions()
            plain, _, ratios = update(batch, name=name)
            same, metrics, stats = update(batch, name=name, correction=correction, old_logprobs="recompute")
            assert torch.equal(plain, same) and metrics["correction/weight_mean"] == 1 and metrics["correction/zero"] == 0
            half = [replace(r, logp_mu=r.logp_old - math.log(2.0)) for r in batch]
            plain, _, ratios = update(half, name=name)
            wide = {"correction": correction, "old_logprobs": "recompute", "correction_high": 3.0}
            twice, metrics, stats = update(half, name=name, **wide)
            assert torch.equal(stats["ratio"], ratios["ratio"])
            assert metrics["correction/weight_mean"] == pytest.approx(2, rel=1e-6)
            torch.testing.assert_close(twice, 2 * plain, rtol=1e-6, atol=1e-9)


def test_off_policy_masking_removes_terms_and_leaves_the_kl_term_and_the_count(subtests):
    """The policy gives the tokens of the first two completions half of mu's probability; the first has A > 0."""
    kinds = [(1.0, math.log(2.0)), (-1.0, math.log(2.0)), *[(-1.0, 0.0)] * 4]
    batch = [replace(c, advantage=A, logp_mu=c.logp_old + gap) for c, (A, gap) in zip(completions(shift=0.0), kinds)]
    for name in ALGORITHMS:
        with subtests.test(name=name):
            plain, _, _ = update(batch, name=name, beta=0.5)
            masked, metrics, stats = update(batch, name=name, beta=0.5, opsm=0.69)
            (only_kl,) = update([replace(batch[1], advantage=0.0)], name=name, beta=0.5)[0]
            assert metrics["opsm/masked"] == pytest.approx(1 / 6) and stats["masked"].tolist() == [0, 1, 0, 0, 0, 0]
            assert torch.equal(masked[[0, 2, 3, 4, 5]], plain[[0, 2, 3, 4, 5]])
            assert masked[1].item() == pytest.approx(only_kl.item()) != plain[1].item()
            loose, metrics, _ = update(batch, name=name, beta=0.5, opsm=0.7)
            assert torch.equal(loose, plain) and metrics["opsm/masked"] == 0


def test_what_the_bounds_take_is_counted_in_what_is_weighed():
    """Completions of 3, 1, 7, 4, 2 and 5 tokens whose tokens have r = e^.3, e^-.2, 1, 1, 1 and 1."""
    r = [math.exp(0.3), math.exp(-0.2), 1.0, 1.0, 1.0, 1.0]
    batch = [replace(c, logp_mu=c.logp_old - math.log(x)) for c, x in zip(completions(), r)]
    settings = {"correction": "icepop", "old_logprobs": "recompute"}
    ends = {"correction/ratio_min": pytest.approx(r[1]), "correction/ratio_max": pytest.approx(r[0])}
    for more, low, high, zero in (
        ({}, 1 / 6, 1 / 6, 1 / 3),  # geometric means of completions
        ({"correction_low": 0.8, "correction_high": 1.3}, 0, 1 / 6, 1 / 6),
        ({"correction": "tis", "correction_low": 0.9}, 1 / 6, 1 / 6, 0),  # held, not masked
        ({"correction_ratio": "product"}, 0, 1 / 6, 1 / 6),  # e^.9 of the first is above 2
        ({"name": "grpo", "correction_high": 1.2}, 0, 3 / 22, 3 / 22),  # of tokens
        ({"name": "grpo", "correction": "seq_mis"}, 1 / 6, 1 / 6, 1 / 3),
    ):
        _, metrics, _ = update(batch, **settings | more)
        found = [metrics[f"correction/{name}"] for name in ("low", "high", "zero")]
        assert found == pytest.approx([low, high, zero]), more
        assert {key: metrics[key] for key in ends} == ends or "correction_ratio" in more


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_kl_term_weighs_completions_as_the_objective_does(name):
    """A mean over tokens where each completion counts alike, a sum where a longer one counts more (LUSPO too)."""
    batch = completions()
    plain, _, _ = update(batch, name=name)
    held, _, stats = update(batch, name=name, beta=0.5)
    means = {"gspo", "gspo_token", "gspo_turn", "grpo", "grpo_dual", "gmpo", "sapo", "reinforce", "reinforce_is", "gepo"}
    want = torch.stack([part.mean() if name in means else part.sum() for part in stats["kl_ref"].split(LENGTHS)])
    torch.testing.assert_close((held - plain) / 0.5, want, rtol=1e-9, atol=1e-9)


def test_gspo_auto_clips_its_target_in_a_whole_run(tmp_path):
    options = {"train": {"steps": 12}, "eval": {"every": 0}}
    found = numbers(train(tmp_path / "run", algorithm={"epsilon": "auto", "clip_target": 0.2}, **options).folder)
    shares = [line["clip_ratio/tokens"] for line in found[2:]]
    assert sum(shares) / len(shares) == pytest.approx(0.2, abs=0.08)
    assert found[0]["clip/epsilon"] == pytest.approx(0.058 * 7**-0.83)  # its completions have 7 tokens at the median
    assert found[-1]["clip/epsilon"] > 1e-3
    assert all(line["clip/epsilon_high"] / line["clip/epsilon"] == pytest.approx(4 / 3) for line in found)
    for line in found:
        assert line["clip_ratio/noise_only"] + line["clip_ratio/staleness"] == pytest.approx(line["clip_ratio/tokens"])
        assert line["clip_ratio/noise_only"] < 0.01


def test_auto_stands_at_the_noise_floor_where_nothing_moves(tmp_path):
    options = {"train": {"steps": 3}, "eval": {"every": 0}, "optimizer": {"lr": 1e-12}}
    run = train(tmp_path / "run", algorithm={"epsilon": "auto"}, **options)
    assert any("stands at the noise floor" in text for text in texts(run.folder))
    assert numbers(run.folder)[-1]["clip/epsilon"] < 1e-5


def test_stale_and_coarse_rollouts_are_told_apart(tmp_path):
    options = {"train": {"steps": 4}, "eval": {"every": 0}, "algorithm": {"old_logprobs": "sampler"}}
    stale = numbers(train(tmp_path / "a", sampler=dials(lag=3), **options).folder)[-1]
    assert stale["clip_ratio/staleness"] > 0.1 > 0.001 > stale["clip_ratio/noise_only"]
    coarse = numbers(train(tmp_path / "b", sampler=dials(kind="int4"), **options).folder)[-1]
    assert coarse["clip_ratio/noise_only"] > 0.1


def test_a_correction_acts_on_a_coarse_sampler_and_a_run_says_where_it_does_not(tmp_path):
    settings = {"algorithm": {"correction": "icepop", "old_logprobs": "recompute"}, "eval": {"every": 0}}
    idle = train(tmp_path / "exact", train={"steps": 10}, **settings)
    assert any("algorithm.correction has changed nothing in 10 steps" in text for text in texts(idle.folder))
    assert all(line["correction/low"] + line["correction/high"] == 0 for line in numbers(idle.folder))
    acts = train(tmp_path / "int4", train={"steps": 1}, tiny=sharpened(2), sampler=dials(kind="int4"), **settings)
    assert numbers(acts.folder)[0]["correction/zero"] > 0.1


def router_gradients(micro_batch_tokens, aux_loss, **changes):
    """Metrics and the gradients of a tiny mixture's routers, summed over the micro-batches of an update."""
    tiny = model()
    policy = HFPolicy(wrap_model(tiny.model, tiny.tokenizer, ModelConfig()), router_logits=aux_loss > 0, **changes)
    batch = [
        Completion(torch.tensor([1, *[(i * j) % 9 for j in range(2, n + 2)]]), torch.tensor([False] + [True] * n),
              torch.full((n,), -2.0), torch.full((n,), -2.0), 0.0)
        for i, n in enumerate((3, 7, 2, 5), 1)
    ]  # fmt: skip
    weights = [router.weight for router in routing.routers(tiny.model)]
    found = torch.zeros(len(weights), *weights[0].shape)
    for layer, weight in enumerate(weights):
        weight.register_hook(found[layer].add_)
    updater = updater_of(policy, micro_batch_tokens, max_grad_norm=1e9, lr=1e-9)
    metrics, _ = updater.update(objective_of(aux_loss=aux_loss), batch)
    return metrics, found


def test_the_auxiliary_loss_reaches_the_routers_and_micro_batches_change_nothing():
    """With A = 0 nothing else has a gradient."""
    assert not router_gradients(1000, 0.0)[1].any()
    metrics, whole = router_gradients(1000, 0.5)
    assert whole.abs().max() > 1e-4 and metrics["loss"] == pytest.approx(0.5 * metrics["moe/aux_loss"])
    for found in (router_gradients(8, 0.5), router_gradients(1000, 0.5, gradient_checkpointing=True),
                  router_gradients(1000, 0.5, layout="shared")):  # fmt: skip
        torch.testing.assert_close(found[1], whole, rtol=1e-4, atol=1e-7)
        assert found[0]["moe/aux_loss"] == pytest.approx(metrics["moe/aux_loss"])
