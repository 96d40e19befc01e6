"""One rank asks, all do it: the leader's learner is like any other."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from gspo.learner.leader_follower import OVER, LeadingLearner, follow
from tests.backends.hf.folders import load
from tests.backends.hf.test_sharded import Case, completions, learner_of, model_in, routes_of, weights_of
from tests.together import sent, together


def sharded(ranks, path, case=None, **scale):
    from gspo.backends.hf.sharded import load_sharded

    model = load_sharded(ModelConfig(path=path, device="cpu"), ScaleConfig(**scale), ranks.size)
    return learner_of(model, case or Case(), ranks)


def led(ranks, path, folder):
    local = sharded(ranks, path)
    if ranks.number > 0:
        follow(local, ranks)
        return local.optimizer.lr_override, local.optimizer.updates, len(local.mini_batches)
    learner, batch = LeadingLearner(local, ranks), completions(0)
    weights = learner.publish(3)
    first = [name for name, _ in zip((name for name, _ in weights.tensors()), range(2))]  # not listened to the end
    every = {name: x.clone() for name, x in weights.tensors()}
    layers = {name: x.clone() for layer in weights.layers() for name, x in layer.items()}
    weights.save(str(Path(folder) / "first"), merged=True)
    files = {name: x for f in (Path(folder) / "first").glob("*.safetensors") for name, x in load_file(f).items()}
    assert files.keys() == layers.keys() and all(torch.equal(layers[name], x) for name, x in files.items())
    assert next(iter(weights.layers())).keys() <= layers.keys()  # not listened to the end
    readings = [weights.read(batch[:3]), learner.read(batch[:3])]
    agreement = learner.compare(batch)
    learner.prepare([batch[:4], batch[4:]], recompute=True)
    learner.override_lr(0.5e-3)
    metrics = [learner.update(number).metrics for number in (0, 1)]
    clip, at_floor = learner.clip, learner.finish()
    weights.save(str(Path(folder) / "published"))
    after = {name: x.clone() for name, x in learner.publish(4).tensors()}
    ranks.broadcast_command(OVER)
    return weights.version, first, every, readings, agreement, metrics, clip, at_floor, after


def test_the_leaders_calls_are_made_by_all(tmp_path):
    path = model_in(tmp_path / "model")
    answer, followed = together(led, 2, path, str(tmp_path))
    version, first, every, readings, agreement, metrics, clip, at_floor, after = answer
    alone, batch = learner_of(load(path), Case()), completions(0)
    begun = dict(alone.policy.weights())
    assert version == 3 and first == list(begun)[:2]
    assert every.keys() == begun.keys() and all(torch.equal(every[name], x) for name, x in begun.items())
    for one, other, expected in zip(*readings, alone.read(batch[:3])):
        torch.testing.assert_close(one.logp, expected)
        torch.testing.assert_close(other, expected)
    expected = alone.compare(batch)
    assert agreement.noise == pytest.approx(expected.noise, rel=1e-4) and agreement.clipped == expected.clipped
    assert agreement.metrics == pytest.approx(expected.metrics, rel=1e-3, abs=1e-6)
    alone.prepare([batch[:4], batch[4:]], recompute=True)
    alone.override_lr(0.5e-3)
    for number, told in enumerate(metrics):
        expected = alone.update(number).metrics
        assert told["loss"] == pytest.approx(expected["loss"], abs=1e-6) and told["lr"] == expected["lr"] == 0.5e-3
    assert clip == alone.clip and at_floor == alone.finish()
    assert max(float((after[name] - x.detach()).abs().max()) for name, x in alone.policy.weights()) < 1e-6
    assert followed == (0.5e-3, 2, 0)
    saved = load(tmp_path / "published")
    assert all(torch.equal(after[name], x) for name, x in saved.named_parameters())


def fails(ranks, path):
    """An error that all ranks meet in a call, and one of the leader's own."""
    local = sharded(ranks, path)
    try:
        if ranks.number:
            follow(local, ranks)
        else:
            LeadingLearner(local, ranks).resume(Path("nowhere"))
    except RuntimeError as error:
        return str(error)
    return ""


def test_an_error_is_met_by_all(tmp_path):
    for error in together(fails, 2, model_in(tmp_path)):
        assert "nowhere/learner.pt cannot be read" in error


BATCHES = [
    {},
    {"lengths": (20, 1, 1, 1), "advantages": (1.0,)},  # ranks without a completion in an update
    {"advantages": (0.0, 1.0, -1.0, 0.0)},  # idle ones, which no update reads
    {"lengths": (11, 3, 9, 2, 8, 4), "advantages": (1.0, -1.0)},  # of one prompt, split among ranks
    {"advantages": (*[0.0] * 4, 1.0, -1.0, 1.0, -1.0)},  # every second update reads nothing, the first too
]


def steps(learner, replay, each=lambda: None):
    """Metrics of steps of two mini-batches and two epochs. The routes of R3 are known where this is called."""
    told = []
    for seed, batch in enumerate(BATCHES):
        rows = completions(seed, **batch)
        if seed == 3:
            rows = [dataclasses.replace(c, tokens=torch.where(c.sampled, c.tokens, 5)) for c in rows]
        if replay == "R3":
            rows = [dataclasses.replace(c, routes=routes_of(c.tokens, seed)) for c in rows]
        half = len(rows) // 2
        learner.prepare([rows[:half], rows[half:]], seed < 4, rows if seed == 1 else ())
        each()
        updates = [learner.update(number) for number in (0, 1, 0, 1)]
        (agreement,) = [u.agreement for u in updates if u.agreement]
        told.append([u.metrics for u in updates] + [agreement.metrics, {"noise": agreement.noise}])
        learner.finish()
    return told


def routed(ranks, path, case):
    """What a rank holds of a batch's routes, and sends in the steps."""
    local, held = sharded(ranks, path, case, expert_parallel=2), []
    prepare = local.prepare

    def prepared(*arguments):
        prepare(*arguments)
        rows = [local.mini_batches[i][j] for i, j in local.at]
        own = [rows[i].routes for i in local._all_readers()[ranks.number]]
        known = [routes for routes in own if routes is not None]
        held.append((sum(c.routes is not None for c in rows), len(own), len(known), sum(x.nbytes for x in known)))

    local.prepare = prepared
    with sent() as count:
        if ranks.number:
            follow(local, ranks)
            told = None
        else:
            told = steps(LeadingLearner(local, ranks), case.replay)
            ranks.broadcast_command(OVER)
    return told, held, count, weights_of(local)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [Case(replay="R2"), Case(replay="R3"), Case(replay="R2", layout="auto")])
def test_routes_are_where_they_are_used_and_nowhere_else(tmp_path, case, size):
    path = model_in(tmp_path)
    alone = learner_of(load(path), case)
    expected = steps(alone, case.replay)
    every = together(routed, size, path, case)
    for metrics, metrics0 in zip(itertools.chain(*every[0][0]), itertools.chain(*expected)):
        assert metrics.keys() == metrics0.keys()
        metrics0.pop("no_signal/backward", None)
        for name, value in metrics0.items():
            assert metrics[name] == pytest.approx(value, rel=1e-3, abs=2e-5, nan_ok=True), name
    weights = dict(alone.policy.weights())
    for _, held, _, found in every:
        assert max(float((found[name] - x.detach()).abs().max()) for name, x in weights.items()) < 1e-6
        assert all(routes == own == known for routes, own, known, _ in held)
    for number in range(len(BATCHES)):  # each completion's routes lie on one rank
        rows = completions(number, **BATCHES[number])
        assert sum(held[number][0] for _, held, _, _ in every) == sum(c.advantage != 0 for c in rows)
    routes = sum(size for _, held, _, _ in every[1:] for *_, size in held)
    probes = sum(routes_of(c.tokens, 1).nbytes for c in completions(1, **BATCHES[1])) if case.replay == "R3" else 0
    sent_by_leader, batches = every[0][2]["tensors"], routes if case.replay == "R3" else 0
    assert batches <= sent_by_leader <= batches + probes and routes > 0  # a stale batch also has probes to be read
