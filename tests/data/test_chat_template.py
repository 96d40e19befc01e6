import pytest

from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder, arguments_of
from tests.data.tools import TEMPLATE, characters, text


def encoded(prompt, tokenizer, **task):
    return text(tokenizer, Encoder(tokenizer, TaskConfig(**task)).prompt(prompt)[0])


def test_a_string_becomes_a_user_message_and_bos_comes_once():
    assert encoded("hi", characters(TEMPLATE)) == "<s>[user]hi;[assistant]"


def test_system_and_template_arguments():
    got = encoded("hi", characters(TEMPLATE), system="be brief", template_args={"enable_thinking": False})
    assert got == "<s>[system]be brief;[user]hi;[assistant]!"


@pytest.mark.parametrize(
    ("prompt", "task", "expected"),
    [
        ("hi", {}, "<s>[system]Tags.;[user]hi;[assistant]"),
        ("hi", {"system": "own"}, "<s>[system]own;[user]hi;[assistant]"),
        ("hi", {"system": ""}, "<s>[user]hi;[assistant]"),
        ("hi", {"template": "none"}, "<s>hi"),
        ("end with <answer>", {}, "<s>[user]end with <answer>;[assistant]"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], {}, "<s>[system]s;[user]hi;[assistant]"),
    ],
)
def test_the_default_system_message(prompt, task, expected):
    encoder = Encoder(characters(TEMPLATE), TaskConfig(**task), "Tags.")
    assert text(encoder.tokenizer, encoder.prompt(prompt)[0]) == expected
    assert encoder.defaulted == ("Tags." in expected)


PARTS = """{% for m in messages %}[{{ m['role'] }}]{% for part in m['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %};
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
"""As of models that read images: a plain text shows nothing here."""
ADDS = "{{ bos_token }}{% if messages[0]['role'] != 'system' %}[system]be kind;{% endif %}"
ADDS += TEMPLATE.removeprefix("{{ bos_token }}")
"""As that of SmolLM2, and of Qwen2.5."""
DATED = "[system]It is May.{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %};"
DATED += "{% for m in messages %}{% if m['role'] != 'system' %}[{{ m['role'] }}]{{ m['content'] }};{% endif %}{% endfor %}"
"""As that of Llama 3.1, which puts a date before any system message."""
IN_USER = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }} {% else %}[user]{{ m['content'] }}{% endif %}"
)
IN_USER += "{% endfor %}"
OWN = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("template", "prompt", "task", "default", "added"),
    [
        (ADDS, "hi", {}, "", "be kind"),
        (ADDS, [{"role": "user", "content": "hi"}], {"system": ""}, "Tags.", "be kind"),
        (ADDS, "end with <answer>", {}, "Tags.", "be kind"),  # does not get the default
        (ADDS, "hi", {}, "Tags.", ""),
        (ADDS, "hi", {"system": "own"}, "", ""),
        (ADDS, OWN, {}, "", ""),
        (ADDS, "hi", {"template": "none"}, "", ""),
        (DATED, "hi", {}, "", "[system]It is May."),
        (DATED, OWN, {}, "", ""),
        (TEMPLATE, "hi", {}, "", ""),
        (IN_USER, "hi", {}, "", ""),
        (PARTS, "hi", {}, "", ""),
        ("{% if messages[0]['role'] == 'system' %}{{ raise_exception('none') }}{% endif %}" + TEMPLATE, "hi", {}, "", ""),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "hi", {}, "", ""),
        ("{{ messages[-1]['content'] }}", "hi", {}, "", ""),
        (None, "hi", {}, "", ""),
    ],
)
def test_a_system_message_of_the_template_itself_is_found(template, prompt, task, default, added):
    assert Encoder(characters(template), TaskConfig(**task), default).added_system(prompt) == added


def test_messages_and_a_completion_to_carry_on():
    tokenizer = characters(TEMPLATE)
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]
    assert encoded(turns, tokenizer) == "<s>[user]1;[assistant]2;[user]3;[assistant]"
    assert encoded(turns[:2], tokenizer) == "<s>[user]1;[assistant]2"


def test_without_a_template_the_text_stands_as_it_is():
    assert encoded("a;b", characters()) == "<s>a;b"
    assert encoded("a", characters(TEMPLATE), template="none") == "<s>a"
    assert encoded("a", characters(), system="s") == "<s>s\n\na"
    assert encoded("<s>a", characters()) == "<s>a"  # no second BOS
    assert encoded("a", characters(eos_too=True)) == "<s>a"  # a completion is to follow
    assert encoded("a</s>", characters(eos_too=True)) == "<s>a</s></s>"[: len("<s>a</s></s>")]
    assert encoded("a", characters(bos=False)) == "a"


def test_text_parts_are_text_whatever_the_template_reads():
    """A template for text writes a list as Python does, and one for images leaves a string out."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert encoded(parts, characters(TEMPLATE)) == "<s>[user]ab;[assistant]"
    assert encoded(parts, characters(PARTS)) == encoded("ab", characters(PARTS)) == "[user]ab;[assistant]"
    either = TEMPLATE.replace("m['content'] }}", "(m['content'] if m['content'] is string else m['content'][0].text) }}")
    assert encoded(parts, characters(either)) == "<s>[user]a;[assistant]"  # its own way
    assert encoded("ab", characters(either)) == "<s>[user]ab;[assistant]"


THINKS = TEMPLATE.replace("[assistant]\n", "[assistant]<think>{{ '\\n' }}\n")
"""As of R1 and Qwen3-Thinking: the completion begins inside the tag."""


@pytest.mark.parametrize(
    ("template", "prompt", "thinking"),
    [
        (THINKS, "hi", True),
        (THINKS, "<think>", True),
        (THINKS, [{"role": "user", "content": "end with </think>"}], True),
        (TEMPLATE, "hi", False),
        (TEMPLATE, "begin with <think>", False),  # an instruction, not the beginning of the completion
        (TEMPLATE, "between <think> and </think>", False),
        (TEMPLATE, [{"role": "user", "content": "1"}, {"role": "assistant", "content": "<think>Well"}], True),
        (TEMPLATE, [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "Well"}], False),
        (TEMPLATE, [{"role": "user", "content": "1"}, {"role": "assistant", "content": "<think></think>"}], False),
        (None, "Q: 1+1 A: <think>", True),
        (None, "Q: 1+1 A:", False),
        (None, "Between <think> and </think>. Q: 1+1 A:", False),
        (None, "Between <think> and </think>. Q: 1+1 A: <think>\n", True),
    ],
)
def test_prompts_that_end_inside_an_open_think(template, prompt, thinking):
    tokenizer = characters(template)
    ids, found = Encoder(tokenizer, TaskConfig()).prompt(prompt)
    assert found is thinking
    if template is THINKS:
        assert text(tokenizer, ids).endswith("[assistant]<think>\n")


def test_completions_end_with_eos_once():
    tokenizer = characters()
    encoder = Encoder(tokenizer, TaskConfig())
    assert text(tokenizer, encoder.completion("ab")) == "ab</s>"
    assert text(tokenizer, encoder.completion("ab</s>")) == "ab</s>"
    assert text(tokenizer, encoder.completion("")) == "</s>"
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"no EOS token.*set tokenizer\.eos_token"):
        encoder.completion("ab")


@pytest.mark.parametrize(
    ("prompt", "task", "message"),
    [
        ([{"role": "user", "content": "1"}], {"template": "none"}, r"list of chat messages, but no chat template"),
        ([], {}, "an empty list of messages"),
        ([{"content": "1"}], {}, r"message 0 is \{'content': '1'\}; expected"),
        (["hello"], {}, "message 0 is 'hello'"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "image", "image": "a.png"}]}],
            {},
            r"message 0 has a part that is no text, \{'type': 'image'.* text alone, whatever its model can read. Leave such",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], {}, "a part that is no text"),
        ([{"role": "user", "content": [{"video": "a.mp4"}]}], {}, "a part that is no text"),  # as Qwen's templates read it
        *(
            ([{"role": "user", "content": "1", key: value}], {}, f"message 0 has '{key}', which is no text.* text alone")
            for key, value in (("images", ["a.png"]), ("audio", {"id": "x"}), ("videos", [b"x"]), ("x", {"bytes": b"x"}))
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "1", "image": "a"}]}], {}, "a part with more than text"),
        ([{"role": "user", "content": {"text": "1"}}], {}, "has a dict for its content"),
        (7, {}, "is an int; expected a string or a list"),
        (None, {}, "is a NoneType; expected a string or a list"),
        ([{"role": "tool", "content": "1"}], {}, "the chat template refuses it: no tools here"),
        ([{"role": "system", "content": "1"}], {"system": "2"}, "a system message of its own, and task.system"),
    ],
)
def test_bad_prompts(prompt, task, message):
    with pytest.raises(ValueError, match=message):
        Encoder(characters(TEMPLATE), TaskConfig(**task)).prompt(prompt)


@pytest.mark.parametrize(
    ("template", "task", "message"),
    [
        (None, {}, "has no effect, for the tokenizer has no chat template"),
        (TEMPLATE, {"template": "none"}, "has no effect, for task.template is none"),
    ],
)
def test_template_arguments_without_effect_are_refused(template, task, message):
    with pytest.raises(ValueError, match=message):
        Encoder(characters(template), TaskConfig(template_args={"enable_thinkng": True}, **task))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("enable_thinkin", r"does not use it, did you mean enable_thinking\? \(it takes enable_thinking\)"),
        ("thinking", "does not use it, did you mean enable_thinking"),
        *((name, r"does not use it: remove it \(it takes enable_t") for name in ("role", "loop", "raise_exception")),
        ("messages", "gspo gives it itself"),
    ],
)  # fmt: skip
def test_a_part_of_the_template_is_no_argument_of_it(name, message):
    with pytest.raises(ValueError, match=rf"task\.template_args\.{name}: .*{message}"):
        Encoder(characters(TEMPLATE), TaskConfig(template_args={name: False}))


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
