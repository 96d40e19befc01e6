import dataclasses

import torch

from gspo.learner import layout
from gspo.types import Completion, Prompt, Rollout


def test_a_rollout_that_has_begun_holds_its_prompt_alone():
    made = Rollout.begun(Prompt("p", "", (5, 6, 7)))
    assert made.tokens.tolist() == [5, 6, 7] and made.version.tolist() == [-1, -1, -1]
    assert not made.sampled.any() and not made.logp.any() and made.stop == "" and made.reward is None


def test_a_batch_moves_as_a_whole():
    tokens, sampled = torch.tensor([5, 6, 7]), torch.tensor([False, True, True])
    logp = torch.tensor([-1.0, -2.0])
    batch = layout.build([Completion(tokens, sampled, logp, logp, 1.0)])
    moved = batch.to("meta")
    for one in (moved, moved.forest):
        views = {name: value for name, value in vars(one).items() if isinstance(value, torch.Tensor)}
        assert views and all(value.device.type == "meta" for value in views.values())
    assert moved.logp_ref is None and moved.forest.tokens.shape == batch.forest.tokens.shape
    assert {field.name for field in dataclasses.fields(batch)} == set(vars(moved))
