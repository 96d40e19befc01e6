import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gspo.rewards.reward_model import conversation_of
from gspo.runs import machine
from tests import tiny_run
from tests.logged import logs
from tests.rewards.classifiers import REPLIES, reward_model, saved, scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def by_hand(folder, completion, prompt="why?", **how):
    """As a model's card shows: one text, no batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, **how)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    if tokenizer.chat_template:
        made = tokenizer(
            tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False, return_tensors="pt"
        )
    else:
        made = tokenizer(prompt, completion, return_tensors="pt")
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in tokenizer.model_input_names]
    with torch.inference_mode():
        return model(**{name: made[name] for name in names}).logits[0].float()


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


def test_bfloat16(folder, monkeypatch):
    monkeypatch.setattr(machine, "slowdown", {torch.bfloat16: 9.3}.get)
    exact = scores(reward_model(folder))
    with logs('reward_model.dtype = "bfloat16": .* 9.3 times as long .*: set "float32"'):
        coarse = scores(reward_model(folder, dtype="bfloat16"))
    assert coarse == pytest.approx(exact, abs=0.05) and coarse != exact


def test_several_labels(tmp_path):
    names = {0: "rude", 1: "kind", 2: "odd"}
    folder = saved(tmp_path, labels=3, id2label=names, label2id={name: i for i, name in names.items()})
    logits = [by_hand(folder, completion) for completion in REPLIES]
    for label, output, function in (("kind", "logit", lambda x: x), ("1", "probability", lambda x: x.softmax(-1))):
        expected = [float(function(each)[1]) for each in logits]
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
    with logs(match="1 completions, with their prompts, are longer than 64 tokens"):
        assert model.counts() == {"too_long": 1}
    assert model.counts() == {"too_long": 0}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(conversation_of("why?", long), tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    judge = AutoModelForSequenceClassification.from_pretrained(folder)
    for side, kept in (("left", ids[-20:]), ("right", ids[:20])):
        with torch.inference_mode():
            expected = float(judge(torch.tensor([kept])).logits)
        assert scores(reward_model(folder, too_long=side, max_length=20), [long]) == pytest.approx([expected], abs=1e-5)


def test_what_is_too_long_for_a_model_whose_positions_begin_after_the_padding(tmp_path):
    """RoBERTa with 64 positions and padding token 0 reads 63 tokens."""
    folder = saved(tmp_path, kind="roberta", template=None)
    for side in ("left", "right"):
        assert None not in scores(reward_model(folder, too_long=side), ["b" * 200])
    found = scores(reward_model(folder), ["b" * length for length in range(50, 70)])
    fits = found.index(None)
    assert None not in found[:fits] and found[fits:] == [None] * (20 - fits) and 0 < fits < 20


def test_a_language_model_is_refused(tmp_path):
    tiny_run.model().save(tmp_path)
    with pytest.raises(ValueError, match=r"it has 2 labels .* if it is no classifier but a language model"):
        reward_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}))
    with pytest.raises(ValueError, match=r"score.weight is not among its weights and would be random.*Qwen3MoeForCausalLM"):
        reward_model(tmp_path).wait()
