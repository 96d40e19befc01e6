"""Small chat templates with the marks of the families in use, as far as a turn with tool calls goes."""

import copy

from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from tests.agents.talking import tokenizer

_CALLS = "{%- for call in message.tool_calls or [] %}{% set f = call.function %}"
_TURN = (
    "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}<|assistant|>{{ message.content }}"
    "BODY<|im_end|>TOLD{% elif message.role != SKIPPED %}<|{{ message.role }}|>{{ message.content }}{% endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _turn(call, before="", after="", told="", refuses=""):
    """A template.

    Args:
        call: Of one call.
        before: Of what comes before all calls of a turn.
        after: Of what comes after them.
        told: Of what comes after a turn; if given, messages of tools are read there alone.
        refuses: What the template refuses, to put before it.
    """
    body = _CALLS + call + "{% endfor %}"
    around = "{% if message.tool_calls %}" + before + "{% endif %}", "{% if message.tool_calls %}" + after + "{% endif %}"
    turn = _TURN.replace("BODY", around[0] + body + around[1]).replace("TOLD", told)
    return refuses + turn.replace("SKIPPED", "'tool'" if told else "none")


def _refuses(condition, why):
    """Refuses conversations in which this holds for a message m, which follows on the messages before."""
    text = "{% for m in messages %}{% set before = messages[:loop.index0] %}{% if CONDITION %}"
    return text.replace("CONDITION", condition) + "{{ raise_exception('" + why + "') }}{% endif %}{% endfor %}"


_NINE = _refuses("m.role == 'tool' and m.tool_call_id | length != 9", "ids have length 9")
_ALTERNATE = _refuses(
    "m.role in ('user', 'assistant') and not m.tool_calls and (m.role == 'user') == (before | selectattr('role', 'in', "
    "('user', 'assistant')) | rejectattr('tool_calls') | list | length % 2 == 1)",
    "roles must alternate",
)
_UNCALLED = _refuses("m.role == 'tool' and not before | selectattr('tool_calls') | list", "a tool message without a call")
_IN_CHANNELS = _refuses("'<|channel|>' in m.content or (m.tool_calls and m.content and m.thinking)", "channels in content")
_THOUGHT = (
    "{% if message.thinking %}<|channel|>analysis<|message|>{{ message.thinking }}<|end|><|start|>assistant{% endif %}"
)
_TOLD = (
    "{% set same = namespace(turn=message.tool_calls) %}{% for m in messages[loop.index:] %}"
    "{% set same.turn = same.turn and m.role == 'tool' %}{% if same.turn %}<|tool|>{{ m.content }}{% endif %}{% endfor %}"
)
_JSON = "{{ f.arguments | tojson }}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": ' + _JSON + "}"
_ITEMS = "{% for k, v in f.arguments.items() %}"
_TEXT = "{{ v if v is string else v | tojson }}"
_GEMMA = (
    "{% macro shown(v, QUOTE) %}{% if v is string %}{{ QUOTE + v + QUOTE }}{% elif v is mapping %}{{ '{' }}"
    "{% for k, x in v.items() %}{{ ',' if not loop.first }}{{ k }}:{{ shown(x, QUOTE) }}{% endfor %}{{ '}' }}"
    "{% elif v is iterable %}[{% for x in v %}{{ ',' if not loop.first }}{{ shown(x, QUOTE) }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)


def _gemma(opens, closes, quote):
    return _GEMMA + _turn(opens + "call:{{ f.name }}{{ shown(f.arguments, '" + quote + "') }}" + closes, told=_TOLD)


FAMILIES = {
    "qwen3": _turn("\n<tool_call>\n" + _OBJECT + "\n</tool_call>"),
    "qwen3 coder": _turn(
        "\n<tool_call>\n<function={{ f.name }}>\n" + _ITEMS + "<parameter={{ k }}>\n" + _TEXT + "\n</parameter>\n"
        "{% endfor %}</function>\n</tool_call>"
    ),
    "glm 4.5": _turn(
        "\n<tool_call>{{ f.name }}" + _ITEMS + "\n<arg_key>{{ k }}</arg_key>\n<arg_value>" + _TEXT + "</arg_value>"
        "{% endfor %}\n</tool_call>"
    ),
    "minimax m2": _turn(
        '<invoke name="{{ f.name }}">\n' + _ITEMS + '<parameter name="{{ k }}">' + _TEXT + "</parameter>\n{% endfor %}"
        "</invoke>\n",
        "\n<minimax:tool_call>\n", "</minimax:tool_call>",
    ),
    "minimax m1": _turn(_OBJECT + "\n", "\n<tool_calls>\n", "</tool_calls>"),
    "deepseek v3.2": _turn(
        '\n<｜DSML｜invoke name="{{ f.name }}">\n' + _ITEMS + '<｜DSML｜parameter name="{{ k }}" string="'
        "{{ 'true' if v is string else 'false' }}\">" + _TEXT + "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>",
        "\n\n<｜DSML｜function_calls>", "\n</｜DSML｜function_calls>",
    ),
    "deepseek v3.1": _turn(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>" + _JSON + "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "deepseek r1": _turn(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n" + _JSON + "\n```<｜tool▁call▁end｜>\n",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "kimi k2": _turn(
        "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>"
        + _JSON + "<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "gpt-oss": _turn(
        "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>" + _JSON + "<|call|>",
        _THOUGHT, refuses=_UNCALLED + _IN_CHANNELS,
    ),
    "gpt-oss, as sampled": _turn(
        "{{ '<|start|>assistant' if not loop.first or message.content }}<|channel|>commentary to=functions.{{ f.name }} "
        "<|constrain|>json<|message|>" + _JSON + "{{ '<|call|>' if not loop.last }}",
        _THOUGHT, refuses=_UNCALLED + _IN_CHANNELS,
    ),
    "gemma 4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "mistral": _turn("{{ ', ' if not loop.first }}" + _OBJECT, "[TOOL_CALLS][", "]", refuses=_NINE + _ALTERNATE),
    "mistral small 3.2": _turn("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ call.id }}[ARGS]" + _JSON, refuses=_NINE),
    "magistral": _turn("[TOOL_CALLS]{{ f.name }}[ARGS]" + _JSON),
    "granite 3": _turn("{{ ', ' if not loop.first }}" + _OBJECT, "<|tool_call|>[", "]"),
    "lfm2": _turn(
        "{{ ', ' if not loop.first }}{{ f.name }}(" + _ITEMS + "{{ ', ' if not loop.first }}{{ k }}="
        "{{ v | tojson if v is string else v }}{% endfor %})",
        "<|tool_call_start|>[", "]<|tool_call_end|>",
    ),
    "olmo 3": _turn(
        "{{ f.name }}(" + _ITEMS + "{{ ', ' if not loop.first }}{{ k }}={{ v | tojson if v is string else v }}"
        "{% endfor %})\n",
        "<function_calls>", "</function_calls>",
    ),
}  # fmt: skip
# Two that show no calls of earlier turns.
SILENT = {"smollm3": _turn("") + "{# <tool_call> #}", "the first lfm2": _turn("") + "{# <|tool_list_start|> #}"}
# The calls are the whole turn.
BARE = {
    "llama 3": _turn('{"name": "{{ f.name }}", "parameters": ' + _JSON + "}"),
    "llama 4": _turn('{"name": "{{ f.name }}", "parameters": ' + _JSON + "}\n", "<|python_start|>", "<|python_end|>"),
}


def written(family, content, calls):
    """What a turn with these calls, names with arguments, is by the template of a family; and the template."""
    wrapped = copy.copy(tokenizer("chatml"))
    wrapped.chat_template = template = (FAMILIES | BARE)[family]
    encoder, asked = Encoder(wrapped, TaskConfig()), [{"role": "user", "content": "hi"}]
    turn = {"role": "assistant", "content": content}
    if calls:
        ids = [f"functions.{name}:{i}" if family == "kimi k2" else f"{i:09}" for i, (name, _) in enumerate(calls)]
        made = [{"id": id, "function": {"name": name, "arguments": a}} for id, (name, a) in zip(ids, calls)]
        turn["tool_calls"] = made
    whole = encoder.render([*asked, turn])
    return whole.removeprefix(encoder.render(asked, add_generation_prompt=True)).removesuffix("<|im_end|>"), template
