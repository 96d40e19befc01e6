"""pi_old and its experts in whole runs: Routing Replay, stale rollouts, a coarse sampler. Weights within a group."""

import dataclasses
import math

import pytest
import torch

from gspo.backends.hf.sampler import HFSampler
from gspo.learner import layout
from gspo.training import likelihoods
from tests.bigram import Bigram
from tests.learner.cases import completions, objective_of
from tests.runs.events import texts
from tests.tiny_run import dials, likes_a
from tests.training.whole import lines, numbers, train


def test_weighed_by_their_group_the_terms_of_gepo_are_those_of_a_naive_loop():
    """-p_i / E_q[q] A_i, with E_q[q] = sum_j q_j^2 / sum_j q_j of the group, and the roots p_i and q_i by the length."""
    batch, total, policy = completions(), torch.zeros((), dtype=torch.float64), Bigram()
    groups = [batch[:2], batch[2:]]
    for group in groups:
        q = [math.exp(float(c.logp_mu.sum())) ** (1 / len(c.logp_mu)) for c in group]
        expected = sum(x**2 for x in q) / sum(q)
        for c in group:
            total = total - policy.logp_of(c).exp().prod() ** (1 / len(c.logp_mu)) / expected * c.advantage / 6
    weighed = likelihoods.weighed_by_group(groups)
    assert [len(group) for group in weighed] == [2, 4]
    for parts in (weighed, [weighed[1][::-1], weighed[0]]):  # in any order, over any micro-batches
        trained = [c for group in parts for c in group]
        built = layout.build(trained)
        terms, _ = objective_of("gepo").terms(policy.forward(built, entropy=True), built)
        found, wanted = (torch.autograd.grad(x, policy.table, retain_graph=True)[0] for x in (terms.sum() / 6, total))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)  # advantages are float32 in a batch
    assert any(abs(c.advantage / plain.advantage - 1) > 0.05 for c, plain in zip(weighed[0] + weighed[1], batch))


def test_a_run_of_gepo_weighs_by_group(tmp_path):
    changes = {"train": {"steps": 1}, "eval": {"every": 0}, "log": {"token_rollouts": 32}}
    result = train(tmp_path / "run", algorithm={"name": "gepo", "mini_batches": 1}, **changes)
    groups = {}
    for rollout in lines(result.folder / "rollouts.jsonl"):
        groups.setdefault(rollout["group"], []).append(rollout)
    loss = 0.0
    for group in groups.values():  # pi_theta is still mu
        q = [math.exp(sum(rollout["logp"]) / len(rollout["logp"])) for rollout in group]
        expected = sum(x * x for x in q) / sum(q)
        loss -= sum(x / expected * rollout["advantage"] for x, rollout in zip(q, group)) / 32
    assert abs(loss) > 1e-3  # 0 without the weights
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-4)


FAST = {"optimizer": {"lr": 2e-2}, "train": {"steps": 4}, "eval": {"every": 0}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return numbers(train(tmp_path_factory.mktemp("plain") / "run", **FAST).folder)


def test_a_mixture_of_experts_shows_how_its_routing_moves(plain):
    for line in plain:
        assert 0 < line["moe/volatility"] < 1 and 0 < line["moe/tokens_changed"] <= 1
        assert line["moe/volatility"] == pytest.approx(sum(line["moe/volatility_by_layer"]) / 2)
        assert line["moe/sampler_agreement"] == 1
        assert 0 <= line["moe/max_violation"] <= 1  # 4 experts, 2 a token
        assert 0 < line["moe/router_entropy"] <= 1.3863
        assert "moe/overruled" not in line


@pytest.mark.parametrize("replay", ["R2", "R3"])
def test_replay_leaves_no_volatility(tmp_path, plain, replay):
    found = numbers(train(tmp_path / "run", algorithm={"router_replay": replay}, **FAST).folder)
    for line in found:
        assert line["moe/volatility"] == 0 and line["moe/tokens_changed"] == 0
        assert line["moe/overruled"] > 0
        assert line["moe/sampler_agreement"] == 1
    assert found[0]["reward"] == plain[0]["reward"]
    assert found[-1]["loss"] != plain[-1]["loss"]


@pytest.mark.parametrize("replay", ["R2", "R3"])
def test_replay_of_the_policys_own_choices_changes_no_number(tmp_path, replay):
    a = numbers(train(tmp_path / "a", algorithm={"mini_batches": 1}, **FAST).folder)
    b = numbers(train(tmp_path / "b", algorithm={"mini_batches": 1, "router_replay": replay}, **FAST).folder)
    for m, n in zip(a, b, strict=True):
        assert n["moe/overruled"] == 0
        for name in m:
            summed = name.startswith(("mismatch/", "ratio/"))  # in another order
            assert n[name] == (pytest.approx(m[name], rel=1e-9) if summed else m[name]), name


@pytest.mark.parametrize("replay", [pytest.param("R2", marks=pytest.mark.slow), "R3"])
def test_replay_in_every_layout(tmp_path, replay):
    options = FAST | {"algorithm": {"router_replay": replay}, "train": {"steps": 1}}
    whole = numbers(train(tmp_path / "a", **options).folder)
    for i, changes in enumerate((
        {"layout": "shared"}, {"micro_batch_tokens": 40},
        {"gradient_checkpointing": True, "micro_batch_tokens": 60}, {"gradient_checkpointing": True, "layout": "shared"},
    )):  # fmt: skip
        other = numbers(train(tmp_path / f"b{i}", **options | {"train": {"steps": 1} | changes}).folder)
        for name in ("loss", "grad_norm", "entropy", "moe/overruled", "moe/router_entropy", "moe/max_violation"):
            assert other[0][name] == pytest.approx(whole[0][name], rel=5e-3, abs=2e-5), name


def test_recomputed_likelihoods_come_with_the_replayed_experts(tmp_path):
    """A coarse sampler's experts, replayed: pi_old is then another than without replay."""
    coarse = FAST | {"sampler": dials(kind="int4"), "train": {"steps": 1}}
    ways = [{}, {"router_replay": "R2"}, {"router_replay": "R3"}]
    found = [
        numbers(train(tmp_path / f"{i}", algorithm={"old_logprobs": "recompute"} | way, **coarse).folder)[0]
        for i, way in enumerate(ways)
    ]
    assert len({line["reward"] for line in found}) == 1
    assert found[0]["mismatch/kl"] == found[1]["mismatch/kl"] != found[2]["mismatch/kl"]
    assert all(0.5 < line["moe/sampler_agreement"] < 1 for line in found)
    assert found[1]["moe/volatility"] == found[2]["moe/volatility"] == 0 < found[0]["moe/volatility"]


def test_delayed_rollouts_are_that_old_and_lose_no_prompt(tmp_path):
    now = train(tmp_path / "a", **FAST)
    late = train(tmp_path / "b", sampler=dials(lag=2), **FAST)
    versions = [r["version"] for r in lines(late.folder / "rollouts.jsonl")][:: 8 * 4]
    assert versions == [0, 0, 0, 1]
    found = numbers(late.folder)
    assert [line["staleness"] for line in found] == [0, 1, 2, 2]
    ids = [[r["prompt_id"] for r in lines(run.folder / "rollouts.jsonl")] for run in (now, late)]
    assert ids[0] == ids[1]
    assert found[2]["ratio/std"] > 100 * found[2]["ratio/noise_floor"] > 0  # numerics, not staleness
    assert all(line["moe/sampler_agreement"] == 1 for line in found)
    assert len({tuple(r["token_ids"]) for r in lines(late.folder / "rollouts.jsonl")}) > 50  # each batch draws anew


def test_a_coarse_sampler_disagrees_and_evaluation_does_not_use_it(tmp_path, plain):
    options = FAST | {"eval": {"every": 1, "num_prompts": 4}, "algorithm": {"old_logprobs": "sampler"}}
    fine = numbers(train(tmp_path / "a", **options).folder)
    coarse = numbers(train(tmp_path / "b", sampler=dials(kind="int4"), **options).folder)
    assert coarse[0]["eval/reward"] == fine[0]["eval/reward"]  # before the first step: the same weights
    assert coarse[1]["mismatch/kl"] > 1e-4 > 1e-10 > fine[1]["mismatch/kl"]
    assert coarse[1]["moe/sampler_agreement"] < 1


def decision(folder):
    """What "auto" decided, in its words."""
    return [text for text in texts(folder) if 'old_logprobs = "auto"' in text]


@pytest.mark.parametrize(("kind", "choice"), [("none", "sampler"), ("int4", "recompute")])
def test_auto_recomputes_where_numerics_would_clip(tmp_path, kind, choice):
    """It decides once, tells why, survives a resume, and is nothing but its choice."""
    options = {"sampler": dials(kind=kind), "eval": {"every": 0}}
    auto, plain = ({"algorithm": {"old_logprobs": way}} for way in ("auto", choice))
    folder = train(tmp_path / "auto", train={"steps": 4, "save_every": 2}, **options, **auto).folder
    (text,) = decision(folder)
    assert f'is "{choice}" in this run: the noise floor of the ratio is' in text
    train(tmp_path / "auto", resume=True, train={"steps": 6, "save_every": 2}, **options, **auto)
    assert len(decision(folder)) == 1
    expected = train(tmp_path / "plain", train={"steps": 6, "save_every": 2}, **options, **plain).folder
    assert numbers(folder) == numbers(expected)


@pytest.mark.parametrize(("algorithm", "choice"), [("grpo", "recompute"), ("cispo", "sampler"), ("dppo_tv", "sampler")])
def test_auto_recomputes_for_a_clip_of_single_tokens_that_takes_nothing_yet(tmp_path, algorithm, choice):
    """GRPO with a range that no token leaves: the sampler's error alone decides. CISPO clips none, DPPO does not use it."""
    wide = {"epsilon": 0.9, "epsilon_high": 9.0} if algorithm == "grpo" else {}
    auto = {"name": algorithm, "old_logprobs": "auto"} | wide
    (text,) = decision(train(tmp_path / "run", algorithm=auto, **FAST | {"sampler": dials(kind="int4")}).folder)
    assert f'is "{choice}"' in text and (algorithm == "dppo_tv" or "numerics alone would clip 0.0% of the tokens" in text)
    (text,) = decision(train(tmp_path / "exact", algorithm=auto, **FAST).folder)
    assert 'is "sampler"' in text


def test_auto_looks_at_fresh_rollouts_where_they_are_stale(tmp_path):
    """Staleness is no reason to recompute."""
    found = train(tmp_path / "run", sampler=dials(lag=2), algorithm={"old_logprobs": "auto"}, **FAST)
    (text,) = decision(found.folder)
    assert 'is "sampler"' in text


@pytest.mark.parametrize("algorithm", [{"old_logprobs": "recompute"}, {"router_replay": "R2", "epsilon": "auto"}], ids=str)
def test_stale_rollouts_with_a_pass_of_pi_old_show_numerics_on_those_of_now(tmp_path, algorithm):
    for line in numbers(train(tmp_path / "run", algorithm=algorithm, sampler=dials(lag=1), **FAST).folder):
        assert line["mismatch/kl"] < 1e-10 and line["ratio/noise_floor"] < 1e-5
        assert line["moe/sampler_agreement"] == 1 and line["clip_ratio/noise_only"] == 0


@pytest.mark.parametrize("idle", ["first", "last"])
def test_mini_batches_without_any_advantage_are_read_against_the_recomputed_pi_old(tmp_path, idle, monkeypatch):
    """Of 4 mini-batches one, or two, has nothing to learn; the sampler is coarse and tells no experts."""
    sampled = HFSampler.generate

    def without_routes(self, *args, **kwargs):
        return [dataclasses.replace(one, routes=None) for one in sampled(self, *args, **kwargs)]

    def reward(prompts, completions, **columns):
        each = likes_a(prompts, completions)
        none = range(8) if idle == "first" else range(16, len(each))
        return [0.0 if i in none else r for i, r in enumerate(each)]

    monkeypatch.setattr(HFSampler, "generate", without_routes)
    algorithm = {"old_logprobs": "recompute", "mini_batches": 4}
    changes = FAST | {"algorithm": algorithm, "sampler": dials(kind="int4"), "train": {"steps": 2}}
    train(tmp_path / "run", reward=reward, **changes)
    for line in numbers(tmp_path / "run"):
        assert line["updates"] == 4 and line["mismatch/prob_max"] > 1e-3
        assert "moe/volatility" in line and line["clip_ratio/noise_only"] == 0
