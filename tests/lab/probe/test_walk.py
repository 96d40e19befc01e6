"""The run that a probe walks along."""

from pathlib import Path

import pytest
import torch
from probe.walk import EMPTY, probed, updates

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import CallInputs
from gspo.config.algorithm import resolved
from gspo.config.files import as_config
from gspo.config.schema import Config
from tests.tiny_run import ROWS, likes_a, model, settings
from tests.training.whole import train

CHANGES = {
    "train": {"steps": 3, "save_every": 3, "seed": 1},
    "eval": {"every": 0},
    "algorithm": {"epsilon": "auto", "epochs": 2},
}


def test_its_updates_are_those_of_the_run(tmp_path):
    trained = train(tmp_path / "run", **CHANGES).model.state_dict()
    tiny = model()
    sections = settings(tmp_path / "walk", **CHANGES) | {
        "model": {"path": "given", "device": "cpu"},
        "task": {"source": "given"},
    }
    config, _ = resolved(as_config(sections, {}))
    with training(
        probed(config, tmp_path / "walk"), given=CallInputs(tiny.model, tiny.tokenizer, ROWS, None, [likes_a])
    ) as (
        run,
        hf,
    ):
        walk = updates(run)
        for _ in range(3 * 4 * 2):
            next(walk)
        walked = hf.model.state_dict()
    assert trained.keys() == walked.keys()
    assert all(torch.equal(trained[name], walked[name]) for name in trained)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("scale", "ranks", 2), ("algorithm", "name", "ppo"), ("rollout", "max_staleness", 1)],
)
def test_what_cannot_be_probed_is_refused(section, key, value):
    config = as_config({section: {key: value}}, {})
    with pytest.raises(ValueError, match=rf"{section}\.{key} = .*: gspo probe .*set "):
        probed(config, Path("run"))


def test_batches_without_a_group_to_train_on_are_no_updates(tmp_path):
    tiny = model()
    sections = settings(tmp_path / "walk", algorithm={"name": "dapo"})
    config, _ = resolved(
        as_config(sections | {"model": {"path": "given", "device": "cpu"}, "task": {"source": "given"}}, {})
    )

    def equal(prompts, completions, **columns):
        return [1.0] * len(completions)

    given = CallInputs(tiny.model, tiny.tokenizer, ROWS, None, [equal])
    with training(probed(config, tmp_path / "walk"), given=given) as (run, _):
        assert [*updates(run)] == [] and run.step == EMPTY + 1


def test_what_matters_to_a_long_run_alone_is_set_aside():
    config = as_config({"optimizer": {"warmup": 9, "schedule": "cosine"}, "rollout": {"dynamic_sampling_rounds": 2}}, {})
    made = probed(config, Path("run"))
    assert (made.optimizer.warmup, made.optimizer.schedule, made.rollout.dynamic_sampling_rounds) == (0, "constant", 0)
    assert made.algorithm == Config().algorithm and made.optimizer.lr == config.optimizer.lr
