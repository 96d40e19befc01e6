"""An agent of ART's (openpipe-art), with ART's own classes: `make test-art` has an environment with it."""

import asyncio

import pytest

from tests.agents.talking import TOOLS
from tests.serving.served import ASK, serving
from tests.serving.test_model import worth

art = pytest.importorskip("art")


async def agent(client, turns):
    """As ART's users write it: choices as the client returned them, and a sub-agent's conversation beside the main one."""
    trajectory = art.Trajectory(messages_and_choices=[*ASK], reward=0.0, metadata={"turns": turns})
    for turn in range(turns):
        response = await client.chat.completions.create(model="policy", messages=trajectory.messages(), tools=TOOLS)
        trajectory.messages_and_choices.append(response.choices[0])
        trajectory.reward += worth(response.choices[0].message.content or "") / (turns + 1)
        if turn < turns - 1:
            trajectory.messages_and_choices.append({"role": "user", "content": "go on"})
    beside = [{"role": "user", "content": "and the other box"}]
    response = await client.chat.completions.create(model="policy", messages=beside)
    trajectory.reward += worth(response.choices[0].message.content or "") / (turns + 1)
    trajectory.additional_histories.append(art.trajectories.History(messages_and_choices=[*beside, response.choices[0]]))
    trajectory.metrics["letters"] = trajectory.reward
    trajectory.log("done")
    return trajectory.finish()


async def fails():
    raise ValueError("the agent fell over")


def test_arts_agent_learns(tmp_path):
    async def main():
        async with serving(tmp_path / "run") as model:
            client, rewards = model.openai_client(), []
            for _ in range(20):
                groups = await art.gather_trajectory_groups(
                    (art.TrajectoryGroup([*(agent(client, 2) for _ in range(8)), fails()]) for _ in range(2)),
                    pbar_desc="gather", max_exceptions=2,
                )  # fmt: skip
                config = art.TrainConfig(learning_rate=1e-2)
                metrics = await model.train(groups, config=config, _config={"importance_sampling_level": "sequence"})
                rewards.append(metrics["reward"])
                assert metrics["turns/trained"] == 48 and metrics["turns/left_out"] == 0
                assert metrics["trajectories/left_out"] == 2  # those that fell over
                assert metrics["mismatch/prob_max"] < 1e-4 and metrics["lr"] == pytest.approx(1e-2)
                assert metrics["reward/letters"] == pytest.approx(metrics["reward"]) and "reward/duration" in metrics
            noted = await model.log(groups, split="val", metrics={"mine": 3.0})
            assert noted["val/reward"] == pytest.approx(rewards[-1]) and noted["val/mine"] == 3.0
            assert (await model.log(list(groups[0])))["val/letters"] > 0
            with pytest.raises(ValueError, match=r"kl_penalty_coef = 0.1: .*algorithm\.beta"):
                await model.train(groups, config=art.TrainConfig(kl_penalty_coef=0.1))
            return rewards

    rewards = asyncio.run(main())
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.07


def test_what_art_calls_otherwise_is_named(tmp_path):
    with serving(tmp_path / "run") as model:
        for theirs, ours in (("get_step", "step"), ("inference_base_url", "base_url"), ("train_sft", "gspo.sft")):
            assert hasattr(art.TrainableModel, theirs) or theirs in art.TrainableModel.model_fields
            with pytest.raises(AttributeError, match=f"no {theirs}: what ART calls so is {ours} here"):
                getattr(model, theirs)
