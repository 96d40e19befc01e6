import copy
import re

import pytest
import torch

from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.stopping import Ends, StopStrings, cut, decode, left_out, stops_by_kind
from gspo.types import Sampling
from tests.backends.hf.families import TOKENIZER, prompts, tiny


@pytest.mark.parametrize("stop", [("e",), ("bc", "ev"), ("a", "\n"), ("dd7", "x", "en"), ("od",)])
def test_stop_strings(stop):
    model, asked = tiny("qwen3_moe"), prompts(4, 11)
    free = HFSampler(model).generate(asked, 20, Sampling(max_new_tokens=25, seed=2))
    stopped = HFSampler(model).generate(asked, 20, Sampling(max_new_tokens=25, seed=2, stop=stop))
    assert any(r.stop == "stop" for r in stopped)
    for a, b in zip(free, stopped):
        start = len(a.prompt.tokens)
        texts = [TOKENIZER.decode(a.tokens[start : start + k], skip_special_tokens=True) for k in range(1, 26)]
        want = next((k for k, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
        assert b.stop == ("length" if want is None else "stop")
        assert b.tokens.tolist() == a.tokens[: start + (want or 25)].tolist()  # as sampled, up to there
        if want:
            assert any(b.text.endswith(s) for s in stop) and texts[want - 1].startswith(b.text)
            assert not any(s in b.text[:-1] for s in stop)


def test_stop_string_that_is_a_special_token():
    model, asked = tiny("qwen3_moe"), prompts(4, 11)
    by_id = HFSampler(model).generate(asked, 30, Sampling(max_new_tokens=25, stop_ids=(1,)))
    by_text = HFSampler(model).generate(asked, 30, Sampling(max_new_tokens=25, stop=("<eos>",)))
    assert any(r.stop == "eos" for r in by_id)
    for a, b in zip(by_id, by_text):
        assert torch.equal(a.tokens, b.tokens) and a.text == b.text
        assert (a.stop, b.stop) in {("eos", "stop"), ("length", "length")}


@pytest.mark.parametrize("stop", ["<eos>\n", "a<eos>", "<pad><eos>"])
def test_a_special_token_beside_text_is_refused(stop):
    """Special tokens are no text: it would never be found."""
    with pytest.raises(ValueError, match=r"rollout\.stop.*has the special token '<...>' and more.*stop at '<...>' alone"):
        HFSampler(tiny("llama")).generate(prompts(1), 1, Sampling(max_new_tokens=4, stop=("a", stop)))


def ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def test_a_stop_string_that_two_looks_share():
    found = StopStrings(TOKENIZER, ["odd", "xyz"])
    assert found.add(ids("x")) is None and found.add(ids("y")) is None
    assert found.add(ids("zz")) == 3


def test_where_each_row_ends_by_hand():
    sampling = Sampling(max_new_tokens=6, stop_ids=(1,), stop=("q",))
    ends = Ends(TOKENIZER, sampling, 4, torch.device("cpu"))
    rows = torch.tensor([[*ids("a"), 1, *ids("aaaa")], ids("aaqaaa"), ids("aaaaaa"), [*ids("aaaaa"), 1]])
    for t in range(6):
        ends.look(rows.T, t)
    assert (ends.length, ends.stop) == ([2, 3, 6, 6], ["eos", "stop", "length", "eos"]) and ends.count == 4


def test_the_cache_is_moved_for_an_eighth_of_its_rows():
    ends = Ends(TOKENIZER, Sampling(max_new_tokens=6), 10, torch.device("cpu"))
    assert ends.worth_dropping(range(10)) is None
    ends.length[3] = 2
    assert ends.worth_dropping(range(10)) is None
    ends.length[7] = 2
    assert ends.worth_dropping(range(10)) == [0, 1, 2, 4, 5, 6, 8, 9]


def test_a_text_is_cut_at_the_first_stop_string():
    assert cut("one two three", ["three", "two"]) == "one two" and cut("one", ["two"]) == "one"


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_tags_that_are_special_tokens_are_text_and_those_of_roles_are_not():
    tokenizer = copy.deepcopy(TOKENIZER)
    names = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<answer>", "</answer>", "[TOOL]"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    text = "<|im_start|>a<|im_end|></think>b<answer>c</answer>[TOOL]<eos><pad>"
    pieces = re.findall(r"<[^>]*>|\[TOOL\]|.", text)
    sampled = [ids(piece)[0] if len(piece) == 1 else tokenizer.convert_tokens_to_ids(piece) for piece in pieces]
    templates = {None: 1, TEMPLATE: 0, TEMPLATE.replace("{{ m.content }}", "<think></think>{{ m.content }}"): 0,
                 "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE: 0}  # fmt: skip
    for template, roles in templates.items():
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = template
        read = text.removesuffix("<eos><pad>")
        for name in names[:2] if not roles else ():
            read = read.replace(name, "")
        for keep, want in ((False, read), (True, text)):
            sampling = Sampling(1, stop_ids=(tokenizer.eos_token_id,), keep_special_tokens=keep)
            assert decode(tokenizer, sampled, left_out(tokenizer, sampling)) == want
    stop = Sampling(1, stop=("</answer>", "</answer>\n", "[TOOL]x"))
    assert stops_by_kind(tokenizer, stop) == ([tokenizer.convert_tokens_to_ids("</answer>")], ["</answer>\n", "[TOOL]x"])
    with pytest.raises(ValueError, match=r"'<\|im_end\|>a' has the special token '<\|im_end\|>' and more"):
        stops_by_kind(tokenizer, Sampling(1, stop=("<|im_end|>a",)))
