"""Chat messages -> turns of the policy, each stored with its tokens (calls.py).

The policy's earlier turns are not tokenized again: where a conversation continues a stored turn, the prompt tokens and
sampled tokens of that turn are the prefix of the new prompt. What follows them is the text by which the template's wording
of the whole conversation is longer than its wording up to that turn. If the history was edited, or the template now words
it differently, no stored turn matches, and the whole text is tokenized.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gspo.agents.calls import Call, Calls, digest, follow
from gspo.agents.tool_arguments import Tools, typed
from gspo.agents.tool_calls import CONVENTIONS, Malformed, UnknownConvention, call_ids, convention, harmony, in_channels
from gspo.data.chat_template import Encoder, decoded
from gspo.data.messages import Message, calls_of, content_of, templated
from gspo.interfaces import StreamingCompleter
from gspo.types import Prompt, Rollout, Sampling

logger = logging.getLogger(__name__)

DISTRIBUTION = ("temperature", "top_p", "top_k")


@dataclass(frozen=True)
class TurnOptions:
    """Sampling options of a turn; None: as in training. `stop` holds further strings that end the turn."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


class Encoded(NamedTuple):
    """A prompt: the text of its messages, and its tokens, in which earlier turns of the policy are as they were sampled."""

    text: str
    tokens: tuple[int, ...]


class TooLong(ValueError):
    """The messages leave no room in the context for a turn."""


class Chat:
    """The policy as a chat model.

    Args:
        sampling: Sampling parameters of training.
        context: Context length in tokens; None: no limit.

    Attributes:
        calls: Cache of the turns.
        malformed: Number of turns with a tool call that cannot be parsed.
    """

    def __init__(self, completer: StreamingCompleter, encoder: Encoder, sampling: Sampling, context: int | None) -> None:
        self.completer, self.encoder, self.sampling, self.context = completer, encoder, sampling, context
        self.calls, self.malformed = Calls(), 0
        template = encoder.template and encoder.tokenizer.get_chat_template(tools=[{}])  # it may have one for tools
        self._parse = convention(template, encoder.tokenizer)
        self._count = itertools.count()

    async def turn(
        self, messages: Sequence[Message], tools: Tools = (), options: TurnOptions = TurnOptions(), n: int = 1, id: str = ""
    ) -> list[Call]:
        """Samples `n` turns. Raises ValueError if the messages cannot be read.

        Args:
            tools: The tools that the policy may call, as JSON schemas.
            id: Prefix of their ids `id`-0, `id`-1 ...; empty: call-turn-NUMBER. Some templates show the model the ids of its
                tool calls, so reproducible sampling needs the same ids.
        """
        asked = self.encoded(messages, tools)
        if not asked.tokens:
            raise ValueError("the prompt has no tokens to continue from")
        number = next(self._count)
        id = id or f"call-turn-{number}"
        sampling = self._sampling(options, len(asked.tokens))
        prompt = Prompt(id, list(messages), asked.tokens)
        assert isinstance(self.sampling.seed, int)
        seed = [self.sampling.seed, number if options.seed is None else options.seed]
        seeds = np.random.SeedSequence(seed).generate_state(n).tolist()
        jobs = [self.completer.begin(Rollout.begun(prompt), call_seed, sampling) for call_seed in seeds]
        try:
            rollouts = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        except BaseException:  # the client disconnected, or the sampler failed
            for job in jobs:
                job.cancel()
            raise
        thinks = opens_thinking(asked.text, messages[-1])
        calls = [self._call(f"{id}-{i}", rollout, tools, sampling, thinks) for i, rollout in enumerate(rollouts)]
        self.calls.add(*calls)
        return calls

    def encoded(self, messages: Sequence[Message], tools: Tools = ()) -> Encoded:
        """The policy's prompt."""
        if self.encoder.template is None:
            raise ValueError(
                "the model's tokenizer has no chat template (or task.template is none): set tokenizer.chat_template"
            )
        if not messages:
            raise ValueError("messages: at least one is needed")
        if tools and self._parse is None:
            raise UnknownConvention(
                f"tools: the chat template of {self.encoder.tokenizer.name_or_path!r} has them called in a way that is not "
                f"known, so no call would be seen. Known are templates with one of {', '.join(CONVENTIONS)}, and Llama's. "
                "Set tokenizer.chat_template to one of these, set tokenizer.response_template, or offer no tools"
            )
        traces = list(itertools.accumulate(messages, follow, initial=b""))[1:]
        stored = {i: self.calls.ending(traces[i]) for i, one in enumerate(messages) if one["role"] == "assistant"}
        plain = [*map(templated, messages)]
        readable = [self._readable(plain, i, stored.get(i)) for i in range(len(plain))]
        text = self._text(readable, tools)
        names = [str(tool.get("function", tool).get("name")) for tool in tools]
        if not stored and (unseen := [name for name in names if name not in text]):
            _warn_unseen(", ".join(unseen))
        offered = digest(tools)
        for at, calls in reversed(stored.items()):
            for call in sorted(calls, key=lambda call: _ids(call.message) != _ids(messages[at])):
                asked = call.rollout.prompt.messages
                if call.tools == offered and not isinstance(asked, str) and [*map(templated, asked)] == plain[:at]:
                    tokens = self._continued(call, readable[: at + 1], text, tools)
                    if tokens:
                        return Encoded(text, tokens)
        return Encoded(text, tuple(self.encoder.bare(text)))

    def _readable(self, messages: Sequence[Message], i: int, calls: Sequence[Call] | None) -> Message:
        """Message `i` as the template reads it. calls: the stored turns that it may be."""
        readable, before = dict(messages[i]), messages[i - 1] if i else {}
        uncalled = before.get("role") == "assistant" and "tool_calls" not in before
        if readable["role"] == "tool" and uncalled and not self.encoder.takes_uncalled:
            readable["role"] = "user"
        thoughts, ended, _ = readable["content"].partition("</think>")
        if readable["role"] == "assistant" and ended and "<think>" not in thoughts:  # the prompt of the turn had it
            readable["content"] = self.encoder.opening + readable["content"]
        if calls and "tool_calls" in readable and not self.encoder.shows_calls:
            return {"role": "assistant", "content": calls[0].words}
        return readable

    def _continued(self, call: Call, upto: Sequence[Message], text: str, tools: Tools) -> tuple[int, ...]:
        """Tokens of the prompt `text`, whose messages `upto` end with a stored turn; none if the template words these in
        another way on their own, or leaves out some of the turn.
        """
        tokens, ended = call.rollout.tokens.tolist(), call.rollout.stop == "eos"
        whole = ended or "tool_calls" in upto[-1]  # a call is whole even if what came after it was cut off
        try:
            before = self._text(upto, tools, whole)
        except ValueError:  # a template may refuse to end there
            return ()
        if whole:
            ends = [self.decode([end]) for end in (tokens[-1:] if ended else self.sampling.stop_ids)]
            parts = [before.rpartition(end) for end in ends]
            words, _, after = max(parts, key=lambda part: len(part[0]), default=("", "", before))
            before = before if after.strip() else words  # some templates end a turn only with what begins the next message
        if not text.startswith(before) or upto[-1]["content"].strip() not in before:
            return ()
        following = self.encoder.bare(text[len(before) :])
        if not ended:
            return (*tokens, *following)
        return (*tokens, *following[1:]) if following[:1] == tokens[-1:] else ()

    def _text(self, messages: Sequence[Message], tools: Tools, ended: bool = False) -> str:
        """ended: whether a turn of the policy at the end is over; else it is to be continued."""
        begun = messages[-1].get("role") == "assistant"
        options = {"tools": list(tools)} if tools else {}
        continued = begun and not ended
        return self.encoder.render(messages, add_generation_prompt=not begun, continue_final_message=continued, **options)

    def _sampling(self, options: TurnOptions, size: int) -> Sampling:
        """Sampling parameters for a prompt of `size` tokens. Raises TooLong if it leaves no room for a turn."""
        max_new_tokens = options.max_tokens or self.sampling.max_new_tokens
        if self.context is not None:
            if size >= self.context:
                raise TooLong(f"the messages have {size} tokens; the model reads at most {self.context}: shorten them")
            max_new_tokens = min(max_new_tokens, self.context - size)
        changed = {name: getattr(options, name) for name in DISTRIBUTION if getattr(options, name) is not None}
        stop = (*self.sampling.stop, *options.stop)
        return replace(self.sampling, max_new_tokens=max_new_tokens, stop=stop, seed=0, **changed)

    def _call(self, id: str, rollout: Rollout, tools: Tools, sampling: Sampling, thinks: bool) -> Call:
        sampled = rollout.tokens[rollout.sampled].tolist()
        words = self.decode(sampled[:-1] if rollout.stop == "eos" else sampled)
        content = words
        for end in sampling.stop if rollout.stop == "stop" else ():
            content = content.partition(end)[0]
        message = self._message(id, content, tools, thinks)
        used, trained = ({name: getattr(one, name) for name in DISTRIBUTION} for one in (sampling, self.sampling))
        untrainable = ", ".join(f"sampled at {name} {value:g}" for name, value in used.items() if value != trained[name])
        return Call(id, message, digest(tools), words, rollout, untrainable)

    def _message(self, id: str, content: str, tools: Tools, thinks: bool) -> Message:
        """A turn as a chat message, with its tool calls parsed. thinks: whether it begins inside an open <think>."""
        message: Message = {"role": "assistant", "content": content}
        if tools:
            assert self._parse is not None  # else `encoded` has rejected the tools
            try:
                beside, parsed = self._parse(content, thinks)
                parsed = typed(parsed, tools)
                texts = [json.dumps(arguments) for _, arguments in parsed]
                message["content"] = beside
                if parsed:
                    message["tool_calls"] = [
                        {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
                        for one, (name, _), arguments in zip(call_ids(id, content, len(parsed)), parsed, texts)
                    ]
            except (Malformed, RecursionError) as error:  # RecursionError: a thousand opening brackets
                self.malformed += 1
                message["malformed"] = str(error)
        return message | in_channels(content, "tool_calls" in message) if self._parse is harmony else message

    def decode(self, tokens: list[int]) -> str:
        """The text of these tokens, special tokens included."""
        return decoded(self.encoder.tokenizer, tokens)


@cache
def _warn_unseen(names: str) -> None:
    """Warns of these tools, once."""
    logger.warning(
        f"the chat template does not show the tools {names}: a model that was not trained on them cannot know of them. Set "
        "a tokenizer.chat_template that shows tools (some do only beside a system message)"
    )


def opens_thinking(text: str, last: Message) -> bool:
    """Whether a prompt ends inside an open <think>, of the template or of the unfinished turn that it ends with."""
    begun = content_of(last) if last["role"] == "assistant" else ""
    return text.rstrip().endswith("<think>") or "<think>" in begun.rpartition("</think>")[2]


def _ids(message: Message) -> list[Any]:
    """The ids of a message's tool calls."""
    return [call.get("id") for call in calls_of(message)]
