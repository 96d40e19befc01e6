import asyncio
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import gspo
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.reward_model import RewardModel, conversation_of
from gspo.rewards.scorer import Rewards
from tests import tiny_run
from tests.data.tools import rollout
from tests.rewards.classifiers import saved
from tests.rewards.endpoint import listening

REPLIES = ["a", "abcabcabc", "7", "zz top", "a" * 30, "", "b7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def reward_model(folder, **fields):
    return RewardModel(path=str(folder), device="cpu", **fields)


def scores(model, completions=REPLIES, prompt="why?"):
    return model([prompt] * len(completions), completions)


def by_hand(folder, completion, prompt="why?", **options):
    """As a model's card shows: one text, no batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    if tokenizer.chat_template:
        encoded = tokenizer(
            tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False, return_tensors="pt"
        )
    else:
        encoded = tokenizer(prompt, completion, return_tensors="pt")
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in tokenizer.model_input_names]
    with torch.inference_mode():
        return model(**{name: encoded[name] for name in names}).logits[0].float()


CASES = {
    "with padding": {}, "without a padding token": {"pad": False}, "without a template": {"template": None},
    "without either": {"template": None, "pad": False}, "padding ends the text": {"pad_token_id": 5},
    "an encoder": {"kind": "bert", "template": None},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_batch_gives_what_each_text_gives_alone(case, tmp_path):
    folder = saved(tmp_path, **CASES[case])
    alone = [float(by_hand(folder, completion)[0]) for completion in REPLIES]
    assert max(alone) - min(alone) > 0.03  # or it would say nothing
    for size in (1, 3, 16):
        assert scores(reward_model(folder, batch_size=size)) == pytest.approx(alone, abs=1e-5)


def test_bfloat16(folder):
    exact, coarse = scores(reward_model(folder)), scores(reward_model(folder, dtype="bfloat16"))
    assert coarse == pytest.approx(exact, abs=0.05) and coarse != exact


def test_a_conversation_and_a_completion_that_the_prompt_began(folder):
    model = reward_model(folder)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    begun = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "ab"}]
    assert len({*model([turns, "c"], ["d", "d"])}) == 2
    assert model([begun], ["cabcabc"]) == scores(model, ["abcabcabc"])
    assert conversation_of("p", "r") == [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]


@pytest.mark.parametrize(("output", "function"), [("logit", lambda x: x), ("probability", lambda x: x.softmax(-1))])
def test_several_labels(output, function, tmp_path):
    names = {0: "rude", 1: "kind", 2: "odd"}
    folder = saved(tmp_path, labels=3, id2label=names, label2id={name: i for i, name in names.items()})
    expected = [float(function(by_hand(folder, completion))[1]) for completion in REPLIES]
    for label in ("kind", "1"):
        assert scores(reward_model(folder, label=label, output=output)) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match=r"it has 3 labels .rude, kind, odd.: say by reward_model.label"):
        reward_model(folder)
    with pytest.raises(ValueError, match=r"reward_model.label = 'nice': the classifier's labels are rude, kind, odd"):
        reward_model(folder, label="nice")


def test_the_probability_of_one_label(folder):
    expected = [float(by_hand(folder, completion).sigmoid()[0]) for completion in REPLIES]
    assert scores(reward_model(folder, output="probability")) == pytest.approx(expected, abs=1e-5)


def test_what_is_too_long(folder):
    long = "b" * 60 + "a" * 60
    model = reward_model(folder)
    (none, one) = scores(model, [long, "a"])
    assert none is None and one is not None
    with pytest.warns(UserWarning, match="1 completions, with their prompts, are longer than 64 tokens"):
        assert model.counts() == {"too_long": 1}
    assert model.counts() == {"too_long": 0}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(conversation_of("why?", long), tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    judge = AutoModelForSequenceClassification.from_pretrained(folder)
    for side, left_over in (("left", ids[-20:]), ("right", ids[:20])):
        with torch.inference_mode():
            expected = float(judge(torch.tensor([left_over])).logits)
        assert scores(reward_model(folder, too_long=side, max_length=20), [long]) == pytest.approx([expected], abs=1e-5)


def test_a_language_model_is_refused(tmp_path):
    tiny_run.model().save(tmp_path)
    with pytest.raises(ValueError, match=r"it has 2 labels .* if it is no classifier but a language model"):
        reward_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}))
    with pytest.raises(ValueError, match=r"score.weight is not among its weights and would be random.*Qwen3MoeForCausalLM"):
        reward_model(tmp_path).wait()


def test_a_head_of_another_size_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    two = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config | two))
    with pytest.raises(ValueError, match=r"reward_model.path = "):
        reward_model(tmp_path, label="b").wait()


def test_scores_that_are_no_numbers_cost_their_completions(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    number = AutoTokenizer.from_pretrained(folder)("z", add_special_tokens=False)["input_ids"][0]
    weights["model.embed_tokens.weight"][number] = math.nan
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with Rewards(RewardConfig(), TaskConfig(), [reward_model(tmp_path)]) as rewards:
        scored = rewards.score([rollout(completion) for completion in ("a", "zz", "b")])
    assert [r.reward is None for r in scored] == [False, True, False]
    assert scored[1].error == "model: returned nan, which is not a finite number"


def test_a_text_that_the_tokenizer_refuses_costs_its_completion(folder):
    warned = pytest.warns(UserWarning, match="reward model: a call for 3 completions failed")
    with Rewards(RewardConfig(), TaskConfig(), [reward_model(folder)]) as rewards, warned:
        scored = rewards.score([rollout(completion) for completion in ("a", "é", "b")])
    assert [r.reward is None for r in scored] == [False, True, False]


def test_thinking_is_not_scored(folder):
    model = reward_model(folder)
    with Rewards(RewardConfig(), TaskConfig(), [model]) as rewards:
        scored = rewards.score([rollout(completion, prompt="why?") for completion in ("abc</think>a", "a")])
    assert [r.reward for r in scored] == pytest.approx(scores(model, ["a"]) * 2, abs=1e-6)


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
        ({"detail": "?"}, "its response is not that of vLLM's /classify"),
        (classify([1.0, 2.0]), "the classifier has 2 labels: give the number of one as reward_model.label"),
    ],
)
def test_a_server_that_says_something_else(answer, reason):
    with listening(lambda body: answer) as endpoint:
        model = RewardModel(path="m", url=endpoint.root, retries=0)
        with pytest.raises(ValueError, match=f"reward_model.url = .*{reason}"):
            model.wait()
        assert scores(model, ["a"]) == [None]
        with pytest.warns(UserWarning, match=f"reward model: no opinion 1 times: {reason}"):
            assert model.counts()["failed"] == 1
        model.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "reward_model.path is required"),
        ({"path": "/no/such/folder"}, "reward_model.path = '/no/such/folder'"),
        ({"path": "m", "timeout": 5.0}, "reward_model.timeout is for a server: set reward_model.url"),
        ({"path": "m", "url": "http://h", "dtype": "bfloat16"}, "reward_model.dtype is of no use to a server"),
        ({"path": "m", "url": "http://h", "label": "kind"}, "a server's labels go by their number"),
        ({"path": "m", "url": "http://h", "max_length": 5}, "give both, or neither"),
        ({"path": "m", "url": "nowhere"}, "'nowhere' is no address"),
        ({"path": "m", "output": "rank"}, "reward_model.output = 'rank'"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(ValueError, match=message):
        RewardModel(**fields)
