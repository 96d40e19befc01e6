"""Chat messages -> the policy's turns, each kept with its tokens (calls.py).

What the policy said before is not tokenised again: where a conversation goes on from a turn of its own, the tokens that
it read and sampled then are the beginning of what it reads now. Where the history was edited, or the template shows it in
other words, there is no such turn, and the text as it stands is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gspo.agents.calls import TEXT, Call, Calls, Message, content_of, follow
from gspo.agents.tool_arguments import Tools, typed
from gspo.agents.tool_calls import CONVENTIONS, LLAMA, Malformed, UnknownConvention, convention
from gspo.data.chat_template import Encoder
from gspo.interfaces import StreamingCompleter
from gspo.types import Prompt, Rollout, Sampling


@dataclass(frozen=True)
class TurnOptions:
    """How a turn is sampled; None: as in training. stop: strings that end it."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


class TooLong(ValueError):
    """Messages that leave no room for a turn."""


class Chat:
    """The policy as one who chats.

    speaker: whoever samples. encoder: of the model's chat template. sampling: as in training. context: most tokens that the
    model reads, if it has a limit. calls: where turns are kept. name: of turns that nobody else names; None: a random one.
    Some templates show it to the model (tool calls have ids), so what is to be repeated needs the same.
    """

    def __init__(
        self,
        speaker: StreamingCompleter,
        encoder: Encoder,
        sampling: Sampling,
        context: int | None,
        calls: Calls | None = None,
        name: str | None = None,
    ) -> None:
        self.speaker, self.encoder, self.sampling, self.context = speaker, encoder, sampling, context
        self.calls = Calls() if calls is None else calls
        self.malformed = 0  # turns that set out to call a tool and did not say how
        self._parse = convention(encoder.template, encoder.tokenizer)
        self._run, self._count = name or secrets.token_hex(4), itertools.count()

    async def turn(
        self, messages: Sequence[Message], tools: Tools = (), options: TurnOptions = TurnOptions(), n: int = 1, id: str = ""
    ) -> list[Call]:
        """`n` turns. id: theirs are `id`-0, `id`-1 ... Raises ValueError for messages that cannot be read."""
        text, tokens, rendered = self.encoded(messages, tools)
        return await self._ask(messages, rendered, text, tokens, options, n, id, tools)

    async def complete(self, text: str, options: TurnOptions = TurnOptions(), n: int = 1, id: str = "") -> list[Call]:
        """`n` continuations of a text."""
        messages = [{"role": TEXT, "content": text}]
        earlier = self.calls.begun(text)
        tokens = self.encoder.plain(text) if earlier is None else self._tokens(earlier, text)
        return await self._ask(messages, messages, text, tokens, options, n, id)

    def encoded(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, tuple[int, ...], Sequence[Message]]:
        """What the policy reads: the text, its tokens, and the messages in the words that were sampled."""
        if self.encoder.template is None:
            raise ValueError(
                "the model's tokenizer has no chat template (or task.template is none): ask for completions of a text, or "
                "set tokenizer.chat_template"
            )
        if not messages:
            raise ValueError("messages: at least one is needed")
        if tools and self._parse is None:
            name = self.encoder.tokenizer.name_or_path
            marks = ", ".join([*(mark for mark, _ in CONVENTIONS), f"'{LLAMA}' with arguments after it"])
            raise UnknownConvention(
                f"tools: the chat template of {name!r} has them called in a way that gspo does not know, so no call would "
                f"be seen. It knows templates with {marks}: set tokenizer.chat_template to such a one, set "
                "tokenizer.response_template, or offer no tools"
            )
        readable = [templated(message) for message in messages]
        traces = list(itertools.accumulate(messages, follow, initial=b""))[1:]
        for at in reversed([i for i, message in enumerate(messages) if message.get("role") == "assistant"]):
            for call in self.calls.ending(traces[at]):
                rendered = [*call.rendered, {"role": "assistant", "content": call.words}, *readable[at + 1 :]]
                text = self._text(rendered, tools)
                if text.startswith(call.prompt_text + call.sampled_text):
                    return text, self._tokens(call, text), rendered
        text = self._text(readable, tools)
        return text, tuple(self.encoder.bare(text)), readable

    def _text(self, messages: Sequence[Message], tools: Tools) -> str:
        begun = messages[-1].get("role") == "assistant"  # a turn that is to be carried on
        options = {"tools": list(tools)} if tools else {}
        return self.encoder.render(messages, add_generation_prompt=not begun, continue_final_message=begun, **options)

    def _tokens(self, call: Call, text: str) -> tuple[int, ...]:
        """Those of a call, and of what a text has beyond it."""
        return (*call.rollout.tokens.tolist(), *self.encoder.bare(text[len(call.prompt_text + call.sampled_text) :]))

    async def _ask(
        self,
        messages: Sequence[Message],
        rendered: Sequence[Message],
        text: str,
        tokens: tuple[int, ...],
        options: TurnOptions,
        n: int,
        id: str,
        tools: Tools = (),
    ) -> list[Call]:
        if not tokens:
            raise ValueError("the prompt has no tokens: there is nothing to go on from")
        number = next(self._count)
        id = id or f"call-{self._run}-{number}"
        sampling = self._sampling(options, len(tokens))
        prompt = Prompt(id, list(messages), tokens)
        seed = options.seed if options.seed is not None else number
        assert isinstance(self.sampling.seed, int)
        seeds = np.random.SeedSequence([self.sampling.seed, seed]).generate_state(n).tolist()
        jobs = [self.speaker.begin(Rollout.begun(prompt), call_seed, sampling) for call_seed in seeds]
        try:
            rollouts = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        except BaseException:  # whoever asked has gone, or the sampler is lost
            for job in jobs:
                job.cancel()
            raise
        calls = [
            self._call(f"{id}-{i}", messages, rendered, text, rollout, tools, sampling) for i, rollout in enumerate(rollouts)
        ]
        self.calls.add(*calls)
        return calls

    def _sampling(self, options: TurnOptions, size: int) -> Sampling:
        """Raises ValueError where the prompt leaves no room for a turn."""
        max_new_tokens = options.max_tokens or self.sampling.max_new_tokens
        if self.context is not None:
            if size >= self.context:
                raise TooLong(f"the messages have {size} tokens; the model reads at most {self.context}: shorten them")
            max_new_tokens = min(max_new_tokens, self.context - size)
        requested = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k")}
        changed = {name: value for name, value in requested.items() if value is not None}
        stop = (*self.sampling.stop, *options.stop)
        return replace(self.sampling, max_new_tokens=max_new_tokens, stop=stop, seed=0, **changed)

    def _call(
        self,
        id: str,
        messages: Sequence[Message],
        rendered: Sequence[Message],
        text: str,
        rollout: Rollout,
        tools: Tools,
        sampling: Sampling,
    ) -> Call:
        sampled = rollout.tokens[rollout.sampled].tolist()
        words = self.decode(sampled[:-1] if rollout.stop == "eos" else sampled)
        content = words
        for end in sampling.stop if rollout.stop == "stop" else ():
            content = content.partition(end)[0]
        message = self._message(id, content, tools) if tools else {"role": "assistant", "content": content}
        wrong = [
            f"{name} {getattr(sampling, name):g} (trained at {getattr(self.sampling, name):g})"
            for name in ("temperature", "top_p", "top_k")
            if getattr(sampling, name) != getattr(self.sampling, name)
        ]
        unfit = f"sampled at {', '.join(wrong)}" if wrong else ""
        return Call(id, list(messages), message, rendered, text, self.decode(sampled), words, rollout, unfit)

    def _message(self, id: str, content: str, tools: Tools) -> Message:
        """A turn with the tool calls that it makes."""
        assert self._parse is not None  # or the tools were refused
        try:
            beside, parsed = self._parse(content)
            parsed = typed(parsed, tools)
            texts = [json.dumps(arguments) for _, arguments in parsed]
        except (Malformed, RecursionError) as error:  # also a thousand opening brackets
            self.malformed += 1
            return {"role": "assistant", "content": content, "malformed": str(error)}
        calls = [
            {"id": f"{id}-tool-{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, ((name, _), arguments) in enumerate(zip(parsed, texts))
        ]
        return {"role": "assistant", "content": beside} | ({"tool_calls": calls} if calls else {})

    def decode(self, tokens: list[int]) -> str:
        """Their text, special tokens included."""
        return str(self.encoder.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def templated(message: Message) -> Message:
    """A message as chat templates read it: its content a string, the arguments of tool calls an object. Raises ValueError
    for one without a role.
    """
    if not isinstance(message.get("role"), str):
        raise ValueError(f"messages: one has no role: {message!r:.80}")
    readable = {name: message[name] for name in ("role", "name", "tool_call_id", "reasoning_content") if message.get(name)}
    readable["content"] = content_of(message)
    calls = []
    for call in message.get("tool_calls") or []:
        function = dict(call.get("function") or {})
        with contextlib.suppress(ValueError, TypeError, RecursionError):  # what is no JSON is shown as it stands
            function["arguments"] = json.loads(function.get("arguments", "{}"))
        calls.append({"id": call.get("id", ""), "type": "function", "function": function})
    return readable | ({"tool_calls": calls} if calls else {})
