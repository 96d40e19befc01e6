"""One rank asks, all do it: the leader's learner is like any other."""

from pathlib import Path

import pytest
import torch

from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from gspo.learner.crew import OVER, LeadingLearner, follow
from tests.backends.hf.test_sharded import Case, completions, learner_of, model_in
from tests.together import together

pytestmark = pytest.mark.timeout(120)


def led(ranks, path, folder):
    from gspo.backends.hf.sharded import load_sharded

    local = learner_of(load_sharded(ModelConfig(path=path, device="cpu"), ScaleConfig(), ranks.size), Case(), ranks)
    if ranks.number > 0:
        follow(local, ranks)
        return local.lr_scale, local.optimizer.updates, len(local.mini_batches)
    learner = LeadingLearner(local, ranks)
    batch = completions(0)
    weights = learner.publish(3)
    first = [name for name, _ in zip((name for name, _ in weights.tensors()), range(2))]  # not listened to the end
    every = {name: x.clone() for name, x in weights.tensors()}
    readings = [weights.read(batch[:3]), learner.read(batch[:3])]
    agreement = learner.compare(batch)
    learner.prepare([batch[:4], batch[4:]], recompute=True)
    learner.lr_scale = 0.5
    metrics = [learner.update(number).metrics for number in (0, 1)]
    clip, at_floor = learner.clip, learner.finish()
    weights.save(str(Path(folder) / "published"))
    after = {name: x.clone() for name, x in learner.publish(4).tensors()}
    ranks.told(OVER)
    return weights.version, first, every, readings, agreement, metrics, clip, at_floor, after


def test_the_leaders_calls_are_made_by_all(tmp_path):
    from gspo.backends.hf.load import load_model

    path = model_in(tmp_path / "model")
    answer, followed = together(led, 2, path, str(tmp_path))
    version, first, every, readings, agreement, metrics, clip, at_floor, after = answer
    alone = learner_of(load_model(ModelConfig(path=path, device="cpu")), Case())
    batch = completions(0)
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
    alone.lr_scale = 0.5
    for number, told in enumerate(metrics):
        expected = alone.update(number).metrics
        assert told["loss"] == pytest.approx(expected["loss"], abs=1e-6) and told["lr"] == expected["lr"] == 0.5e-3
    assert clip == alone.clip and at_floor == alone.finish()
    assert max(float((after[name] - x.detach()).abs().max()) for name, x in alone.policy.weights()) < 1e-6
    assert followed == (0.5, 2, 0)
    saved = load_model(ModelConfig(path=str(tmp_path / "published"), device="cpu"))
    assert all(torch.equal(after[name], x) for name, x in saved.named_parameters())


def fails(ranks, path):
    """An error that all ranks meet in a call, and one of the leader's own."""
    from gspo.backends.hf.sharded import load_sharded

    local = learner_of(load_sharded(ModelConfig(path=path, device="cpu"), ScaleConfig(), ranks.size), Case(), ranks)
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
