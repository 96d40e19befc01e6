"""The run that a probe walks along."""

import torch
from probe.walk import probed, updates

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import CallInputs
from gspo.config.algorithm import resolved
from gspo.config.files import as_config
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
