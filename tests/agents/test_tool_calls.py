import copy
from itertools import product

import pytest

from gspo.agents.tool_arguments import typed
from gspo.agents.tool_calls import CONVENTIONS, Malformed, bare, convention
from tests.agents.talking import CHATML, tokenizer
from tests.agents.tool_templates import BARE, FAMILIES, written

tagged, functions, listed = (CONVENTIONS[mark] for mark in ("<tool_call>", "<function=", "[TOOL_CALLS]"))


def test_by_hand():
    for parse, text, found in (
        (tagged, "no call", ("no call", [])),
        (tagged, 'a <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>{"name": "g"}</tool_call>',
         ("a", [("f", {"x": 1}), ("g", {})])),
        (functions, "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na b\n</parameter>\n"
         "</function>\n</tool_call>",
         ("", [("f", {"x": 1, "y": "a b"})])),
        (listed, 'a [TOOL_CALLS][{"name": "f", "arguments": {}}]', ("a", [("f", {})])),
        (bare, '{"name": "f", "parameters": {"x": null}}', ("", [("f", {"x": None})])),
        (bare, "no call", ("no call", [])),
    ):  # fmt: skip
        beside, calls = parse(text)
        assert (beside, typed(calls, ())) == found


_INSTRUCTED = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
_SPELLED = [
    '{"type": "function", "function": {"name": "{{ t.name }}", "parameters": {{ t.parameters | tojson }}}}',
    """{{ '{"name": "' + t.name + '", "parameters": ' + (t.parameters | tojson) + '}' }} with arguments""",
    """{{ '"parameters": ' ~ tojson(t.parameters) ~ '}' }} with arguments""",
    'Tools look like {"name": "f", "parameters": {"type": "object", "properties": {"arguments": {}}}}',
]


def test_a_template_that_spells_schemas_need_not_be_llamas():
    """These hold "parameters" too."""
    wrapped = copy.copy(tokenizer("chatml"))
    wrapped.response_template = RESPONSE
    for schemas in _SPELLED:
        other = schemas + "<<{{ f.name }}: {{ f.arguments }}>>"
        assert convention(other) is None and convention(schemas + FAMILIES["qwen3"]) is tagged
        assert convention(other, wrapped)('<<lookup {"x": 1}>>') == ("", [("lookup", {"x": 1})])
        assert convention(schemas + BARE["llama 3"]) is convention(schemas + _INSTRUCTED) is bare


def test_llamas_calls_may_be_spelled_in_pieces():
    for call in (
        """{{- '"parameters": ' }}\n                {{- tool_call.arguments | tojson }}""",
        """{{ '{"name": "' + c.name + '", "parameters": ' + (c['function']['arguments'] | tojson) + '}' }}""",
        """{{- '"parameters": ' }}{%- if c.arguments is string %}{{ c.arguments }}{% endif %}""",
    ):
        assert convention(call) is bare
    assert convention('"parameters":' + "'" * 100 + "arguments") is None  # what follows far away is not looked at


TWO = [("lookup", {"key": "a b", "n": 3, "deep": {"x": [1, "é"]}}), ("search", {"text": 'naïve "quoted"\nline'})]


def test_what_a_family_writes_is_read_back(subtests):
    """Rendered by a template with the family's marks, and read as the turn that was sampled."""
    for family, calls, beside in product([*FAMILIES, *BARE], (TWO, TWO[:1], []), ("", "I look.")):
        with subtests.test(family=family, calls=len(calls), beside=beside):
            beside = "" if family in BARE and calls else beside
            words, template = written(family, beside, calls)
            before, found = convention(template)(words)
            assert (before, typed(found, ())) == (beside, calls)


NO_JSON = "{1, 2}", "b'a'", "1j", "...", "{(1, 2): 3}", "{[1]: 2}", f"[0x1{'0' * 5000}]"
MALFORMED = [
    ("qwen3", "<tool_call>"), ("qwen3", "<tool_call>{}</tool_call>"), ("qwen3", "<tool_call>[1]</tool_call>"),
    ("qwen3", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'), ("qwen3 coder", "<tool_call>f(x)</tool_call>"),
    ("glm 4.5", "<tool_call><arg_key>a</arg_key></tool_call>"),
    ("minimax m2", "<minimax:tool_call>f</minimax:tool_call>"),
    ("minimax m1", "<tool_calls>f(1)</tool_calls>"), ("minimax m1", "<tool_calls></tool_calls>"),
    ("deepseek v3.2", "<｜DSML｜function_calls></｜DSML｜function_calls>"),
    ("deepseek v3.1", "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>"),
    ("kimi k2", "<|tool_call_begin|>f:0<|tool_call_end|>"),
    ("kimi k2", "<|tool_call_begin|>f:0"), ("gpt-oss", "<|channel|>commentary to=functions.f"),
    ("gpt-oss", "<|channel|>commentary to=functions.f<|message|>{oops"), ("gemma 4", "<|tool_call>f()<tool_call|>"),
    ("gemma 4", "<|tool_call>call:f{a:b c}<tool_call|>"), ("mistral small 3.2", "[TOOL_CALLS][ARGS]{}"),
    ("mistral small 3.2", "[TOOL_CALLS] f"), ("mistral small 3.2", '[TOOL_CALLS]{"name": "f"}'),
    ("granite 3", "<|tool_call|>f"), ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(x=y)]<|tool_call_end|>"), ("lfm2", "<|tool_call_start|>[1]<|tool_call_end|>"),
    *(("lfm2", f"<|tool_call_start|>[f(x={value})]<|tool_call_end|>") for value in NO_JSON),
    *(("olmo 3", f"<function_calls>f(x={value})</function_calls>") for value in NO_JSON),
    ("llama 3", '{"name": "f", '), ("llama 4", '<|python_start|>{"name": "f", "parameters": 3}<|python_end|>'),
]  # fmt: skip


def test_malformed_calls():
    for family, text in MALFORMED:
        with pytest.raises(Malformed):
            convention((FAMILIES | BARE)[family])(text)


def test_thoughts_about_a_call_are_none():
    """Only the header of a message names whom it is for."""
    thought = "<|channel|>analysis<|message|>I write to=functions.f <|constrain|>json<|end|>"
    final = thought + "<|start|>assistant<|channel|>final<|message|>done"
    assert convention(FAMILIES["gpt-oss"])(final) == (final, [])
    call = "<|start|>assistant<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}"
    assert convention(FAMILIES["gpt-oss"])(thought + call) == (thought, [("g", {})])


SAYS = "The answer is 5."
ENDS = "<think>{}</think>\n\n", "<think>a</think>b<think>{}</think>", "{}</think>"  # the last: it began in the prompt


def test_a_call_in_thinking_is_none(subtests):
    """And what calls after it has its thinking before the words, to the letter."""
    for family, thinking in product([*FAMILIES, *BARE], ENDS):
        if family.startswith("gpt-oss"):  # it thinks in a channel
            continue
        with subtests.test(family=family, thinking=thinking):
            thought, template = written(family, "" if family in BARE else "I could call", TWO)
            parse, marker = convention(template), thought[:20]
            for inside in (f"{thought} but no.", f"The {marker} tag </think> is not needed.", f"{marker} and {thought}"):
                before = thinking.format(inside)
                assert parse(before + SAYS, True) == (before + SAYS, [])
                words, _ = written(family, "" if family in BARE else SAYS, TWO[:1])
                beside, calls = parse(before + words, True)
                assert beside == (before if family in BARE else before + SAYS).strip() and typed(calls, ()) == TWO[:1]
            for never, thinks in ((thought, True), (f"<think>{thought}", False), (f"a</think>b<think>{thought}", True)):
                assert parse(never, thinks) == (never, [])


def test_thinking_that_is_only_named_hides_no_call():
    unended = "gpt-oss", "mistral", "magistral", "granite", "minimax m1", "llama"  # no mark ends a call
    for words in ("<think>", "</think>", "<think>a</think>", "</think><think>"):
        arguments = {"text": words}
        for family, before in product(FAMILIES | BARE, ("", "<think>a</think>\n")):
            text, template = written(family, "", [("f", arguments)])
            if before and family.startswith(unended):
                continue
            assert typed(convention(template)(before + text)[1], ()) == [("f", arguments)], (family, before, words)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for after in ("<think>now wait for it</think>", "</think>", "The </think> tag"):
        assert tagged(f"{call}\n{after}")[1] == [("f", {})], after
    for before, thinks in (("", False), ("hm</think>", True), ("<think>hm</think>", False), ("a <think> b</think>", True)):
        for after in (f"<think>or {call.replace('f', 'g', 1)}?</think>", f"<think>or {call}?"):
            assert tagged(f"{before}{call}\n{after}", thinks) == (before, [("f", {})]), (before, after)
    with pytest.raises(Malformed):  # cut off in its argument
        tagged('<tool_call>{"name": "f", "arguments": {"text": "a</think>b')


RESPONSE = {
    "start_anchor": "<|assistant|>",
    "fields": {
        "content": {},
        "tool_calls": {
            "open_pattern": r"<<(?P<name>\w+)", "close": ">>", "content": "json", "repeats": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}  # fmt: skip


def test_a_response_template_of_the_tokenizer_counts_where_no_mark_does():
    wrapped = copy.copy(tokenizer("chatml"))
    assert convention("<<", wrapped) is None
    wrapped.response_template = RESPONSE
    parse = convention("<<", wrapped)
    assert parse('so <<lookup {"x": 1}>>') == ("so", [("lookup", {"x": 1})]) and parse(" so ") == (" so ", [])
    with pytest.raises(Malformed):
        parse("<<lookup {oops>>")
    assert convention(CHATML, wrapped) is tagged
