"""Encodes a row's prompt as the token ids that the model reads."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from gspo.config.rollout import TaskConfig
from gspo.config.suggestions import nearest
from gspo.data.messages import Message, check_messages, templated

logger = logging.getLogger(__name__)

_GIVEN = ("messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize")
_MARK = "probe of the system message"  # without what a template might escape
_NOW = "strftime_now"


@cache
def arguments_of(template: str) -> set[str]:
    """The variables that a chat template expects from its caller. Raises ValueError if it is not valid Jinja."""
    from jinja2 import TemplateError, meta

    try:
        return meta.find_undeclared_variables(_compiled(template).environment.parse(template))
    except TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from None


def _compiled(template: str) -> Any:
    """The Jinja template as transformers compiles and keeps it, with its own functions and blocks."""
    from transformers.utils import chat_template_utils

    return chat_template_utils._compile_jinja_template(template)


def writes_date(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template writes the date."""
    return _NOW in str(getattr(tokenizer, "chat_template", None))


def fix_date(tokenizer: Any, date: str | None, tools: Any = None) -> None:
    """Has a tokenizer's chat template write this day (ISO 8601; None: today), at midnight."""
    if date is not None and writes_date(tokenizer):
        _compiled(tokenizer.get_chat_template(tools=tools)).globals[_NOW] = datetime.datetime.fromisoformat(date).strftime


class Encoder:
    """Encodes prompts and completions as token ids with a transformers tokenizer.

    With a chat template (and `task.template = "auto"`), a string becomes one user message and the template is applied.
    Without one, the text is encoded as is. `task.system` comes first either way: in the first user message, if the template
    takes no system message. `default_system` stands for `task.system = "auto"` before templated prompts, except those that
    have a system message of their own or mention the tag <answer>.
    """

    def __init__(self, tokenizer: Any, task: TaskConfig, default_system: str = "") -> None:
        """Raises ValueError when `task.template_args` would have no effect."""
        self.tokenizer = tokenizer
        self.system = "" if task.system == "auto" else task.system
        self.default_system = default_system if task.system == "auto" else ""
        self.defaulted = 0
        """Prompts that got the default system message."""
        self.args, self.date = task.template_args, task.date or datetime.date.today().isoformat()
        self._special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._read_whole: set[Any] = set()  # shapes of conversations that the template is known to show whole
        template = tokenizer.get_chat_template() if getattr(tokenizer, "chat_template", None) else None
        self.template: str | None = template if task.template == "auto" else None
        for name in self.args:
            if self.template is None:
                why = "task.template is none" if template else "the tokenizer has no chat template"
                raise ValueError(f"task.template_args.{name}: has no effect, for {why}; remove it")
            if name in _GIVEN:
                raise ValueError(f"task.template_args.{name}: gspo gives it itself; remove it")
            free = sorted(arguments_of(self.template).difference(_GIVEN, tokenizer.special_tokens_map))
            if name not in free:
                remedy = f"{nearest(name, free) or ': remove it'} (it takes {', '.join(free) or 'no arguments'})"
                raise ValueError(f"task.template_args.{name}: the chat template does not use it{remedy}")

    def prompt(self, prompt: str | list[dict[str, Any]], tools: Sequence[Any] = ()) -> tuple[tuple[int, ...], bool]:
        """Token ids of a prompt, and whether it ends inside an open <think>. tools: JSON schemas for the template. Raises
        ValueError with the remedy.
        """
        if not isinstance(prompt, str):
            check_messages(prompt)
        if self.template is not None:
            if isinstance(prompt, str) and (found := next((one for one in self._special if one in prompt), "")):
                why = f"a prompt has the special token {found} in its text, and goes into the chat template"
                logger.warning(f'{why}: if prompts are rendered already, set task.template = "none"')
                self._special = []  # one warning is enough
            return self._chat(_as_messages(prompt), {"tools": list(tools)} if tools else {})
        if not isinstance(prompt, str):
            raise ValueError(
                "is a list of chat messages, but no chat template is in use: give the prompt as a string, "
                'or use a tokenizer with a chat template (and task.template = "auto")'
            )
        text = f"{self.system}\n\n{prompt}" if self.system else prompt
        return self.plain(text), _opens_thinking(text)

    def _chat(self, messages: list[Message], options: dict[str, Any]) -> tuple[tuple[int, ...], bool]:
        if self.system and messages[0]["role"] == "system":
            raise ValueError("has a system message of its own, and task.system is set: unset one of them")
        system = self.system or self._default(messages)
        self.defaulted += not self.system and bool(system)
        if system:
            messages = _begun_with(system, messages, self.takes_system)
        if messages[-1].get("tool_calls"):
            raise ValueError("ends with a tool call: add the message with what the tool returned")
        begun = messages[-1]["role"] == "assistant"  # a partial completion for the model to continue
        text = self.render(messages, add_generation_prompt=not begun, continue_final_message=begun, **options)
        thinking = _opens_thinking(text)
        if thinking:  # the tag may only be mentioned in an instruction: check the start of the completion
            start = messages[-1]["content"] if begun else text.removeprefix(self.render(messages, **options))
            thinking = _opens_thinking(start)
        return tuple(self.bare(text)), thinking  # the template has already added BOS

    def _default(self, messages: list[dict[str, Any]]) -> str:
        """The default system message if these messages get it, else ""."""
        own = messages[0]["role"] == "system" or any("<answer>" in message["content"] for message in messages)
        return "" if own else self.default_system

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Messages, as `templated` makes them, rendered with the chat template. Raises ValueError if it refuses or omits
        one.
        """
        try:
            text = self._apply(messages, **options)
        except Exception as error:  # templates raise anything
            raise ValueError(f"the chat template refuses it: {error}") from error
        self._check_whole(messages, options)
        return text

    def _check_whole(self, messages: Sequence[Message], options: dict[str, Any]) -> None:
        """Raises ValueError for a message that the template leaves out, found by marks in place of its words. Words beside
        a tool call may be left out.
        """
        shape = tuple((one["role"], bool(one["content"]), len(one.get("tool_calls", ()))) for one in messages)
        if (shape, *options) in self._read_whole:
            return
        marked, marks = [], []
        for i, message in enumerate(messages):
            mark, calls = f"probe{i}probe", list(message.get("tool_calls", ()))
            if message["content"]:
                message = message | {"content": mark}
            for j, call in enumerate(calls):
                if str(call.get("id")).startswith(f"functions.{call['function'].get('name')}:"):
                    call = call | {"id": f"functions.{mark}{j}:{j}"}  # Kimi K2 shows the name in the id alone
                calls[j] = call | {"function": {"name": f"{mark}{j}", "arguments": {"probe": f"{j}{mark}"}}}
                marks += [(i, f"{mark}{j}"), (i, f"{j}{mark}")]
            if message["content"] and not calls:
                marks.append((i, mark))
            marked.append(message | ({"tool_calls": calls} if calls else {}))
        try:
            shown = self._apply(marked, **options)
        except Exception:  # it may check what it shows
            shown = " ".join(mark for _, mark in marks)
        for i, mark in marks:
            if mark not in shown.lower():  # a template may write all in capitals
                what = "the tool calls of message" if messages[i].get("tool_calls") else "message"
                raise ValueError(
                    f"{what} {i} (role {messages[i]['role']!r}) would not be read, because the chat template leaves it out: "
                    "give its words in a message that the template shows, or set another chat template"
                )
        self._read_whole.add((shape, *options))

    def _apply(self, messages: Sequence[Message], **options: Any) -> str:
        return self._rendered([self._readable(message) for message in messages], **options)

    def _rendered(self, messages: Sequence[Message], **options: Any) -> str:
        fix_date(self.tokenizer, self.date, options.get("tools"))
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **options, **self.args))

    def _readable(self, message: Message) -> dict[str, Any]:
        """A message as this template reads it: it may drop content that is a string, or take a call's arguments for text."""
        if not self._reads_text:
            message = message | {"content": [{"type": "text", "text": message["content"]}]}
        if "tool_calls" in message and not self._reads_objects:
            message = message | {"tool_calls": [_in_json(call) for call in message["tool_calls"]]}
        return message

    @cached_property
    def _reads_text(self) -> bool:
        """Whether the template reads content that is a string, and not only a list of parts."""
        parts = [{"type": "text", "text": _MARK}]
        return self._shows({"role": "user", "content": _MARK}) or not self._shows({"role": "user", "content": parts})

    @cached_property
    def _reads_objects(self) -> bool:
        """Whether the template reads arguments of calls that are objects, and not only their JSON."""
        as_object, as_json = self._calls_shown
        return as_object or not as_json

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the template shows the tool calls of a message."""
        return any(self._calls_shown)

    @cached_property
    def _calls_shown(self) -> tuple[bool, bool]:
        """Whether the template shows the arguments of a call that are an object, and those that are JSON."""
        call = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {"a": _MARK}}}
        user = self._readable({"role": "user", "content": ""})
        turns = [
            self._readable({"role": "assistant", "content": ""}) | {"tool_calls": [one]} for one in (call, _in_json(call))
        ]
        return self._shows(user, turns[0]), self._shows(user, turns[1])

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template shows a system message."""
        return self._shows(*map(self._readable, ({"role": "system", "content": _MARK}, {"role": "user", "content": "?"})))

    @cached_property
    def takes_uncalled(self) -> bool:
        """Whether the template shows a tool's message after a turn without a call, such as one that could not be read."""
        contents = {"user": "?", "assistant": "a", "tool": _MARK}
        return self._shows(*(self._readable({"role": role, "content": text}) for role, text in contents.items()))

    @cached_property
    def opening(self) -> str:
        """The <think> with which the template begins a turn, and the space after it; empty if it begins with none."""
        try:
            text = self._apply([{"role": "user", "content": "?"}], add_generation_prompt=True)
        except Exception:  # templates raise anything
            return ""
        _, tag, space = text.rpartition("<think>")
        return "" if space.strip() else tag + space

    def _shows(self, *messages: dict[str, Any]) -> bool:
        """Whether the template shows the mark in these messages, and not as a list of parts that Python prints."""
        try:
            shown = self._rendered(messages)
        except Exception:  # templates raise anything
            return False
        return _MARK in shown.lower() and "'text'" not in shown

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
            return tuple(bare)  # no second BOS
        ids = self.tokenizer(text)["input_ids"]
        if eos is not None and ids[-1:] == [eos] and bare[-1:] != [eos]:
            ids = ids[:-1]  # drop EOS: a completion follows
        return tuple(ids)

    def completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion to imitate, ending with EOS. Raises ValueError if the tokenizer has no EOS."""
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise ValueError("the tokenizer has no EOS token, so a completion cannot end: set tokenizer.eos_token")
        ids = self.bare(text)
        return tuple(ids) if ids[-1:] == [eos] else (*ids, eos)


def decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens, with every special token and space as it is."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _as_messages(prompt: str | list[dict[str, Any]]) -> list[Message]:
    """A prompt as chat templates read it."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*map(templated, prompt)]


def _opens_thinking(text: str) -> bool:
    return "<think>" in text.rpartition("</think>")[2]


def _begun_with(system: str, messages: list[Message], as_message: bool) -> list[Message]:
    """The messages with a system message before them, or with its text before that of the first user message."""
    if as_message:
        return [{"role": "system", "content": system}, *messages]
    for i, message in enumerate(messages):
        if message["role"] == "user":
            return [*messages[:i], message | {"content": f"{system}\n\n{message['content']}"}, *messages[i + 1 :]]
    raise ValueError("has no user message to put task.system into, and the chat template takes no system message")


def _in_json(call: Message) -> Message:
    """A tool call with its arguments as JSON text."""
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
