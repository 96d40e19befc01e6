import asyncio
import copy
import json

import pytest
import torch

from gspo.agents.chat import Chat, TurnOptions
from gspo.agents.tool_calls import UnknownConvention
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.types import Rollout
from tests.agents.talking import TOOLS, Job, chat, tokenizer
from tests.agents.tools import ASK, MORE


class Says:
    """A completer with a script: texts, and whether each ends with EOS; in the tokenizer's own tokens or one a character."""

    version = 1

    def __init__(self, template, *script, spelled=False):
        self.tokenizer, self.script, self.spelled, self.asked = tokenizer(template), list(script), spelled, []

    def begin(self, so_far, seed, sampling):
        text, stop = self.script.pop(0)
        parts = text if self.spelled else [text]
        ids = [t for part in parts for t in self.tokenizer(part, add_special_tokens=False)["input_ids"]]
        ids += [self.tokenizer.eos_token_id] * (stop == "eos")
        size = len(so_far.prompt.tokens) + len(ids)
        sampled = torch.arange(size) >= len(so_far.prompt.tokens)
        rollout = Rollout(
            so_far.prompt, torch.tensor([*so_far.prompt.tokens, *ids]), sampled, -sampled.float(),
            torch.where(sampled, 1, -1), stop,
        )  # fmt: skip
        self.asked.append((seed, sampling))
        return Job(rollout)


def turns(talk, *requests, tools=()):
    return [asyncio.run(talk.turn(messages, tools))[0] for messages in requests]


CALL = '<tool_call>\n{"arguments": {"key":  "é"}, "name":"lookup"}\n</tool_call>'


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize(
    ("template", "said"),
    [("chatml", "two pears"), ("chatml", CALL), ("headers", "two pears"), ("headers", '[TOOL_CALLS][{"name": "lookup"}]')],
)
def test_an_answer_is_read_again_as_the_tokens_that_were_sampled(template, said, spelled):
    talk = chat(template, completer=Says(template, (said, "eos"), ("done", "eos"), spelled=spelled))
    (first,) = turns(talk, ASK, tools=TOOLS)
    following = {"role": "tool" if first.message.get("tool_calls") else "user", "content": "go on"}
    (second,) = turns(talk, [*ASK, first.message, following], tools=TOOLS)
    before = first.rollout.tokens.tolist()
    assert list(second.rollout.prompt.tokens[: len(before)]) == before and second.prompt_text.startswith(first.text)
    if not spelled:  # what stands between the turns is read to the letter
        assert talk.encoder.tokenizer.decode(second.rollout.prompt.tokens) == second.prompt_text


def two_turns(first, *, history=ASK, ended="eos", following=(MORE,)):
    """A turn, and the next, which reads it after this history."""
    talk = chat("chatml", completer=Says("chatml", (first, ended), ("done", "eos")))
    (one,) = turns(talk, ASK)
    (two,) = turns(talk, [*history, one.message, *following])
    return one, two


def test_an_answer_that_was_cut_off_is_closed_by_the_template():
    first, second = two_turns("two pe", ended="length")
    assert list(second.rollout.prompt.tokens[: len(first.rollout.tokens)]) == first.rollout.tokens.tolist()
    assert second.prompt_text[len(first.text) :].startswith("<|im_end|>\n")


def test_what_is_read_again_in_other_words():
    """Thinking that the template leaves out, an unfinished turn, and a history that was edited."""
    _, second = two_turns("<think>hm</think>\n\npears")
    assert "<think>" not in second.prompt_text and "assistant\npears<|im_end|>" in second.prompt_text
    first, second = two_turns("two", ended="length", following=())
    assert second.prompt_text == first.prompt_text + "two"
    _, second = two_turns("two pears", history=[{"role": "user", "content": "what is in the bag"}])
    assert "what is in the bag" in second.prompt_text and "box" not in second.prompt_text


def test_tool_calls_become_messages_and_malformed_ones_stay_text():
    deep = '<tool_call>{"name": "lookup", "arguments": ' + "[" * 2000 + "</tool_call>"  # more than Python can parse
    said = f"so\n{CALL}", "<tool_call>{oops", deep, CALL
    talk = chat("chatml", completer=Says("chatml", *((one, "eos") for one in said)))
    good, bad, nested = turns(talk, ASK, ASK, ASK, tools=TOOLS)
    (call,) = good.message["tool_calls"]
    assert good.message["content"] == "so" and call["function"]["name"] == "lookup"
    assert json.loads(call["function"]["arguments"]) == {"key": "é"}
    assert bad.message["content"] == "<tool_call>{oops" and "never closed" in bad.message["malformed"]
    assert "tool_calls" not in nested.message and nested.message["malformed"] and talk.malformed == 2
    assert turns(talk, ASK)[0].message["content"] == CALL  # nobody offered a tool


OPENS = "{%- if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
THOUGHT = f"I could {CALL} but"


@pytest.mark.parametrize(
    ("said", "more", "begun", "words"),
    [
        (f"{THOUGHT} no.</think>5", OPENS, "", None),
        (f"{THOUGHT} now:</think>\n\nso {CALL}", OPENS, "", f"{THOUGHT} now:</think>\n\nso"),
        (f"{THOUGHT} </think>is none", OPENS, "", None),
        (THOUGHT, OPENS, "", None),
        (CALL, OPENS, "", None),
        (f"<think>{THOUGHT} no.</think>5", "", "", None),
        (f"<think>{THOUGHT} now:</think>\n\nso\n{CALL}", "", "", f"<think>{THOUGHT} now:</think>\n\nso"),
        ("<think>The <tool_call> tag.</think>5", "", "", None),
        (CALL, "", "<think>so", None),
        (CALL, "", "<think>so</think>", ""),
    ],
)
def test_a_call_in_thinking_is_none(said, more, begun, words):
    """more: of the template; begun: of the turn; words: beside its call, None without one."""
    talk = chat("chatml", completer=Says("chatml", (said, "eos"), ("done", "eos")))
    encoder = Encoder(copy.copy(talk.encoder.tokenizer), TaskConfig())
    encoder.tokenizer.chat_template = encoder.template = encoder.template + more
    talk = Chat(talk.completer, encoder, talk.sampling, 4096)
    (first,) = turns(talk, [*ASK, {"role": "assistant", "content": begun}] if begun else ASK, tools=TOOLS)
    assert ("tool_calls" in first.message) == (words is not None) and not talk.malformed
    assert first.message["content"] == (said if words is None else words)
    if not more and not begun:  # the same tokens are read again, thoughts and all
        (second,) = turns(talk, [*ASK, first.message, {"role": "tool", "content": "go on"}], tools=TOOLS)
        assert second.prompt_text.startswith(first.text)


def test_the_schema_of_a_tool_says_what_an_argument_in_tags_is():
    said = "<tool_call><function=lookup><parameter=key>42</parameter><parameter=n>42</parameter></function></tool_call>"
    talk = chat("chatml", completer=Says("chatml", (said, "eos")))
    encoder = Encoder(copy.copy(talk.encoder.tokenizer), TaskConfig())
    encoder.template += "{# <function= #}"
    parameters = {"type": "object", "properties": {"key": {"type": "string"}, "n": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": parameters}}]
    (turn,) = turns(Chat(talk.completer, encoder, talk.sampling, 4096), ASK, tools=tools)
    (call,) = turn.message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"key": "42", "n": 42}


def test_how_it_was_sampled_decides_whether_it_may_be_trained_on():
    talk = chat("chatml", completer=Says("chatml", *[("a", "eos")] * 4))
    for options, untrainable in (
        (TurnOptions(), ""),
        (TurnOptions(temperature=1.0), ""),
        (TurnOptions(temperature=0.5), "temperature 0.5"),
        (TurnOptions(top_p=0.9), "top_p"),
    ):
        (call,) = asyncio.run(talk.turn(ASK, options=options))
        assert (untrainable in call.untrainable) if untrainable else not call.untrainable


def test_seeds_stops_and_lengths_reach_the_sampler():
    talk = chat("chatml", completer=Says("chatml", *[("a END b", "stop")] * 3))
    first, second = asyncio.run(talk.turn(ASK, options=TurnOptions(max_tokens=7, stop=("END",), seed=5), n=2))
    (again,) = asyncio.run(talk.turn(ASK, options=TurnOptions(seed=5)))
    seeds, samplings = zip(*talk.completer.asked)
    assert seeds[0] != seeds[1] and seeds[0] == seeds[2]
    assert samplings[0].max_new_tokens == 7 and samplings[0].stop == ("END",)
    assert first.message["content"] == "a " and first.sampled_text == "a END b" and first.id != second.id


def test_bad_messages():
    for messages, why in (
        ([], "at least one"),
        ([{"content": "x"}], "no role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "no text"),
        ([{"role": "user", "content": "x", "images": ["a.png"]}], "a message has 'images', which is no text"),
        ([{"role": "user", "content": "x " * 5000}], "reads at most 4096"),
    ):
        with pytest.raises(ValueError, match=why):
            asyncio.run(chat().turn(messages))
    talk = chat()
    talk.encoder.template = None
    with pytest.raises(ValueError, match="no chat template"):
        asyncio.run(talk.turn(ASK))


def test_tools_of_a_template_that_is_not_understood_are_refused_before_anything_is_sampled():
    talk = chat("chatml", completer=Says("chatml", ("done", "eos")))
    encoder = Encoder(copy.copy(talk.encoder.tokenizer), TaskConfig())
    encoder.template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    encoder.tokenizer.name_or_path = "some/model"
    other = Chat(talk.completer, encoder, talk.sampling, 4096)
    with pytest.raises(UnknownConvention, match=r"tools: the chat template of 'some/model' .* not known.*<tool_call>"):
        turns(other, ASK, tools=TOOLS)
    assert not talk.completer.asked
    assert turns(other, ASK)[0].message["content"] == "done"  # without tools it talks
