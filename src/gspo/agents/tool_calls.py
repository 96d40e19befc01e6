"""Parses the tool calls in a completion, in the formats of common chat templates.

A marker in the template identifies the format. If there is none, the tokenizer's response template is used, which
transformers parses. Arguments in tags are `Untyped` here; tool_arguments.py gives them their types. A call within
<think>...</think> is a thought: only what follows the thinking is parsed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from gspo.agents.tool_arguments import Untyped

Named = tuple[str, dict[str, Any]]  # name and arguments of a call
Found = tuple[str, list[Named]]  # the text outside the calls, and the calls
Parse = Callable[..., Found]
"""Parser of a format, called with a completion, and optionally `thinks`: whether its prompt ends inside an open <think>.
Raises Malformed.
"""


class Malformed(ValueError):
    """A completion that begins a tool call but cannot be parsed."""


class UnknownConvention(ValueError):
    """Tools for a model whose tool-call format is not known."""


@dataclass(frozen=True)
class Marked:
    """A format with calls between two markers, which `read` parses. closes: empty for the next one, or the end. begins: the
    marker before the first of all calls, if it is not `opens`; templates put text only before it.
    """

    opens: str
    closes: str
    read: Callable[[str], list[Named]]
    begins: str = ""

    def __call__(self, text: str, thinks: bool = False) -> Found:
        """Parses a completion, as every Parse does."""
        spoken = _without_thoughts(text, thinks, self.opens, self.closes)
        calls = [call for body in self._between(spoken) for call in self.read(body)]
        begin = spoken.find(self.begins or self.opens)
        return (text if begin < 0 else text[:begin].strip()), calls

    def _between(self, text: str) -> Iterator[str]:
        for part in text.split(self.opens)[1:]:
            body, closed, _ = part.partition(self.closes) if self.closes else (part, True, "")
            if not closed:
                raise Malformed(f"{self.opens} is never closed")
            yield body


def _without_thoughts(text: str, thinks: bool, opens: str, closes: str = "") -> str:
    """A completion with blanks for its thoughts. What stands in a whole call, from `opens` to `closes`, is part of an
    argument; without `closes`, all after the first `opens` is.
    """
    first, last = re.escape(opens), re.escape(closes)
    call = f"{first}(?:(?!{first}).)*?{last}" if closes else "(?!)"
    begins = r"(?:\A|<think>)" if thinks else "<think>"
    thought = f"{begins}(?>{call}|(?!</think>).)*+(?:</think>|$)"
    return re.sub(f"(?s){thought}|({call if closes else first + '.*'})", lambda one: one[1] or " " * len(one[0]), text)


def _object(body: str) -> list[Named]:
    """`{"name": ..., "arguments": {...}}` (Hermes, Qwen 2.5 and 3, Granite 4)."""
    return [_checked(_json(body))]


def _function(body: str) -> list[Named]:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>` (Qwen3-Coder, Qwen 3.5)."""
    named = re.fullmatch(r"\s*<function=([^>\n]+)>(.*)</function>\s*", body, re.DOTALL)
    if named is None:
        raise Malformed(f"expected <function=NAME> ... </function>, got {body!r:.80}")
    pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", named[2], re.DOTALL)
    return [(named[1], {name: Untyped(value) for name, value in pairs})]


def _keyed(body: str) -> list[Named]:
    """`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` (GLM 4.5 and later)."""
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
    name = body.partition("<arg_key>")[0].strip()
    return [(_name(name), {key.strip(): Untyped(value) for key, value in pairs})]


def _invoked(body: str, tag: str) -> list[Named]:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` (MiniMax M2). DeepSeek V3.2 puts `tag` before
    each name and marks text by string="true".
    """
    named = re.findall(rf'<{tag}invoke name="([^"\n]+)">(.*?)</{tag}invoke>', body, re.DOTALL)
    if not named:
        raise Malformed(f'expected <{tag}invoke name="NAME"> ... </{tag}invoke>, got {body!r:.80}')
    shape = rf'<{tag}parameter name="([^"\n]+)"(?: string="(true|false)")?>(.*?)</{tag}parameter>'
    return [
        (name, {key: _typed(value, is_text) for key, is_text, value in re.findall(shape, inner, re.DOTALL)})
        for name, inner in named
    ]


def _typed(text: str, is_text: str) -> Any:
    """Value of a parameter. `is_text` is its string attribute: "true" for text, "false" for JSON, else empty."""
    if is_text == "false":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text if is_text else Untyped(text)


def _deepseek(body: str) -> list[Named]:
    """`NAME<｜tool▁sep｜>{...}` (V3.1), or `function<｜tool▁sep｜>NAME` and the arguments in a JSON code fence (V3, R1)."""
    first, sep, rest = body.partition("<｜tool▁sep｜>")  # the bars are part of the marker
    if not sep:
        raise Malformed(f"a call without its separator: {body!r:.80}")
    fenced = re.fullmatch(r"\s*(\S+)\s*```json\s*(.*?)\s*```\s*", rest, re.DOTALL)
    return [_called(*fenced.groups()) if fenced else _called(first.strip(), rest)]


def _kimi(body: str) -> list[Named]:
    """`functions.NAME:0<|tool_call_argument_begin|>{...}` (Kimi K2)."""
    id, _, arguments = body.partition("<|tool_call_argument_begin|>")
    return [_called(re.sub(r":\d+$", "", id.strip().removeprefix("functions.")), arguments)]


def _gemma(body: str, quote: str) -> list[Named]:
    """`call:NAME{KEY:VALUE}` with bare keys, and strings between `quote`s (Gemma 4, FunctionGemma)."""
    named = re.fullmatch(r"\s*call:([^{\s]+)\s*(\{.*\})\s*", body, re.DOTALL)
    if named is None:
        raise Malformed(f"expected call:NAME{{...}}, got {body!r:.80}")
    parts = named[2].split(quote)  # every second part is a string
    parts[::2] = [re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", r'\1"\2":', part) for part in parts[::2]]
    parts[1::2] = [json.dumps(part) for part in parts[1::2]]
    return [_called(named[1], "".join(parts))]


def _listed(body: str) -> list[Named]:
    """`[{"name": ..., "arguments": {...}}]`, or `NAME[ARGS]{...}` with an optional [CALL_ID] in between (Mistral)."""
    if body.lstrip().startswith("["):
        return _objects(body)
    named = re.fullmatch(r"\s*([^\s{\[]+)(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(\{.*)", body, re.DOTALL)
    if named is None:
        raise Malformed(f"expected a list or NAME[ARGS] after [TOOL_CALLS], got {body!r:.80}")
    return [_called(named[1], named[2])]


def _objects(body: str, closes: str = "") -> list[Named]:
    """`{"name": ..., "arguments": {...}}`, one or more or a list of them, up to a marker that may be missing (Granite 3,
    MiniMax M1).
    """
    calls = _values(body.partition(closes)[0] if closes else body)
    if not calls:
        raise Malformed("a marker of calls, and none after it")
    return [_checked(call) for call in calls]


def _values(text: str) -> list[Any]:
    """JSON values beside each other, or in lists."""
    values, text = [], text.strip()
    while text:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError as error:
            raise Malformed(f"no JSON ({error}): {text!r:.80}") from None
        values += value if isinstance(value, list) else [value]
        text = text[end:].lstrip(" \n\r\t;,")
    return values


def _pythonic(body: str) -> list[Named]:
    """`[NAME(KEY=VALUE)]` (LFM2), or one call per line (OLMo 3)."""
    calls = []
    try:
        lines = [line.value for line in ast.parse(body.strip()).body if isinstance(line, ast.Expr)]
        for call in [one for line in lines for one in (line.elts if isinstance(line, ast.List) else [line])]:
            assert isinstance(call, ast.Call) and not call.args
            arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            json.dumps(arguments)  # raises for what JSON has not: sets, bytes, integers of thousands of digits
            calls.append((ast.unparse(call.func), arguments))
    except (SyntaxError, ValueError, TypeError, AssertionError, MemoryError):
        raise Malformed(f"no calls as Python writes them: {body!r:.80}") from None
    return calls


def harmony(text: str, thinks: bool = False) -> Found:
    """`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>` (gpt-oss). The recipient may also
    precede the channel; `<|call|>` ends the turn. Thinking has its own channel.
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


def in_channels(text: str, calls: bool) -> dict[str, str]:
    """A turn of gpt-oss as its template reads it: its thoughts and its words; with calls, all of it as thoughts."""
    parts = {"thinking": "", "content": ""}
    for message in text.split("<|start|>"):
        header, begun, body = message.partition("<|message|>")
        if begun and " to=" not in header:
            parts["thinking" if calls or "analysis" in header else "content"] += body.removesuffix("<|end|>")
    return parts


def bare(text: str, thinks: bool = False) -> Found:
    """`{"name": ..., "parameters": {...}}` as the whole completion, one or more (Llama 3 and 4)."""
    spoken = _without_thoughts(text, thinks, "{")
    start = len("".join(text[: max(0, spoken.find("{"))].rpartition("</think>")[:2]))
    body = re.sub(r"<\|python_(?:tag|start|end)\|>", "", spoken[start:]).strip()
    return (text[:start].strip(), _objects(body)) if re.match(r'\{\s*"(?:name|type)"', body) else (text, [])


# The formats by the markers that identify them in a template, the most specific first.
CONVENTIONS: dict[str, Parse] = {
    "｜DSML｜": Marked("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", partial(_invoked, tag="｜DSML｜")),
    "<｜tool▁calls▁begin｜>":
        Marked("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", _deepseek, "<｜tool▁calls▁begin｜>"),
    "<|tool_calls_section_begin|>":
        Marked("<|tool_call_begin|>", "<|tool_call_end|>", _kimi, "<|tool_calls_section_begin|>"),
    "<minimax:tool_call>": Marked("<minimax:tool_call>", "</minimax:tool_call>", partial(_invoked, tag="")),
    "<|channel|>commentary": harmony,
    "<|tool_call>call:": Marked("<|tool_call>", "<tool_call|>", partial(_gemma, quote='<|"|>')),
    "<start_function_call>":
        Marked("<start_function_call>", "<end_function_call>", partial(_gemma, quote="<escape>")),
    "<arg_key>": Marked("<tool_call>", "</tool_call>", _keyed),
    "<function=": Marked("<tool_call>", "</tool_call>", _function),
    "<|tool_call_start|>": Marked("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),
    "<|tool_list_start|>": Marked("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),  # the first LFM2
    "<function_calls>": Marked("<function_calls>", "</function_calls>", _pythonic),
    "<|tool_call|>": Marked("<|tool_call|>", "", partial(_objects, closes="<|/tool_call|>")),
    "<tool_calls>": Marked("<tool_calls>", "", partial(_objects, closes="</tool_calls>")),
    "<tool_call>": Marked("<tool_call>", "</tool_call>", _object),
    "[TOOL_CALLS]": Marked("[TOOL_CALLS]", "", _listed),
}  # fmt: skip
_WRITTEN_ID = re.compile(r"<\|tool_call_begin\|>\s*(\S+?:\d+)\s*<|\[TOOL_CALLS\][^\s{\[]+\[CALL_ID\](\w{9})\b")
_LLAMA = re.compile(r"""\{"name": function name, "parameters":|"parameters":(?:(?!parameters)[^|:]){0,60}?\barguments\b""")
"""Llama's marker also occurs in tool schemas. It counts only in the template's instruction, or if `arguments` follows
closely, without a filter (|) or a key (:) in between.
"""


def convention(template: str | None, tokenizer: Any = None) -> Parse | None:
    """Parser for a chat template's tool calls, else for the tokenizer's response template; None if neither is known."""
    known = next((parse for marker, parse in CONVENTIONS.items() if marker in (template or "")), None)
    if known is None and _LLAMA.search(template or ""):
        return bare
    if known is None and getattr(tokenizer, "response_template", None) is not None:
        return partial(_by_response_template, tokenizer)
    return known


def call_ids(id: str, text: str, count: int) -> list[str]:
    """The ids of the calls in a turn: those that it writes itself (Kimi K2, Mistral), else some that Mistral's templates
    take, the same for the same `id`.
    """
    ids = ["".join(found) for found in _WRITTEN_ID.findall(text)]
    with suppress(Malformed):
        lists = [part for part in text.split("[TOOL_CALLS]")[1:] if part.lstrip().startswith("[")]
        written = [str(call.get("id")) for part in lists for call in _values(part) if isinstance(call, dict)]
        ids += [one for one in written if re.fullmatch(r"\w{9}", one)]
    if len(ids) == count == len(set(ids)):
        return ids
    return [hashlib.sha256(f"{id}-{i}".encode()).hexdigest()[:9] for i in range(count)]


def _by_response_template(tokenizer: Any, text: str, thinks: bool = False) -> Found:
    """What is thinking, a response template says itself."""
    try:
        message = tokenizer.parse_response(text, prefix="")
        calls = [_checked(call["function"]) for call in message.get("tool_calls") or []]
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(str(error)) from None
    return (str(message.get("content") or "") if calls else text), calls


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"no JSON ({error}): {text.strip()!r:.80}") from None


def _called(name: str, arguments: str) -> Named:
    return _checked({"name": _name(name), "arguments": _json(arguments)})


def _name(name: str) -> str:
    if not re.fullmatch(r"[^\s<>{}\"]+", name):
        raise Malformed(f"a call without a name: {name!r:.80}")
    return name


def _checked(call: Any) -> Named:
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str):
        raise Malformed(f"a call without a name: {call!r:.80}")
    values = call.get("arguments", call.get("parameters", {}))
    if not isinstance(values, dict):
        raise Malformed(f"arguments that are no object: {values!r:.80}")
    return name, values
