"""Encodes a row's prompt as the token ids that the model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from gspo.config.rollout import TaskConfig
from gspo.config.suggestions import nearest
from gspo.config.values import type_of
from gspo.data.media import is_media

_ALONE = (
    "the policy reads and is trained on text alone, whatever its model can read. Leave such parts out, or the rows that need"
    " them"
)

_GIVEN = ("messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize")
_MARK = "<<<the system message>>>"
_GLOBALS = ("raise_exception", "strftime_now")  # functions that transformers adds to Jinja's


def arguments_of(template: str) -> set[str]:
    """The variables that a chat template expects from its caller. Raises ValueError if it is not valid Jinja."""
    from jinja2 import Environment, TemplateError, meta
    from jinja2.ext import Extension

    class Generation(Extension):
        """The block with which transformers marks the assistant's output."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(extensions=["jinja2.ext.loopcontrols", Generation])
    environment.globals.update(dict.fromkeys(_GLOBALS))
    try:
        return meta.find_undeclared_variables(environment.parse(template))
    except TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from None


class Encoder:
    """Encodes prompts and completions as token ids with a transformers tokenizer.

    With a chat template (and `task.template = "auto"`), a string becomes one user message and the template is applied.
    Without one, the text is encoded as is. `task.system` comes first either way.

    Args:
        default_system: System message for `task.system = "auto"`. It is put before templated prompts, except those that have
            a system message of their own or mention the tag <answer>.
    """

    def __init__(self, tokenizer: Any, task: TaskConfig, default_system: str = "") -> None:
        """Raises ValueError when `task.template_args` would have no effect."""
        self.tokenizer = tokenizer
        self.system = "" if task.system == "auto" else task.system
        self.default_system = default_system if task.system == "auto" else ""
        self.defaulted = 0
        """Prompts that got the default system message."""
        self.args = task.template_args
        template = tokenizer.get_chat_template() if getattr(tokenizer, "chat_template", None) else None
        self.template: str | None = template if task.template == "auto" else None
        for name in self.args:
            if self.template is None:
                why = "task.template is none" if template else "the tokenizer has no chat template"
                raise ValueError(f"task.template_args.{name}: has no effect, for {why}; remove it")
            if name in _GIVEN:
                raise ValueError(f"task.template_args.{name}: gspo gives it itself; remove it")
            if name not in (used := arguments_of(self.template)):
                free = sorted(used.difference(_GIVEN, tokenizer.special_tokens_map))
                remedy = f"{nearest(name, free) or ': remove it'} (it takes {', '.join(free) or 'no arguments'})"
                raise ValueError(f"task.template_args.{name}: the chat template does not use it{remedy}")

    def prompt(self, prompt: str | list[dict[str, Any]]) -> tuple[tuple[int, ...], bool]:
        """Token ids of a prompt, and whether it ends inside an open <think>.

        Raises ValueError with the remedy if it cannot be encoded.
        """
        if not isinstance(prompt, str):
            check_messages(prompt)
        if self.template is not None:
            return self._chat([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        if not isinstance(prompt, str):
            raise ValueError(
                "is a list of chat messages, but no chat template is in use: give the prompt as a string, "
                'or use a tokenizer with a chat template (and task.template = "auto")'
            )
        text = f"{self.system}\n\n{prompt}" if self.system else prompt
        return self.plain(text), _opens_thinking(text)

    def _chat(self, messages: list[dict[str, Any]]) -> tuple[tuple[int, ...], bool]:
        if self.system and messages[0]["role"] == "system":
            raise ValueError("has a system message of its own, and task.system is set: unset one of them")
        system = self.system or self._default(messages)
        self.defaulted += not self.system and bool(system)
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        begun = messages[-1]["role"] == "assistant"  # a partial completion for the model to continue
        text = self.render(messages, add_generation_prompt=not begun, continue_final_message=begun)
        thinking = _opens_thinking(text)
        if thinking:  # the tag may only be mentioned in an instruction: check the start of the completion
            start = text_of(messages[-1]["content"]) if begun else text.removeprefix(self.render(messages))
            thinking = _opens_thinking(start)
        return tuple(self.bare(text)), thinking  # the template has already added BOS

    def _default(self, messages: list[dict[str, Any]]) -> str:
        """The default system message if these messages get it, else ""."""
        own = messages[0]["role"] == "system" or any("<answer>" in str(message["content"]) for message in messages)
        return "" if own else self.default_system

    def added_system(self, prompt: str | list[dict[str, Any]]) -> str:
        """The system message that the chat template adds to a prompt of its own accord; "" if it adds none.

        It is what stands where the system message of the same prompt would be, between the same words before and after.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if self.template is None or self.system or messages[0]["role"] == "system" or self._default(messages):
            return ""
        try:
            before, given, after = self.render([{"role": "system", "content": _MARK}, *messages]).partition(_MARK)
            text = self.render(messages)
        except ValueError:  # a template that takes no system message
            return ""
        if not given or not text.startswith(before) or not text[len(before) :].endswith(after):
            return ""
        added = text[len(before) : len(text) - len(after)].strip()
        return added or (before.strip() if "system" in before else "")

    def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The messages rendered with the chat template. Raises ValueError with the template's own complaint."""
        try:
            return self._apply([self._readable(message) for message in messages], **options)
        except Exception as error:  # templates raise anything
            raise ValueError(f"the chat template refuses it: {error}") from error

    def _apply(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, **options, **self.args))

    def _readable(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with its content in the form that the template reads: a text-only template prints a list of parts as a
        Python list, and one for images may drop plain text.
        """
        content = message.get("content")
        if isinstance(content, list) and not self._reads[1]:
            return message | {"content": text_of(content)}
        if isinstance(content, str) and not self._reads[0]:
            return message | {"content": [{"type": "text", "text": content}]}
        return message

    @cached_property
    def _reads(self) -> tuple[bool, bool]:
        """Whether the template reads content that is a string, and content that is a list of parts; at least one is true."""
        reads = []
        for content in ("probe", [{"type": "text", "text": "probe"}]):
            try:
                shown = self._apply([{"role": "user", "content": content}])
            except Exception:  # templates raise anything
                shown = ""
            reads.append("probe" in shown and "'text'" not in shown)
        return reads[0] or not reads[1], reads[1]

    def bare(self, text: str) -> list[int]:
        """Token ids without special tokens. Raises ValueError for text that the tokenizer has no tokens for."""
        try:
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        except Exception as error:  # a plain Exception if the tokenizer has no unknown token
            raise ValueError(f"cannot be encoded by the tokenizer ({error}): {text!r:.80}") from error

    def plain(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that a completion will follow."""
        bare = self.bare(text)
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if bos is not None and bare[:1] == [bos]:
            return tuple(bare)
        ids = self.tokenizer(text)["input_ids"]
        if eos is not None and ids[-1:] == [eos] and bare[-1:] != [eos]:
            ids = ids[:-1]  # drop EOS: a completion follows
        return tuple(ids)

    def completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion to imitate, ending with EOS. Raises ValueError if the tokenizer has no EOS."""
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise ValueError("the tokenizer has no EOS token, so a completion cannot end: set tokenizer.eos_token")
        try:
            ids = self.bare(text)
        except ValueError as error:
            raise ValueError(f"the completion {error}") from error
        return tuple(ids) if ids[-1:] == [eos] else (*ids, eos)


def decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens, with every special token and space as it is."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _opens_thinking(text: str) -> bool:
    return "<think>" in text.rpartition("</think>")[2]


def check_messages(prompt: Any) -> None:
    """Raises ValueError unless `prompt` is a non-empty list of messages with a role and text content."""
    if not isinstance(prompt, list):
        raise ValueError(f"is {type_of(prompt)}; expected a string or a list of chat messages")
    if not prompt:
        raise ValueError("is an empty list of messages")
    for i, message in enumerate(prompt):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f"message {i} is {message!r:.80}; expected {{'role': ..., 'content': ...}}")
        try:
            check_text_alone(message)
            text_of(message["content"])
        except ValueError as error:
            raise ValueError(f"message {i} {error}") from None


def check_text_alone(message: Mapping[str, Any]) -> None:
    """Raises ValueError for a message with an image or sound next to its content, where some templates read it."""
    for name, value in message.items():
        if name not in ("content", "tool_calls") and is_media(str(name), value):
            raise ValueError(f"has {name!r}, which is no text: {_ALONE}")


def text_of(content: Any) -> str:
    """The text of a message's content: a string, the text parts of a list, or none. Raises ValueError for a part that is not
    text, such as an image.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"has {type_of(content)} for its content: a text is expected")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"has a part that is no text, {part!r:.80}: {_ALONE}")
        if any(is_media(str(name), value) for name, value in part.items() if name != "text"):
            raise ValueError(f"has a part with more than text, {part!r:.80}: {_ALONE}")
    return "".join(part["text"] for part in content)
