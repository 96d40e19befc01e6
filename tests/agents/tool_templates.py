"""Small chat templates with the marks of the families in use, as far as a turn with tool calls goes."""

import copy

from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from tests.agents.talking import tokenizer

_CALLS = "{%- for call in message.tool_calls or [] %}{% set f = call.function %}"
_TURN = (
    "{%- for message in messages %}{%- if message.role == 'assistant' %}<|assistant|>{{ message.content }}"
    "BODY<|eos|>{% else %}<|{{ message.role }}|>{{ message.content }}{% endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _turn(call, before="", after=""):
    """call: of one; before, after: around all calls of a turn."""
    body = _CALLS + call + "{% endfor %}"
    around = "{% if message.tool_calls %}" + before + "{% endif %}", "{% if message.tool_calls %}" + after + "{% endif %}"
    return _TURN.replace("BODY", around[0] + body + around[1])


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
    return _GEMMA + _turn(opens + "call:{{ f.name }}{{ shown(f.arguments, '" + quote + "') }}" + closes)


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
        "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        + _JSON + "<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "gpt-oss": _turn(
        "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>" + _JSON + "<|call|>"
    ),
    "gpt-oss, as sampled": _turn(
        "{{ '<|start|>assistant' if not loop.first or message.content }}<|channel|>commentary to=functions.{{ f.name }} "
        "<|constrain|>json<|message|>" + _JSON + "{{ '<|call|>' if not loop.last }}"
    ),
    "gemma 4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "mistral": _turn("{{ ', ' if not loop.first }}" + _OBJECT, "[TOOL_CALLS][", "]"),
    "mistral small 3.2": _turn("[TOOL_CALLS]{{ f.name }}[CALL_ID]123456789[ARGS]" + _JSON),
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
        turn["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": a}} for name, a in calls]
    whole = encoder.render([*asked, turn])
    return whole.removeprefix(encoder.render(asked, add_generation_prompt=True)).removesuffix("<|eos|>"), template
