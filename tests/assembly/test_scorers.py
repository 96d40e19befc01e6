"""Who scores, by the configuration."""

import shutil

import pytest

from gspo.assembly.call_inputs import CallInputs, configured
from gspo.assembly.scorers import check_scale, scorer_of
from gspo.rollout.external import AlreadyScored
from tests import tiny_run
from tests.launch.started import begin, finished


def made(folder, **sections):
    tiny = tiny_run.model()
    return configured(tiny_run.settings(folder, **sections), {}, tiny.model, tiny.tokenizer, tiny_run.ROWS)


def test_an_environment_scores_in_place_of_rewards(tmp_path):
    task = {"environment": "tests.assembly.test_samplers:Room"}
    config = made(tmp_path / "run", task=task)
    with scorer_of(config, CallInputs()) as scorer:
        assert isinstance(scorer, AlreadyScored)
    with (
        pytest.raises(ValueError, match="reward: has no effect, the environment gives the reward itself"),
        scorer_of(config, CallInputs(functions=[tiny_run.likes_a])),
    ):
        pass


@pytest.mark.parametrize(("weights", "count"), [([], 1), ([1.0, 0.0], 2)])
def test_rewards_are_scaled_apart_only_where_several_have_a_weight(tmp_path, weights, count):
    apart = made(tmp_path / "run", algorithm={"scale_rewards": "gdpo"}, reward={"weights": weights})
    with scorer_of(apart, CallInputs(functions=[tiny_run.likes_a] * count)) as scorer:
        with pytest.raises(ValueError, match=r"'gdpo' and reward.weights = .*it scales several rewards apart"):
            check_scale(apart, scorer)
        check_scale(made(tmp_path / "other", reward={"weights": weights}), scorer)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_what_a_reward_cannot_get_is_told_before_the_model_is_loaded(place, command):
    folder = place / "no-weights"
    if not folder.exists():
        shutil.copytree(place / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
        (folder / "model.safetensors").write_bytes(b"nothing")
        (place / "wrong.py").write_text("def reward(prompt, completion):\n    return 1.0\n")
    given = f"--model.path={folder}", '--reward.functions=["wrong:reward"]', "--eval.num_prompts=2"
    status, output = finished(begin(place, f"wrong-{command}", *given, command=command))
    assert status == 2 and output.count("gspo: error") == 1, output
    assert "reward reward: it cannot be called without 'prompt', 'completion'" in output and "safetensors" not in output
    assert not (place / f"wrong-{command}").exists()
