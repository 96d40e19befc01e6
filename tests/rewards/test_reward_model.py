import asyncio
from contextlib import closing

import pytest

import gspo
from gspo.rewards.reward_model import RewardModel, conversation_of
from tests.logged import logs
from tests.rewards.classifiers import reward_model, saved, scores
from tests.rewards.endpoint import listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def test_a_conversation_and_a_completion_that_the_prompt_began(folder):
    model = reward_model(folder)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    begun = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "ab"}]
    assert len({*model([turns, "c"], ["d", "d"])}) == 2
    assert model([begun], ["cabcabc"]) == scores(model, ["abcabcabc"])
    assert conversation_of("p", "r") == [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]


def test_a_group_of_trajectories(folder):
    model = reward_model(folder)
    group = gspo.TrajectoryGroup(gspo.Trajectory(conversation_of("why?", completion)) for completion in ("a", "b" * 90))
    scored = asyncio.run(model.score_group(group))
    assert [trajectory.reward for trajectory in scored] == pytest.approx([scores(model, ["a"])[0]])
    assert len(scored.exceptions) == 1


# Served


def classify(scores):
    """vLLM's answer to /classify."""
    data = [{"index": 0, "label": None, "probs": scores, "num_classes": len(scores)}]
    return {"id": "classify-1", "object": "list", "created": 0, "model": "m", "data": data, "usage": {"total_tokens": 3}}


def test_a_served_classifier():
    def answer(body):
        completion = body["messages"][-1]["content"]
        return classify([float("nan") if completion == "nan" else float(len(completion)), -1.0])

    with listening(lambda body: classify([0.25])) as endpoint:
        model = RewardModel(path="m", url=endpoint.root, retries=0)
        assert scores(model, ["a"]) == [0.25]
        model.close()
    with listening(answer) as endpoint:
        model = RewardModel(
            path="m", url=endpoint.root, retries=0, label="0", output="probability", max_length=9, too_long="left"
        )
        model.wait()
        assert scores(model, ["a", "abc"]) == [1, 3]
        (body,) = [body for body in endpoint.asked if body["messages"][-1]["content"] == "abc"]
        model.close()
    assert body == {
        "model": "m", "messages": conversation_of("why?", "abc"), "use_activation": True, "truncate_prompt_tokens": 9,
        "truncation_side": "left",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"data": []}, "its response is not that of vLLM's /classify"),
        (classify([1.0, 2.0]), "the classifier has 2 labels: give the number of one as reward_model.label"),
    ],
)
def test_a_server_that_says_something_else(answer, reason):
    with listening(lambda body: answer) as endpoint:
        model = RewardModel(path="m", url=endpoint.root, retries=0)
        with pytest.raises(ValueError, match=f"reward_model.url = .*{reason}"):
            model.wait()
        assert scores(model, ["a"]) == [None]
        with logs(match=f"reward model: not scored 1 times: {reason}"):
            assert model.counts()["failed"] == 1
        model.close()


def test_the_login_in_the_address_is_not_shown():
    model = RewardModel(path="m", url="http://me:word@127.0.0.1:9", retries=0)
    with closing(model), pytest.raises(ValueError, match=r"url = 'http://<hidden>@127.0.0.1:9'.* be reached"):
        model.wait()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "/no/such/folder"}, "reward_model.path = '/no/such/folder'"),
        ({"path": "m", "url": "http://h", "dtype": "bfloat16"}, "reward_model.dtype is of no use to a server"),
        ({"path": "m", "url": "http://h", "max_length": 5}, "give both, or neither"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(ValueError, match=message):
        RewardModel(**fields)
