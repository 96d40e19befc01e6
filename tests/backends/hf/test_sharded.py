"""A model in shards learns as a whole one: gradients, weights, files. Ranks are processes of this machine (gloo)."""

import dataclasses
import functools
from pathlib import Path

import pytest
import torch

from gspo.assembly.learners import size
from gspo.backends.hf.policy import HFPolicy
from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, ModelConfig, ResolvedOptimizer
from gspo.config.scale import ScaleConfig
from gspo.distributed.load_balance import split_evenly
from gspo.distributed.ranks import whole
from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.objective.algorithms import ALGORITHMS
from gspo.types import Completion
from tests.backends.hf.folders import load, load_on, model_in, weights_in
from tests.tiny_run import PIECES
from tests.together import together

UPDATES = 3
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# Known to all ranks.
FOLLOWED = {"loss", "grad_norm", "lr", "updates/skipped", "no_signal/completions", "no_signal/backward"}


def completions(seed, lengths=(4, 9, 2, 7, 5, 5, 11, 3), advantages=(1.0, -1.0)):
    """Pairs with a prompt in common."""
    draw, made = torch.Generator().manual_seed(seed), []
    for i, length in enumerate(lengths):
        prompt = torch.arange(3 + i // 2) % 7 + 2 + i // 2
        tokens = torch.cat([prompt, torch.randint(2, 20, (length,), generator=draw)])
        logp = -3 + 0.3 * torch.randn(length, generator=draw)
        sampled = torch.arange(len(tokens)) >= len(prompt)
        made.append(Completion(tokens, sampled, logp, logp, advantages[i % len(advantages)] * (1 + i), reward=float(i)))
    return made


@dataclasses.dataclass(frozen=True)
class Case:
    """What is learned, and how. more: of the algorithm. teacher: weight of a teacher: the model before training."""

    algorithm: str = "gspo"
    layout: str = "padded"
    replay: str = "none"
    checkpointing: bool = False
    more: tuple = ()
    batches: tuple = ()  # arguments of `completions`, by name
    teacher: float = 0.0


def learner_of(model, case, ranks=None, lr=1e-3, other=None):
    settings = AlgorithmConfig(name=case.algorithm, router_replay=case.replay, **dict(case.more))
    row, algorithm, _ = resolve(settings)
    policy = HFPolicy(model, 1.0, case.layout, case.checkpointing, router_logits=algorithm.aux_loss > 0)
    optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(lr=lr, weight_decay=0.1, eps=1e-3), 100, 10)
    objective = PolicyObjective(row, algorithm, 16, case.teacher)
    column = "logp_teacher" if case.teacher else "logp_ref"
    frozen = {} if other is None else {column: HFPolicy(other, 1.0, case.layout)}
    parts = MicroBatches(40, ranks=ranks)
    return PolicyLearner(policy, optimizer, objective, parts, router_replay=case.replay, frozen=frozen)


def learned(model, case, ranks=None, other=None):
    """Metrics of each update and the gradient of the first, then the weights after all."""
    learner = learner_of(model, case, ranks, other=other)
    gradients, told = {}, []
    clear = learner.optimizer.clear

    def kept():
        if not gradients:
            for name, p in model.named_parameters():
                gradients[name] = torch.zeros(p.shape) if p.grad is None else whole(p.grad).clone()
        clear()

    learner.optimizer.clear = kept
    for seed in range(UPDATES):
        batch = completions(seed, **dict(case.batches))
        if case.replay == "R3":
            batch = [dataclasses.replace(c, routes=routes_of(c.tokens, seed)) for c in batch]
        half = len(batch) // 2 or 1
        learner.prepare([part for part in (batch[:half], batch[half:]) if part], recompute=case.algorithm != "cispo")
        told += [learner.update(number).metrics for number in range(len(learner.mini_batches))]
        learner.finish()
    return told, gradients, weights_of(learner)


def weights_of(learner):
    """Whole, on each rank."""
    return {name: whole(p.detach()).clone() for name, p in learner.policy.model.named_parameters()}


def equal(weights, others):
    return weights.keys() == others.keys() and all(torch.equal(weights[name], x) for name, x in others.items())


def furthest(weights, others):
    return max(float((weights[name] - x).abs().max()) for name, x in others.items())


def updated(learner, seed=0):
    """The weights after an update."""
    learner.take([completions(seed)])
    learner.update(0)
    return weights_of(learner)


def routes_of(tokens, seed):
    """Experts of each token, by what stands before it: completions have those of their prompt in common."""
    drawn = torch.rand(997, 2, 4, generator=torch.Generator().manual_seed(seed))
    return drawn[tokens.cumsum(0) % 997].argsort(-1)[..., :2].to(torch.int16)


def loaded_and_learned(load, case, ranks=None):
    return learned(load(), case, ranks, load() if case.teacher or "beta" in dict(case.more) else None)


def in_shards(ranks, path, scale, cases, autocast="auto"):
    """What a rank finds in each case."""
    load = functools.partial(load_on, ranks, path, scale, autocast=autocast)
    return [loaded_and_learned(load, case, ranks) for case in cases]


@functools.cache
def alone(path, case, autocast="auto"):
    """The same in one process."""
    return loaded_and_learned(functools.partial(load, path, autocast=autocast), case)


def compare(found, expected, leads=True):
    """The worst relative difference of a gradient's tensors, and of the weights; metrics agree, where a rank knows them."""
    (told, gradients, weights), (told0, gradients0, weights0) = found, expected
    for metrics, metrics0 in zip(told, told0):
        assert metrics.keys() == (metrics0.keys() if leads else metrics0.keys() & FOLLOWED)
        for name, value in metrics0.items():
            if name == "no_signal/backward" or name not in metrics:  # which micro-batches there are is another matter
                continue
            assert metrics[name] == pytest.approx(value, rel=1e-3, abs=2e-5, nan_ok=True), name
    assert gradients.keys() == gradients0.keys() and weights.keys() == weights0.keys()
    norm = torch.cat([g.flatten() for g in gradients0.values()]).norm()
    gradient = max(float((gradients[n] - g).norm() / (g.norm() + 1e-3 * norm)) for n, g in gradients0.items())
    return gradient, furthest(weights, weights0)


MIXTURES = (
    Case(),
    Case(layout="auto"),
    Case(replay="R2"),
    Case(replay="R3", layout="auto"),
    Case(replay="R2", checkpointing=True),
    Case(more=(("aux_loss", 0.01),)),
    Case(more=(("beta", 0.1),)),
)
AUTO = Case(more=(("epsilon", "auto"),))  # the range is found by the rank that leads
TAUGHT = Case(algorithm="grpo", teacher=0.7)
UNSURE = Case(more=(("top_entropy", 0.2), ("old_logprobs", "recompute")))  # of the entropies of all ranks
PLAIN = Case(), Case(layout="auto"), Case(checkpointing=True), Case(more=(("beta", 0.1),)), TAUGHT, AUTO, UNSURE
LOUD = (("advantages", (9.0, -9.0)),)  # for covariances above 1
CLIP_COV = Case(more=(("clip_cov", 0.1),), batches=LOUD)
KL_COV = Case(algorithm="grpo", more=(("kl_cov", 0.2), ("kl_cov_weight", 30.0)), batches=LOUD)
HARD = (
    Case(batches=(("lengths", (9,)),)),  # one completion, the other ranks have none
    Case(batches=(("lengths", (20, 1, 1, 1)),)),
    Case(algorithm="grpo", batches=(("advantages", (0.0, 0.0, 0.0, 1.0)),)),  # most are idle
    Case(batches=(("advantages", (1.0, -1.0, 1.0, -1.0, *[0.0] * 4)),)),  # every second update reads nothing
)


def crews(ranks, every):
    """What a rank finds in each case of each crew."""
    return [in_shards(ranks, *crew) for crew in every]


def experts(count, replicas=1):
    return ScaleConfig(expert_parallel=count, data_parallel_replicas=replicas)


@pytest.mark.parametrize(
    "size, every",  # dense, tied, how it is laid out, what is learned
    [
        (2, [(True, False, ScaleConfig(), (*PLAIN, CLIP_COV, KL_COV, *HARD))]),
        slow(2, [(True, True, ScaleConfig(), PLAIN), (False, False, ScaleConfig(), MIXTURES)]),
        (2, [(False, True, experts(2), (*MIXTURES, *HARD))]),
        slow(4, [(False, False, experts(4), (*MIXTURES, *HARD))]),
        slow(4, [(False, True, experts(2), MIXTURES[:3]), (False, False, ScaleConfig(), MIXTURES[:4])]),
        (4, [(False, False, experts(2, 2), MIXTURES)]),
        slow(4, [(True, True, experts(1, 2), PLAIN), (True, False, ScaleConfig(), PLAIN)]),
    ],
)
def test_ranks_learn_what_one_process_learns(model_of, size, every):
    models = [(model_of(dense, tied), scale, cases) for dense, tied, scale, cases in every]
    for number, all_found in enumerate(together(crews, size, models)):  # each rank has the same weights
        for (path, scale, cases), found in zip(models, all_found):
            for case, one in zip(cases, found):
                gradient, weights = compare(one, alone(path, case), leads=number == 0)
                assert gradient < 1e-6 and weights < 1e-6, (path, scale, case)


def uneven(ranks, path):
    """Tied embeddings of 19 rows on 2 ranks, which check_tied refuses, trained all the same."""
    from gspo.backends.hf import sharded

    check, sharded.check_tied = sharded.check_tied, lambda *more: None
    model = load_on(ranks, path)
    assert size(model) == size(load(path))  # of all ranks together
    learner = learner_of(model, Case(), ranks)
    learner.take([[dataclasses.replace(c, tokens=c.tokens.clamp(max=18)) for c in completions(0)]])
    errors = []
    for work in (lambda: check(model.model, ModelConfig(path=path)), lambda: learner.update(0)):
        with pytest.raises((ValueError, RuntimeError)) as error:
            work()
        errors.append(str(error.value))
    return errors


def test_tied_embeddings_that_the_ranks_do_not_divide_are_refused_and_would_be_noticed(tmp_path):
    path = model_in(tmp_path, dense=True, tied=True, pieces=PIECES)
    for refused, noticed in together(uneven, 2, path):
        assert "2 ranks do not divide their 19 rows" in refused and "lm_head.weight" in noticed


def drifted(ranks, path):
    """Two copies of a model, of which one is changed; and an optimizer that was made of gathered weights."""
    model = load_on(ranks, path, ScaleConfig(data_parallel_replicas=2))
    learner = learner_of(model, Case(), ranks)
    if ranks.number == 1:
        dict(model.named_parameters())["model.norm.weight"].data.to_local()[0] += 1e-3
    with pytest.raises(RuntimeError) as copies:
        updated(learner)
    model.run(lambda: None)
    for module in model.model.modules():
        getattr(module, "unshard", lambda: None)()
    with pytest.raises(RuntimeError) as optimizer:
        model.prove(list(model.model.parameters()))
    return str(copies.value), str(optimizer.value)


def test_a_copy_that_differs_and_an_optimizer_of_other_tensors_are_noticed(model_of):
    for copies, optimizer in together(drifted, 2, model_of(True, False)):
        assert "model.norm.weight" in copies and "copies of it differ" in copies
        assert "not what the optimizer changes" in optimizer


def every_algorithm(ranks, path):
    cases = [Case(algorithm=name) for name, row in ALGORITHMS.items() if not row.critic]
    return [(case, learned(load_on(ranks, path, experts(2)), case, ranks)) for case in cases]


@pytest.mark.slow
def test_every_algorithm_learns_the_same_and_the_same_crew_learns_it_twice(model_of):
    path = model_of(False, False)
    first, again = (together(every_algorithm, 2, path)[0] for _ in range(2))
    for (case, one), (_, other) in zip(first, again):
        gradient, weights = compare(one, alone(path, case))
        assert gradient < 1e-6 and weights < 1e-6, case
        assert equal(one[2], other[2]), case  # bit for bit


NOT_FINITE = "nan", "inf", "shard"  # an advantage of one completion, or a number of a gradient's shard


def odd(what, of):
    """A batch of which the completions in `of`, all that one rank reads, are odd. The others are to be likelier again."""
    batch = [dataclasses.replace(c, logp_old=c.logp_old + 2) for c in completions(1, advantages=(1.0, 1.0))]
    for i in {"clipped": of, "shard": []}.get(what, of[:1]):
        change = {"logp_old": batch[i].logp_old - 9} if what == "clipped" else {"advantage": float(what)}
        batch[i] = dataclasses.replace(batch[i], **change)
    return batch


def odd_updates(ranks, path, readers):
    """Updates in which one rank of two alone meets something, each in turn: metrics, then the weights, by what it is and the
    rank. readers: what each reads of a batch. ranks: None in one process.
    """
    model = load_on(ranks, path, experts(2)) if ranks else load(path)
    learner = learner_of(model, Case(algorithm="grpo"), ranks)
    step, found = learner.optimizer.step, {("", 0): ({}, weights_of(learner))}

    def spoiled(loss):  # a number of experts, which lie on this rank alone
        gradient = next(p.grad for name, p in model.named_parameters() if "experts" in name)
        getattr(gradient, "to_local", lambda: gradient)()[0, 0] = float("nan")
        return step(loss)

    once = [(what, victim) for what in NOT_FINITE for victim in (0, 1)]
    later = [("all", 0), ("clipped", 0), ("clipped", 1), ("nan later", 1), ("shard later", 0)]  # with AdamW's moments
    for what, victim in once + later:
        batch = odd("clipped", range(8)) if what == "all" else odd(what.split()[0], readers[victim])
        learner.take([batch])
        assert ranks is None or learner.readers == [readers]
        hit = what.startswith("shard") and (ranks is None or ranks.number == victim)
        learner.optimizer.step = spoiled if hit else step
        found[what, victim] = learner.update(0).metrics, weights_of(learner)
    return found


def test_what_one_rank_meets_alone_is_met_by_all(model_of):
    path, readers = model_of(False, False), split_evenly(completions(1), 2)
    assert all(readers) and sorted(readers[0] + readers[1]) == list(range(8))
    one = odd_updates(None, path, readers)
    for number, found in enumerate(together(odd_updates, 2, path, readers)):
        (_, before), (_, before_in_one) = found.pop(("", 0)), one["", 0]
        for (what, victim), (told, weights) in found.items():
            told_one, weights_in_one = one[what, victim]
            lost = what.split()[0] in NOT_FINITE
            assert told["updates/skipped"] == told_one["updates/skipped"] == float(lost), (what, victim)
            assert equal(weights, before) == lost == equal(weights_in_one, before_in_one), (what, victim)
            apart = furthest(weights, weights_in_one)
            assert apart < 1e-6 and (apart == 0 or not lost or "later" in what), (what, victim, apart)
            if not lost:
                assert told["grad_norm"] == pytest.approx(told_one["grad_norm"], rel=1e-5), (what, victim)
            before, before_in_one = weights, weights_in_one
            if what == "clipped" and number == 0:  # this rank's completions, all of them, and no other
                y = [len(c.logp_old) for c in completions(1)]
                assert told["clip_ratio/tokens"] == pytest.approx(sum(y[i] for i in readers[victim]) / sum(y))
        assert found["all", 0][0]["grad_norm"] == 0


def written(ranks, path, folder):
    """Files of a model in shards, and its learner's after an update; then both again from them."""
    learner = learner_of(load_on(ranks, path, experts(ranks.size)), Case(), ranks)
    updated(learner)
    Path(folder).mkdir(exist_ok=True)
    ranks.gathered(None)
    learner.save(Path(folder))
    after = updated(learner, 1)
    learner.rewind(Path(folder), 1.0)
    learner.optimizer.updates = 1
    return after, updated(learner, 1)


def resumed(ranks, folder, scale):
    learner = learner_of(load_on(ranks, f"{folder}/model", scale), Case(), ranks)
    learner.resume(Path(folder))
    return updated(learner, 1)


@pytest.mark.parametrize("tied", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_two_ranks_have_written_goes_on_on_one_two_and_four(model_of, tmp_path, tied):
    path, saved = model_of(False, tied), tmp_path / "saved"
    after, rewound = together(written, 2, path, str(saved))[0]
    assert furthest(after, rewound) == 0
    for count, scale, rounding in (2, experts(2), 0.0), (2, ScaleConfig(), 1e-6), (4, experts(2), 1e-6):
        assert furthest(after, together(resumed, count, str(saved), scale)[0]) <= rounding
    plain = load(saved / "model")
    plain.save(tmp_path / "plain")  # what ranks wrote is what transformers writes, by names, shapes and numbers
    assert equal(weights_in(saved / "model"), weights_in(tmp_path / "plain"))
    assert (saved / "model" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    assert plain.model.config.architectures == ["Qwen3MoeForCausalLM"]
    whole_one = learner_of(plain, Case())
    whole_one.resume(saved)
    assert furthest(after, updated(whole_one, 1)) < 1e-6
    # ... and what one process has written goes on on two
    (tmp_path / "alone").mkdir()
    whole_one.save(tmp_path / "alone")
    weights = together(resumed, 2, str(tmp_path / "alone"), experts(2))[0]
    assert furthest(weights, updated(whole_one, 1)) < 1e-6
