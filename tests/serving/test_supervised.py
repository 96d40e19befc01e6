"""Supervised fine-tuning between the steps of a served model."""

import asyncio

import pytest

from gspo import Trajectory
from gspo.agents.trajectories import TrainCall
from gspo.serving.supervised import targets
from tests.agents.talking import CHATML, TOOLS
from tests.agents.test_chat import OPENS, talking
from tests.serving.served import ASK, GOOD, post, serving
from tests.serving.test_model import collected

TALK = Trajectory([*ASK, {"role": "assistant", "content": "a pear"}, *ASK, {"role": "assistant", "content": "an apple"}])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    warming = {"optimizer": {"warmup": 9}}  # of its own steps, not of what it imitates
    with serving(tmp_path_factory.mktemp("supervised") / "run", **warming) as served:
        yield served


def test_it_answers_as_it_was_shown_and_trains_on(model):
    before = model.step
    losses = [line["loss"] for line in asyncio.run(model.imitate([TALK] * 20, 2e-2, 1))]
    assert len(losses) == 20 and losses[-1] < 0.2 * losses[0]
    greedy = GOOD | {"temperature": 0}
    answer = post(model, "/chat/completions", greedy).json()
    assert answer["choices"][0]["message"]["content"] == "a pear"
    assert model.step == before + 1 and answer["system_fingerprint"] == f"version-{before + 1}"
    assert (
        post(model, "/chat/completions", greedy | {"model": f"policy@{before + 1}"}).json()["choices"][0]["message"]
        == (answer["choices"][0]["message"])
    )
    (group,) = asyncio.run(collected(model, 1))
    for reward, trajectory in enumerate(group):
        trajectory.reward = reward
    metrics = asyncio.run(model.train([group], TrainCall(1e-3)))
    assert metrics["step"] == before + 2 and metrics["mismatch/prob_max"] < 1e-4
    assert f'"step": {before + 1}, "sft/loss"' in (model.folder / "metrics.jsonl").read_text()


def test_each_update_has_its_learning_rate_and_its_conversations(model):
    first, second = asyncio.run(model.imitate([TALK, TALK, TALK], [1e-9, 2e-9], 2))
    assert (first["lr"], second["lr"]) == (pytest.approx(1e-9), pytest.approx(2e-9))
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-4)  # a mean over tokens


def test_an_answer_that_would_be_all_thoughts_is_refused():
    talk = talking(CHATML + OPENS)
    thought = Trajectory([*ASK, {"role": "assistant", "content": "It is sweet.</think>a pear"}])
    assert len(targets([thought], talk)) == 1
    with pytest.raises(ValueError, match=r"messages_and_choices\[1\]: the prompt ends inside <think>"):
        targets([TALK], talk)
    begun = Trajectory([*ASK, *({"role": "assistant", "content": text} for text in ("<think>It is", "a pear"))])
    with pytest.raises(ValueError, match=r"messages_and_choices\[2\]: the prompt ends inside <think>"):
        targets([begun], talking(CHATML))


@pytest.mark.parametrize(
    ("trajectories", "rates", "why"),
    [
        ([Trajectory(ASK)], 1e-3, "there is no assistant turn to imitate"),
        (
            [Trajectory([*ASK, {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}]}], tools=TOOLS)],
            1e-3, r"trajectories\[0\]\.messages_and_choices\[1\] calls tools",
        ),
        ([Trajectory([*ASK, {"role": "assistant", "content": "box " * 600}])], 1e-3, "of 512 that fit: leave it out"),
        ([TALK, TALK], [1e-3, 1e-3, 1e-3], "learning_rate: 3 numbers for 2 updates"),
    ],
)  # fmt: skip
def test_what_is_refused(model, trajectories, rates, why):
    before = model.step
    with pytest.raises(ValueError, match=why):
        asyncio.run(model.imitate(trajectories, rates, 1))
    assert model.step == before
