"""Chat messages -> turns of the policy, each stored with its tokens (calls.py).

The policy's earlier turns are not tokenized again: where a conversation continues a stored turn, the prompt tokens and
sampled tokens of that turn are the prefix of the new prompt. If the history was edited, or the template words it
differently, no stored turn matches, and the whole text is tokenized.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gspo.agents.calls import Call, Calls, follow
from gspo.agents.tool_arguments import Tools, typed
from gspo.agents.tool_calls import CONVENTIONS, Malformed, UnknownConvention, convention
from gspo.data.chat_template import Encoder, decoded
from gspo.data.messages import Message, templated
from gspo.interfaces import StreamingCompleter
from gspo.types import Prompt, Rollout, Sampling

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
    """A prompt. `rendered`: its messages, with earlier turns of the policy worded as they were sampled."""

    messages: Sequence[Message]
    rendered: Sequence[Message]
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
        self._parse = convention(encoder.template, encoder.tokenizer)
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
        calls = [self._call(f"{id}-{i}", asked, rollout, tools, sampling) for i, rollout in enumerate(rollouts)]
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
        readable = [templated(message) for message in messages]
        traces = list(itertools.accumulate(messages, follow, initial=b""))[1:]
        for at in reversed([i for i, message in enumerate(messages) if message.get("role") == "assistant"]):
            for call in self.calls.ending(traces[at]):
                rendered = [*call.rendered, {"role": "assistant", "content": call.words}, *readable[at + 1 :]]
                text = self._text(rendered, tools)
                if text.startswith(call.text):
                    following = self.encoder.bare(text[len(call.text) :])
                    return Encoded(messages, rendered, text, (*call.rollout.tokens.tolist(), *following))
        text = self._text(readable, tools)
        return Encoded(messages, readable, text, tuple(self.encoder.bare(text)))

    def _text(self, messages: Sequence[Message], tools: Tools) -> str:
        begun = messages[-1].get("role") == "assistant"  # an unfinished turn to continue
        options = {"tools": list(tools)} if tools else {}
        return self.encoder.render(messages, add_generation_prompt=not begun, continue_final_message=begun, **options)

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

    def _call(self, id: str, asked: Encoded, rollout: Rollout, tools: Tools, sampling: Sampling) -> Call:
        sampled = rollout.tokens[rollout.sampled].tolist()
        words = self.decode(sampled[:-1] if rollout.stop == "eos" else sampled)
        content = words
        for end in sampling.stop if rollout.stop == "stop" else ():
            content = content.partition(end)[0]
        message = {"role": "assistant", "content": content}
        if tools:
            message = self._message(id, content, tools, _opens_thinking(asked))
        used, trained = ({name: getattr(one, name) for name in DISTRIBUTION} for one in (sampling, self.sampling))
        untrainable = ", ".join(f"sampled at {name} {value:g}" for name, value in used.items() if value != trained[name])
        sampled_text = self.decode(sampled)
        return Call(id, list(asked.messages), message, asked.rendered, asked.text, sampled_text, words, rollout, untrainable)

    def _message(self, id: str, content: str, tools: Tools, thinks: bool) -> Message:
        """A turn as a chat message, with its tool calls parsed. thinks: whether it begins inside an open <think>."""
        assert self._parse is not None  # else `encoded` has rejected the tools
        try:
            beside, parsed = self._parse(content, thinks)
            parsed = typed(parsed, tools)
            texts = [json.dumps(arguments) for _, arguments in parsed]
        except (Malformed, RecursionError) as error:  # RecursionError: a thousand opening brackets
            self.malformed += 1
            return {"role": "assistant", "content": content, "malformed": str(error)}
        calls = [
            {"id": f"{id}-tool-{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, ((name, _), arguments) in enumerate(zip(parsed, texts))
        ]
        return {"role": "assistant", "content": beside} | ({"tool_calls": calls} if calls else {})

    def decode(self, tokens: list[int]) -> str:
        """The text of these tokens, special tokens included."""
        return decoded(self.encoder.tokenizer, tokens)


def _opens_thinking(asked: Encoded) -> bool:
    """Whether a prompt ends inside an open <think>, of the template or of the unfinished turn that it ends with."""
    last = asked.rendered[-1]
    begun = str(last["content"]) if last["role"] == "assistant" else ""
    return asked.text.rstrip().endswith("<think>") or "<think>" in begun.rpartition("</think>")[2]
