import datetime
import re

import pytest

from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder, arguments_of, writes_date
from tests.data.tools import TEMPLATE, characters, text


def encoded(prompt, tokenizer, **task):
    return text(tokenizer, Encoder(tokenizer, TaskConfig(**task)).prompt(prompt)[0])


PARTS = """{% for m in messages %}[{{ m['role'] }}]{% for part in m['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %};
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
"""As of models that read images: a plain text shows nothing here."""
USER_ALONE = "{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }};{% endif %}{% endfor %}[assistant]"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEMPLATE
ALTERNATES = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
ALTERNATES += "{% endif %}[{{ m.role }}]{{ m.content | trim }};{% endfor %}"
LATER = "{% for m in messages[1:] %}[{{ m.role }}]{{ m.content }};{% endfor %}"  # expects a system message
LAST = "{{ messages[-1].content }}"
THINKS = TEMPLATE.replace("[assistant]\n", "[assistant]<think>{{ '\\n' }}\n")
"""As of R1 and Qwen3-Thinking: the completion begins inside the tag."""
OWN = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


def test_a_string_becomes_a_user_message_after_the_system_message(subtests):
    no_thinking = {"system": "", "template_args": {"enable_thinking": False}}
    for prompt, task, expected in (
        ("hi", {}, "<s>[system]Tags.;[user]hi;[assistant]"),
        ("hi", {"system": "own"}, "<s>[system]own;[user]hi;[assistant]"),
        ("hi", {"system": ""}, "<s>[user]hi;[assistant]"),
        ("hi", no_thinking, "<s>[user]hi;[assistant]!"),
        ("hi", {"template": "none"}, "<s>hi"),
        ("end with <answer>", {}, "<s>[user]end with <answer>;[assistant]"),
        (OWN, {}, "<s>[system]s;[user]hi;[assistant]"),
    ):
        with subtests.test(expected):
            encoder = Encoder(characters(TEMPLATE), TaskConfig(**task), "Tags.")
            assert text(encoder.tokenizer, encoder.prompt(prompt)[0]) == expected
            assert encoder.defaulted == ("Tags." in expected)


def test_without_a_template_the_text_stands_as_it_is():
    assert encoded("a;b", characters()) == "<s>a;b"
    assert encoded("a", characters(TEMPLATE), template="none") == "<s>a"
    assert encoded("a", characters(), system="s") == "<s>s\n\na"
    assert encoded("<s>a", characters()) == "<s>a"  # no second BOS
    assert encoded("a", characters(eos_too=True)) == "<s>a"  # a completion is to follow
    assert encoded("a</s>", characters(eos_too=True)) == "<s>a</s></s>"
    assert encoded("a", characters(bos=False)) == "a"


def test_text_parts_are_text_whatever_the_template_reads():
    """A template for text writes a list as Python does, and one for images leaves a string out."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert encoded(parts, characters(TEMPLATE)) == "<s>[user]ab;[assistant]"
    assert encoded(parts, characters(PARTS)) == encoded("ab", characters(PARTS)) == "[user]ab;[assistant]"
    either = TEMPLATE.replace("m['content'] }}", "(m['content'] if m['content'] is string else m['content'][0].text) }}")
    assert encoded(parts, characters(either)) == "<s>[user]ab;[assistant]"
    assert encoded("ab", characters(either)) == "<s>[user]ab;[assistant]"


def test_prompts_that_end_inside_an_open_think(subtests):
    for template, prompt, thinking in (
        (THINKS, "hi", True),
        (THINKS, "end with </think>", True),
        (TEMPLATE, "hi", False),
        (TEMPLATE, "begin with <think>", False),  # an instruction, not the beginning of the completion
        (TEMPLATE, [{"role": "user", "content": "1"}, {"role": "assistant", "content": "<think>Well"}], True),
        (TEMPLATE, [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "Well"}], False),
        (TEMPLATE, [{"role": "user", "content": "1"}, {"role": "assistant", "content": "<think></think>"}], False),
        (None, "Q: 1+1 A: <think>", True),
        (None, "Between <think> and </think>. Q: 1+1 A:", False),
        (None, "Between <think> and </think>. Q: 1+1 A: <think>\n", True),
    ):
        with subtests.test(template=template, prompt=prompt):
            assert Encoder(characters(template), TaskConfig()).prompt(prompt)[1] is thinking


def test_completions_end_with_eos_once():
    tokenizer = characters()
    encoder = Encoder(tokenizer, TaskConfig())
    assert text(tokenizer, encoder.completion("ab")) == "ab</s>"
    assert text(tokenizer, encoder.completion("ab</s>")) == "ab</s>"
    assert text(tokenizer, encoder.completion("")) == "</s>"
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"no EOS token.*set tokenizer\.eos_token"):
        encoder.completion("ab")


def test_bad_prompts(subtests):
    user = {"role": "user", "content": "1"}
    for prompt, task, message in (
        ([user], {"template": "none"}, r"list of chat messages, but no chat template"),
        ([], {}, "an empty list of messages"),
        ([{"content": "1"}], {}, r"message 0 has no role: \{'content': '1'\}"),
        (["hello"], {}, "message 0 is 'hello'; expected"),
        (
            [user | {"content": [{"type": "text", "text": "1"}, {"type": "image", "image": "a.png"}]}],
            {},
            r"message 0 has a part that is no text, \{'type': 'image'.* text alone, whatever its model can read. Leave such",
        ),
        ([user | {"content": [{"video": "a.mp4"}]}], {}, "a part that is no text"),  # as Qwen's templates read it
        ([user | {"images": ["a.png"]}], {}, "message 0 has 'images', which is no text.* text alone"),
        ([user | {"x": {"bytes": b"x"}}], {}, "message 0 has 'x', which is no text"),
        ([user | {"content": [{"type": "text", "text": "1", "image": "a"}]}], {}, "a part with more than text"),
        ([user | {"content": {"text": "1"}}], {}, "has a dict for its content"),
        (7, {}, "is an int; expected a string or a list"),
        ([{"role": "tool", "content": "1"}], {}, "the chat template refuses it: no tools here"),
        ([{"role": "system", "content": "1"}], {"system": "2"}, "a system message of its own, and task.system"),
    ):
        with subtests.test(message), pytest.raises(ValueError, match=message):
            Encoder(characters(TEMPLATE), TaskConfig(**task)).prompt(prompt)


def test_template_arguments_without_effect_are_refused(subtests):
    for name, template, task, message in (
        ("x", None, {}, "has no effect, for the tokenizer has no chat template"),
        ("x", TEMPLATE, {"template": "none"}, "has no effect, for task.template is none"),
        ("enable_thinkin", TEMPLATE, {}, r"does not use it, did you mean enable_thinking\? \(it takes enable_thinking\)"),
        *((part, TEMPLATE, {}, r"does not use it: remove it \(it takes enable_t") for part in ("loop", "raise_exception")),
        ("messages", TEMPLATE, {}, "gspo gives it itself"),
    ):
        with subtests.test(name), pytest.raises(ValueError, match=rf"task\.template_args\.{name}: .*{message}"):
            Encoder(characters(template), TaskConfig(template_args={name: True}, **task))


def test_arguments_are_what_a_template_takes_from_outside():
    text = (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% generation %}{{ messages[0].content }}"
        "{% endgeneration %}{% macro f(a) %}{{ a }}{{ date }}{% endmacro %}{{ f(1) }}{% set own = 2 %}{{ own }}"
        "{% for m in messages %}{% if m.stop %}{% break %}{% endif %}{% endfor %}"
        "{{ raise_exception('no') }}{{ strftime_now('%d') }}{% set ns = namespace(n=range(2)) %}"
    )
    assert arguments_of(text) == {"thinking", "messages", "date"}
    with pytest.raises(ValueError, match="the chat template cannot be read"):
        arguments_of("{% for %}")


def test_a_system_message_that_the_template_takes_not_stands_in_the_first_user_message(subtests):
    turns = [{"role": "user", "content": [{"type": "text", "text": "1"}]}, {"role": "assistant", "content": "2"}]
    cases = [(USER_ALONE, "[user]{};[assistant]"), (REFUSES, "<s>[user]{};[assistant]"), (ALTERNATES, "[user]{};")]
    for template, expected in cases:
        for task, system in (({}, "Tags."), ({"system": "Be a pirate."}, "Be a pirate.")):
            with subtests.test(template=template, task=task):
                encoder = Encoder(characters(template), TaskConfig(**task), "Tags.")
                assert text(encoder.tokenizer, encoder.prompt("hi")[0]) == expected.format(f"{system}\n\nhi")
                assert not encoder.takes_system and encoder.defaulted == (not task)
    encoder = Encoder(characters(REFUSES), TaskConfig(system="s"))
    assert text(encoder.tokenizer, encoder.prompt(turns)[0]) == "<s>[user]s\n\n1;[assistant]2"
    assert Encoder(characters(TEMPLATE), TaskConfig()).takes_system and Encoder(characters(PARTS), TaskConfig()).takes_system
    with pytest.raises(ValueError, match=r"has no user message to put task\.system into"):
        encoder.prompt([{"role": "assistant", "content": "1"}])
    for written in ("m.content | upper", "m.content | escape"):
        encoder = Encoder(characters(TEMPLATE.replace("m['content']", written)), TaskConfig(system="s"))
        assert encoder.takes_system and encoder.prompt("hi")


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CALLS = """{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}
{%- for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments | tojson }}>{% endfor %};{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
ASKED = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
TOLD = {"role": "tool", "content": "2"}


def test_a_message_that_the_template_leaves_out_is_refused(subtests):
    user, system, other = ({"role": role, "content": "x"} for role in ("user", "system", "critic"))
    turn = {"role": "assistant", "content": "y"}
    cases = [
        (USER_ALONE, [system, user], "message 0 (role 'system')"), (USER_ALONE, [user, turn, user], "message 1 (role 'assi"),
        (USER_ALONE, [user, other, user], "message 1 (role 'critic')"), (LATER, [user, turn, user], "message 0 (role 'user"),
        (LATER, "hi", "message 0 (role 'user')"), (LAST, [user, turn, user], "message 0 (role 'user')"),
        (CALLS.replace("{{ c.function.arguments | tojson }}", ""), [*ASKED, TOLD], "the tool calls of message 1"),
        (CALLS.replace("m.tool_calls or []", "[]"), [*ASKED, TOLD], "the tool calls of message 1 (role 'assistant')"),
    ]  # fmt: skip
    for template, prompt, message in cases:
        with (
            subtests.test(message),
            pytest.raises(ValueError, match=rf"^{re.escape(message)}.*leaves it out: give its words"),
        ):
            Encoder(characters(template), TaskConfig()).prompt(prompt)
    words = ASKED[1] | {"content": "so"}  # beside a call they may be left out, as gpt-oss does
    silent = CALLS.replace("m['content'] }}", "('' if m.tool_calls else m['content']) }}")
    assert encoded([ASKED[0], words, TOLD], characters(silent)) == '<s>[user]1;[assistant]<f{"a": 1}>;[tool]2;[assistant]'
    with pytest.raises(ValueError, match="ends with a tool call: add the message with what the tool returned"):
        encoded(ASKED, characters(CALLS))


def test_tool_calls_of_a_row_are_rendered_as_those_of_an_agent(subtests):
    shown = '<s>[user]1;[assistant]<f{"a": 1}>;[tool]2;[assistant]'
    for arguments in ({"a": 1}, '{"a": 1}', ' {"a":1} '):
        for function in ({"function": {"name": "f", "arguments": arguments}}, {"name": "f", "arguments": arguments}):
            with subtests.test(function=function):
                call = {"id": "x", "type": "function"} | function
                for turn in ({"content": None}, {"content": ""}, {}, {"content": None, "name": None, "zone": None}):
                    said = {"role": "assistant", "tool_calls": [call]} | turn
                    assert encoded([ASKED[0], said, TOLD | {"tool_calls": None}], characters(CALLS)) == shown
    for arguments in ("", None, "null", " ", "{}", {}):
        with subtests.test(arguments=arguments):
            said = ASKED[1] | {"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
            assert encoded([ASKED[0], said, TOLD], characters(CALLS)) == shown.replace('{"a": 1}', "{}")
    joined = CALLS.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")  # as DeepSeek's
    assert encoded([*ASKED, TOLD], characters(joined)) == shown
    items = "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    written = CALLS.replace("{{ c.function.arguments | tojson }}", items)
    said = ASKED[1] | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert encoded([ASKED[0], said, TOLD], characters(written)) == "<s>[user]1;[assistant]<fa=1>;[tool]2;[assistant]"


def test_a_name_may_be_shown_in_the_id_alone():
    """As Kimi K2's template does."""
    by_id = CALLS.replace("c.function.name", "c.id")
    said = ASKED[1] | {"tool_calls": [CALL | {"id": "functions.f:0"}]}
    assert (
        encoded([ASKED[0], said, TOLD], characters(by_id))
        == '<s>[user]1;[assistant]<functions.f:0{"a": 1}>;[tool]2;[assistant]'
    )
    with pytest.raises(ValueError, match="the tool calls of message 1"):
        encoded([*ASKED, TOLD], characters(by_id))


NOW = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y, %H:%M') }}{% endif %}"


def test_a_template_writes_the_day_that_is_set_and_no_other(monkeypatch):
    dated, macro = NOW + TEMPLATE, "{% macro d() %}" + NOW + "{% endmacro %}{{ d() }}" + TEMPLATE
    for template in (dated, macro):
        for date, words in (("2026-01-31", "31 Jan 2026, 00:00"), ("2025-12-01", "01 Dec 2025, 00:00")):
            assert encoded("hi", characters(template), date=date) == f"{words}<s>[user]hi;[assistant]"
    encoder = Encoder(characters(dated), TaskConfig())
    before = encoder.prompt("hi")
    tomorrow = type("Day", (datetime.datetime,), {"now": classmethod(lambda cls: cls(2031, 5, 1))})
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", tomorrow)
    assert encoder.prompt("hi") == before  # after midnight
    assert writes_date(characters(dated)) and not writes_date(characters(TEMPLATE)) and not writes_date(characters())
