"""Parses the tool calls in a completion, in the formats of common chat templates.

A marker in the template identifies the format. If there is none, the tokenizer's response template is used, which
transformers parses. Arguments in tags are `Untyped` here; tool_arguments.py gives them their types.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gspo.agents.tool_arguments import Untyped

Found = tuple[str, list[tuple[str, dict[str, Any]]]]  # the text outside the calls, and each call's name and arguments
Parse = Callable[[str], Found]


class Malformed(ValueError):
    """A completion that begins a tool call but cannot be parsed."""


class UnknownConvention(ValueError):
    """Tools for a model whose tool-call format is not known."""


def tagged(text: str) -> Found:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen 2.5 and 3, Granite 4)."""
    calls = [_checked(_json(body)) for body in _between(text, "<tool_call>", "</tool_call>")]
    return _outside(text, "<tool_call>"), calls


def functions(text: str) -> Found:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` (Qwen3-Coder, Qwen 3.5)."""
    calls = []
    for body in _between(text, "<tool_call>", "</tool_call>"):
        named = re.fullmatch(r"\s*<function=([^>\n]+)>(.*)</function>\s*", body, re.DOTALL)
        if named is None:
            raise Malformed(f"expected <function=NAME> ... </function>, got {body!r:.80}")
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", named[2], re.DOTALL)
        calls.append((named[1], {name: Untyped(value) for name, value in pairs}))
    return _outside(text, "<tool_call>"), calls


def keyed(text: str) -> Found:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>` (GLM 4.5 and later)."""
    calls = []
    for body in _between(text, "<tool_call>", "</tool_call>"):
        pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
        name = body.partition("<arg_key>")[0].strip()
        calls.append((_name(name), {key.strip(): Untyped(value) for key, value in pairs}))
    return _outside(text, "<tool_call>"), calls


def invoked(text: str, opens: str, tag: str) -> Found:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` inside the tag `opens` (MiniMax M2). DeepSeek
    V3.2 puts `tag` before each name and marks text by string="true".
    """
    calls = []
    for body in _between(text, f"<{opens}>", f"</{opens}>"):
        named = re.findall(rf'<{tag}invoke name="([^"\n]+)">(.*?)</{tag}invoke>', body, re.DOTALL)
        if not named:
            raise Malformed(f'expected <{tag}invoke name="NAME"> ... </{tag}invoke>, got {body!r:.80}')
        shape = rf'<{tag}parameter name="([^"\n]+)"(?: string="(true|false)")?>(.*?)</{tag}parameter>'
        for name, inner in named:
            pairs = re.findall(shape, inner, re.DOTALL)
            calls.append((name, {key: _marked(value, as_text) for key, as_text, value in pairs}))
    return _outside(text, f"<{opens}>"), calls


def deepseek(text: str) -> Found:
    """`<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` (V3.1), or `function<｜tool▁sep｜>NAME` and the
    arguments in a JSON code fence (V3, R1).
    """  # the bars are part of the markers
    calls = []
    for body in _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"):
        first, sep, rest = body.partition("<｜tool▁sep｜>")
        if not sep:
            raise Malformed(f"a call without its separator: {body!r:.80}")
        fenced = re.fullmatch(r"\s*(\S+)\s*```json\s*(.*?)\s*```\s*", rest, re.DOTALL)
        name, arguments = fenced.groups() if fenced else (first.strip(), rest)
        calls.append(_called(name, arguments))
    return _outside(text, "<｜tool▁calls▁begin｜>"), calls


def kimi(text: str) -> Found:
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` (Kimi K2)."""
    calls = []
    for body in _between(text, "<|tool_call_begin|>", "<|tool_call_end|>"):
        id, _, arguments = body.partition("<|tool_call_argument_begin|>")
        calls.append(_called(re.sub(r":\d+$", "", id.strip().removeprefix("functions.")), arguments))
    return _outside(text, "<|tool_calls_section_begin|>"), calls


def harmony(text: str) -> Found:
    """`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>` (gpt-oss). The recipient may also
    precede the channel; `<|call|>` ends the turn.
    """
    calls, beside = [], len(text)
    at = 0
    for message in text.split("<|start|>"):
        header, begun, body = message.partition("<|message|>")
        to = re.search(r"\bto=(?:functions\.)?([^\s<]+)", header)
        if to:
            if not begun:
                raise Malformed(f"a call without a message: {message!r:.80}")
            calls.append(_called(to[1], re.split(r"<\|(?:call|end|return)\|>", body)[0]))
            beside = min(beside, at)
        at += len(message) + len("<|start|>")
    return (text[:beside].removesuffix("<|start|>").strip() if calls else text), calls


def gemma(text: str, opens: str, closes: str, quote: str) -> Found:
    """`call:NAME{KEY:VALUE}` between two markers, with bare keys, and strings between `quote`s (Gemma 4, FunctionGemma)."""
    calls = []
    for body in _between(text, opens, closes):
        named = re.fullmatch(r"\s*call:([^{\s]+)\s*(\{.*\})\s*", body, re.DOTALL)
        if named is None:
            raise Malformed(f"expected call:NAME{{...}}, got {body!r:.80}")
        parts = named[2].split(quote)  # every second part is a string
        parts[::2] = [re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", r'\1"\2":', part) for part in parts[::2]]
        parts[1::2] = [json.dumps(part) for part in parts[1::2]]
        calls.append(_called(named[1], "".join(parts)))
    return _outside(text, opens), calls


def listed(text: str) -> Found:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or `[TOOL_CALLS]NAME[ARGS]{...}` for each call, with an optional
    [CALL_ID] in between (Mistral).
    """
    parts = text.split("[TOOL_CALLS]")[1:]
    if parts and parts[0].lstrip().startswith("["):
        return _outside(text, "[TOOL_CALLS]"), [_checked(call) for part in parts for call in _objects(part)]
    calls = []
    for part in parts:
        named = re.fullmatch(r"\s*([^\s{\[]+)(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(\{.*)", part, re.DOTALL)
        if named is None:
            raise Malformed(f"expected a list or NAME[ARGS] after [TOOL_CALLS], got {part!r:.80}")
        calls.append(_called(named[1], named[2]))
    return _outside(text, "[TOOL_CALLS]"), calls


def objects(text: str, opens: str, closes: str) -> Found:
    """`{"name": ..., "arguments": {...}}`, one or more or a list of them, after a marker (Granite 3, MiniMax M1)."""
    _, begun, after = text.partition(opens)
    return _outside(text, opens), [_checked(call) for call in _objects(after.partition(closes)[0])] if begun else []


def bare(text: str) -> Found:
    """`{"name": ..., "parameters": {...}}` as the whole completion, one or more (Llama 3 and 4)."""
    body = re.sub(r"<\|python_(?:tag|start|end)\|>", "", text).strip()
    if not re.match(r'\{\s*"(?:name|type)"', body):
        return text, []
    return "", [_checked(call) for call in _objects(body)]


def pythonic(text: str, opens: str, closes: str) -> Found:
    """`[NAME(KEY=VALUE)]` between two markers (LFM2), or one call per line (OLMo 3)."""
    calls = []
    for body in _between(text, opens, closes):
        try:
            lines = [line.value for line in ast.parse(body.strip()).body if isinstance(line, ast.Expr)]
            for call in [one for line in lines for one in (line.elts if isinstance(line, ast.List) else [line])]:
                assert isinstance(call, ast.Call) and not call.args
                calls.append((ast.unparse(call.func), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}))
        except (SyntaxError, ValueError, AssertionError, MemoryError):
            raise Malformed(f"no calls as Python writes them: {body!r:.80}") from None
    return _outside(text, opens), calls


# Markers in a template that identify its format, the most specific first.
CONVENTIONS: tuple[tuple[str, Parse], ...] = (
    ("｜DSML｜", partial(invoked, opens="｜DSML｜function_calls", tag="｜DSML｜")),
    ("<｜tool▁calls▁begin｜>", deepseek),
    ("<|tool_calls_section_begin|>", kimi),
    ("<minimax:tool_call>", partial(invoked, opens="minimax:tool_call", tag="")),
    ("<|channel|>commentary", harmony),
    ("<|tool_call>call:", partial(gemma, opens="<|tool_call>", closes="<tool_call|>", quote='<|"|>')),
    ("<start_function_call>",
     partial(gemma, opens="<start_function_call>", closes="<end_function_call>", quote="<escape>")),
    ("<arg_key>", keyed),
    ("<function=", functions),
    ("<|tool_call_start|>", partial(pythonic, opens="<|tool_call_start|>", closes="<|tool_call_end|>")),
    ("<function_calls>", partial(pythonic, opens="<function_calls>", closes="</function_calls>")),
    ("<|tool_call|>", partial(objects, opens="<|tool_call|>", closes="<|/tool_call|>")),
    ("<tool_calls>", partial(objects, opens="<tool_calls>", closes="</tool_calls>")),
    ("<tool_call>", tagged),
    ("[TOOL_CALLS]", listed),
)  # fmt: skip
LLAMA = '"parameters":'
_LLAMA = re.compile(rf"""\{{"name": function name, {LLAMA}|{LLAMA}(?:(?!parameters)[^|:]){{0,60}}?\barguments\b""")
"""Llama's marker also occurs in tool schemas. It counts only in the template's instruction, or if `arguments` follows
closely, without a filter (|) or a key (:) in between.
"""


def convention(template: str | None, tokenizer: Any = None) -> Parse | None:
    """Parser for a chat template's tool calls, else for the tokenizer's response template; None if neither is known."""
    known = next((parse for marker, parse in CONVENTIONS if marker in (template or "")), None)
    if known is None and _LLAMA.search(template or ""):
        return bare
    if known is None and getattr(tokenizer, "response_template", None) is not None:
        return partial(_by_response_template, tokenizer)
    return known


def _by_response_template(tokenizer: Any, text: str) -> Found:
    try:
        message = tokenizer.parse_response(text, prefix="")
        calls = [_checked(call["function"]) for call in message.get("tool_calls") or []]
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(str(error)) from None
    return (str(message.get("content") or "") if calls else text), calls


def _between(text: str, opens: str, closes: str) -> Iterator[str]:
    for part in text.split(opens)[1:]:
        body, closed, _ = part.partition(closes)
        if not closed:
            raise Malformed(f"{opens} is never closed")
        yield body


def _outside(text: str, opens: str) -> str:
    """The text before the first call, the only place where templates put text."""
    return text.partition(opens)[0].strip() if opens in text else text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"no JSON ({error}): {text.strip()!r:.80}") from None


def _objects(text: str) -> list[Any]:
    """The consecutive JSON values of a text, with lists flattened."""
    found, text = [], text.strip()
    while text:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError as error:
            raise Malformed(f"no JSON ({error}): {text!r:.80}") from None
        found += value if isinstance(value, list) else [value]
        text = text[end:].lstrip(" \n\r\t;,")
    if not found:
        raise Malformed("a mark of calls, and none after it")
    return found


def _called(name: str, arguments: str) -> tuple[str, dict[str, Any]]:
    return _checked({"name": _name(name), "arguments": _json(arguments)})


def _name(name: str) -> str:
    if not re.fullmatch(r"[^\s<>{}\"]+", name):
        raise Malformed(f"a call without a name: {name!r:.80}")
    return name


def _checked(call: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not _is_text(call["name"]):
        raise Malformed(f"a call without a name: {call!r:.80}")
    values = call.get("arguments", call.get("parameters", {}))
    if not isinstance(values, dict):
        raise Malformed(f"arguments that are no object: {values!r:.80}")
    return call["name"], values


def _marked(text: str, as_text: str) -> Any:
    """Value of a parameter in a tag. `as_text` is its string attribute: "true" for text, "false" for JSON, else empty."""
    if as_text == "false":
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text if as_text else Untyped(text)


def _is_text(name: str) -> bool:
    """False for a lone surrogate, which JSON can express and UTF-8 cannot."""
    return name.encode("utf-8", "ignore").decode() == name
