import asyncio
import copy
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gspo.agents.chat import Chat, TurnOptions, _warn_unseen
from gspo.agents.environment import ToolEnvironment
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.runs.log import recorded
from gspo.types import Rollout
from tests.agents.talking import CHATML, TOOLS, Job, chat, read, tokenizer
from tests.agents.tool_templates import BARE, FAMILIES, SILENT, written
from tests.agents.tools import ASK, MORE


class Says:
    """A completer with a script: texts, and whether each ends with EOS; in the tokenizer's own tokens or one a character."""

    version, still = 1, nullcontext()

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


def continues(second, first):
    """Whether a turn was sampled after the very tokens of another."""
    before = first.rollout.tokens.tolist()
    return list(second.rollout.prompt.tokens[: len(before)]) == before


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
    assert continues(second, first)
    after = talk.decode(list(second.rollout.prompt.tokens[len(first.rollout.tokens) :]))
    text = talk.encoded(second.rollout.prompt.messages, TOOLS).text
    assert text.endswith("<|im_end|>" + after) and after.count("go on") == 1


@pytest.mark.parametrize("template", ["chatml", "headers"])
def test_a_turn_that_was_cut_off_after_its_call_is_read_again_too(template):
    """With the template's end of a turn, which was not sampled; also if no token ends completions."""
    said = CALL if template == "chatml" else '[TOOL_CALLS][{"name": "lookup"}]'
    talk = chat(template, completer=Says(template, *[(f"{said}\n", "length"), ("done", "eos")] * 2, spelled=True))
    ends, talk.sampling = talk.sampling, replace(talk.sampling, stop_ids=())
    (first,) = turns(talk, ASK, tools=TOOLS)
    (second,) = turns(talk, [*ASK, first.message, {"role": "tool", "content": "go on"}], tools=TOOLS)
    assert continues(second, first)
    talk.sampling = ends
    (first,) = turns(talk, ASK, tools=TOOLS)
    (second,) = turns(talk, [*ASK, first.message, {"role": "tool", "content": "go on"}], tools=TOOLS)
    after = talk.decode(list(second.rollout.prompt.tokens[len(first.rollout.tokens) :]))
    assert first.message["tool_calls"] and continues(second, first) and after.startswith("<|im_end|>")


def two_turns(first, *, history=ASK, ended="eos", following=(MORE,)):
    """A turn, the next, which reads it after this history, and what both read."""
    talk = chat("chatml", completer=Says("chatml", (first, ended), ("done", "eos")))
    (one,) = turns(talk, ASK)
    (two,) = turns(talk, [*history, one.message, *following])
    return one, two, read(talk, one), read(talk, two)


def test_an_answer_that_was_cut_off_is_closed_by_the_template():
    first, second, before, after = two_turns("two pe", ended="length")
    assert continues(second, first) and after.startswith(f"{before}two pe<|im_end|>\n")


def test_what_is_read_again_in_other_words():
    """Thinking that the template leaves out, an unfinished turn, and a history that was edited."""
    *_, after = two_turns("<think>hm</think>\n\npears")
    assert "<think>" not in after and "assistant\npears<|im_end|>" in after
    *_, before, after = two_turns("two", ended="length", following=())
    assert after == before + "two"
    *_, after = two_turns("two pears", history=[{"role": "user", "content": "what is in the bag"}])
    assert "what is in the bag" in after and "box" not in after


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
        assert continues(second, first)


def test_the_schema_of_a_tool_says_what_an_argument_in_tags_is():
    said = "<tool_call><function=lookup><parameter=key>42</parameter><parameter=n>42</parameter></function></tool_call>"
    talk = chat("chatml", completer=Says("chatml", (said, "eos")))
    encoder = Encoder(copy.copy(talk.encoder.tokenizer), TaskConfig())
    encoder.tokenizer.chat_template += "{# <function= #}"
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
    assert first.message["content"] == "a " and first.words == "a END b" and first.id != second.id


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


def talking(template, *script):
    """A Chat with this template."""
    talk = chat("chatml", completer=Says("chatml", *((said, "eos") for said in script), spelled=True))
    encoder = Encoder(copy.copy(talk.encoder.tokenizer), TaskConfig())
    encoder.tokenizer.chat_template = encoder.template = template
    return Chat(talk.completer, encoder, talk.sampling, 4096)


def conversation(talk, count, tools=TOOLS):
    """This many turns, each with its tool results or a user's message after it."""
    messages, found = [*ASK], []
    for _ in range(count):
        found += turns(talk, messages, tools=tools)
        told = [
            {"role": "tool", "tool_call_id": call["id"], "content": "42 pears"}
            for call in found[-1].message.get("tool_calls", ())
        ]
        messages = [*messages, found[-1].message, *(told or [MORE])]
    return found


@pytest.mark.parametrize("family", [*FAMILIES, *BARE, *SILENT])
def test_further_turns(family):
    """Each continues the tokens of the one before, whatever the template refuses, or words otherwise in earlier turns."""
    said, template = written(
        {"smollm3": "qwen3", "the first lfm2": "lfm2"}.get(family, family), "", [("lookup", {"key": "é"})]
    )
    talk = talking(SILENT.get(family, template), said, said, "done", "done")
    found = conversation(talk, 4)
    assert [len(turn.message.get("tool_calls", ())) for turn in found] == [1, 1, 0, 0] and not talk.malformed
    assert all(map(continues, found[1:], found)) and read(talk, found[-1]).count("42 pears") == 2


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen3", "<tool_call>{oops</tool_call>"), ("mistral", "[TOOL_CALLS][{oops]"),
        ("gemma 4", "<|tool_call>oops<tool_call|>"), ("kimi k2", "<|tool_call_begin|>f:0<|tool_call_end|>"),
        ("gpt-oss", "<|channel|>commentary to=functions.lookup<|message|>{oops"),
    ],
)  # fmt: skip
def test_a_malformed_call_is_reported_in_a_message_that_templates_read(family, said):
    talk = talking(FAMILIES[family], said, "done")
    (bad,) = turns(talk, ASK, tools=TOOLS)
    told = asyncio.run(ToolEnvironment({}).step(bad.message)).messages
    (after,) = turns(talk, [*ASK, bad.message, *told], tools=TOOLS)
    assert "error: no call could be read" in read(talk, after)


def test_a_malformed_call_leaves_the_thoughts_before_it_where_the_template_can():
    """The template leaves out the thoughts before a user's message."""
    talk = talking(CHATML, "<think>hm</think>\n\n<tool_call>{oops</tool_call>", "done")
    (bad,) = turns(talk, ASK, tools=TOOLS)
    told = asyncio.run(ToolEnvironment({}).step(bad.message)).messages
    (after,) = turns(talk, [*ASK, bad.message, *told], tools=TOOLS)
    assert continues(after, bad)


def test_a_turn_is_continued_whatever_form_its_prompt_is_sent_in():
    talk = talking(CHATML, CALL, "two", "done")
    asked = [{"role": "system", "content": "short"}, *ASK]
    (called,) = turns(talk, asked, tools=TOOLS)
    (call,) = called.message["tool_calls"]
    told = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    (second,) = turns(talk, [*asked, called.message, told], tools=TOOLS)
    function = call["function"] | {"arguments": '{"key":"\\u00e9"}'}
    parts = [{"type": "text", "text": ASK[0]["content"], "cache_control": {"type": "ephemeral"}}]
    for i, other in (
        (0, {"role": "developer", "content": "short"}), (1, {"role": "user", "content": parts}),
        (1, ASK[0] | {"name": None}), (2, called.message | {"tool_calls": [call | {"function": function}]}),
        (2, called.message | {"content": None}),
    ):  # fmt: skip
        history = [*asked, called.message, told]
        history[i] = other
        tokens = talk.encoded([*history, second.message, MORE], TOOLS).tokens
        assert list(tokens[: len(second.rollout.tokens)]) == second.rollout.tokens.tolist(), other


def test_a_turn_is_not_continued_where_its_prompt_has_changed():
    """In what the hash of a conversation leaves out."""
    template = CHATML.replace("user\n' +", "user\n' + (message.name or '') +")
    talk = talking(template, "pears", "done", "done")
    (first,) = turns(talk, ASK)
    for asked, tools, shown in ((ASK, TOOLS, "lookup"), ([ASK[0] | {"name": "Ann"}], (), "Ann")):
        (after,) = turns(talk, [*asked, first.message, MORE], tools=tools)
        assert not continues(after, first) and shown in read(talk, after)


def test_a_turn_of_gpt_oss_in_its_channels():
    thought, final = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", "<|channel|>final<|message|>two"
    call = "<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{}"
    talk = talking(FAMILIES["gpt-oss"], thought + call, thought + final, thought + call[:-1], "done")
    called, answered, malformed, _ = conversation(talk, 4)
    assert called.message | {"tool_calls": 0} == {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": 0}
    assert answered.message == {"role": "assistant", "content": "two", "thinking": "hm"} and continues(answered, called)
    assert malformed.message["malformed"] and (malformed.message["content"], malformed.message["thinking"]) == ("", "hm")
    (plain,) = turns(talking(FAMILIES["gpt-oss"], thought + final), ASK)
    assert plain.message["content"] == "two"  # without tools too


def test_a_template_that_begins_thinking_reads_it_from_its_beginning():
    """In a history that was edited, too, and where a later message has the template leave it out."""
    talk = talking(CHATML + OPENS, f"hm</think>\n\n{CALL}", "so</think>\n\ntwo", "x</think>y", "x</think>y")
    first, second, third = conversation(talk, 3)
    assert continues(second, first) and "<think>" not in read(talk, third)[: -len("<think>\n")]
    (edited,) = turns(talk, [{"role": "user", "content": "?"}, *second.rollout.prompt.messages[1:]], tools=TOOLS)
    assert "assistant\n<think>\nhm</think>\n<tool_call>" in read(talk, edited)


@pytest.mark.parametrize(
    ("family", "said", "ids"),
    [
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefgh9"}]', ["abcdefgh9"]),
        ("mistral small 3.2", "[TOOL_CALLS]f[CALL_ID]abcdefgh9[ARGS]{}", ["abcdefgh9"]),
        ("kimi k2", "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|tool_call_end|>", ["functions.f:7"]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f"}]', None),
        ("mistral", '[TOOL_CALLS][{"name": "f", "id": "abcdefgh9"}, {"name": "f", "id": "abcdefgh9"}]', None),
        ("qwen3", '<tool_call>{"name": "f", "arguments": {"id": "abcdefgh9"}}</tool_call>', None),
        ("qwen3", '<tool_call>{"name": "f", "arguments": {}}</tool_call>[TOOL_CALLS][1]', None),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"id": "abcdefgh9"}}]', None),
        ("mistral small 3.2", '[TOOL_CALLS]f[ARGS]{"id": "abcdefgh9", "a": "[CALL_ID]abcdefgh9"}', None),
    ],
)
def test_ids_of_calls(family, said, ids):
    """Those that the model wrote; else nine characters, other ones for each turn, and the same in each run."""
    made = []
    for name in "aab":
        (turn,) = asyncio.run(talking(FAMILIES[family], said).turn(ASK, TOOLS, id=name))
        made.append([call["id"] for call in turn.message["tool_calls"]])
    assert made[0] == made[1] and len(set(made[0])) == len(made[0])
    assert made[0] == made[2] == ids if ids else made[0] != made[2] and {len(id) for id in made[0]} == {9}


def test_turns_in_the_same_words_are_told_apart_by_the_ids_of_their_calls():
    call = "<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{}"
    said = [f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant{call}" for thought in ("one", "two")]
    talk = talking(FAMILIES["gpt-oss"], *said, "done")
    first, second = turns(talk, ASK, ASK, tools=TOOLS)
    told = {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "42"}
    (after,) = turns(talk, [*ASK, first.message, told], tools=TOOLS)
    assert continues(after, first) and not continues(after, second)


@pytest.mark.parametrize(("template", "times"), [(CHATML.replace("tool | tojson", "''"), 1), (CHATML, 0)])
def test_tools_that_a_template_does_not_show_are_warned_of_once(template, times):
    told = []
    _warn_unseen.cache_clear()
    with recorded(lambda record: told.append(record.getMessage())):
        conversation(talking(template, CALL, CALL, "done"), 3)
        conversation(talking(template, "done"), 1)
    assert ["does not show the tools lookup: a model that was not trained" in one for one in told] == [True] * times


def test_a_template_of_its_own_for_tools():
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    talk = talking({"default": plain, "tool_use": CHATML}, CALL, "done")
    encoder = Encoder(talk.encoder.tokenizer, TaskConfig())
    talk = Chat(talk.completer, encoder, talk.sampling, 4096)
    assert conversation(talk, 2)[0].message["tool_calls"]
