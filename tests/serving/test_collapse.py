"""What comes of a served run that the guard ends: its rewards fall, as its agents tell."""

import asyncio
from types import SimpleNamespace

import httpx
import openai
import pytest

from gspo.runs import checkpoint
from tests.launch.started import begin, finished
from tests.patience import PATIENCE
from tests.serving.served import post, serving
from tests.serving.test_lost import at, place  # noqa: F401
from tests.serving.test_model import body, collected, saved_scale

REWARDS = (*[1.0] * 14, 0.0)


async def collapse(model, **settings):
    """Steps with rewards that fall, until the guard ends the run. Its error."""
    with pytest.raises(RuntimeError, match="the run collapsed") as error:
        for reward in REWARDS:
            (group,) = await collected(model, 1, 2)
            for trajectory in group:
                trajectory.reward = reward
            await model.train([group], **settings)
    return str(error.value)


FALLS = {"guard": {"action": "stop", "window": 1, "patience": 1}, "train": {"save_every": 10**6}}


def test_a_run_that_the_guard_has_ended_trains_no_more(tmp_path):
    async def main():
        async with serving(tmp_path / "run", **FALLS) as model:
            groups = await collected(model)
            assert 'guard.action = "warn"' in await collapse(model, learning_rate=5e-3)
            assert model.collapsed and model.step == 15 and saved_scale(model) == 1
            with pytest.raises(RuntimeError, match=r"the run collapsed.*start anew from an earlier checkpoint's model"):
                await model.train(groups)
            again = post(model, "/train", body(groups))
            assert again.status_code == 503 and "the run collapsed" in again.json()["error"]["message"]
            assert model.step == 15
            await collected(model)  # it can still be asked

    asyncio.run(main())
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "step_000015"
    assert not (tmp_path / "run" / "model").exists()  # as `gspo train` leaves it
    assert "Collapsed: stopped after 15 steps" in (tmp_path / "run" / "report.html").read_text()


def test_turns_of_weights_that_a_rewind_has_dropped_are_left_out(tmp_path):
    """Though serve.max_age would allow them."""
    guard = FALLS["guard"] | {"action": "rewind"}

    async def main():
        async with serving(tmp_path / "run", guard=guard, train={"save_every": 1}) as model:
            for reward in REWARDS:
                (early,) = await collected(model, 1, 2)
                (group,) = await collected(model, 1, 2)
                for trajectory in (*early, *group):
                    trajectory.reward = reward
                await model.train([group], learning_rate=5e-3)
            assert model.run.guard.rewinds == 1
            with pytest.raises(ValueError, match="there is nothing to train on"):
                await model.train([early])
            assert (await model.train(await collected(model)))["turns/trained"] > 0

    asyncio.run(main())


def test_a_served_run_that_the_guard_ends_has_failed(place):  # noqa: F811
    guard = ["--guard.action=stop", "--guard.window=1", "--guard.patience=1"]
    process = begin(place, "served", *guard, command="serve")
    try:
        url, key, _ = at(process)

        async def steps():
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE) as http:
                for reward in REWARDS:
                    client = lambda: openai.AsyncOpenAI(base_url=url, api_key=key)  # noqa: E731
                    request = body(await collected(SimpleNamespace(step=0, openai_client=client), 1, 2))
                    for trajectory in request["groups"][0]["trajectories"]:
                        trajectory |= {"reward": reward, "turn_rewards": [0.0]}
                    response = await http.post(f"{url}/train", json=request)
            return response

        response = asyncio.run(steps())
        assert response.status_code == 503 and "the run collapsed" in response.json()["error"]["message"]
        status, output = finished(process)
        assert status == 1 and "stopped served" in output and "start anew from an earlier checkpoint" in output
    finally:
        process.kill()
    assert not (place / "served" / "model").exists()
