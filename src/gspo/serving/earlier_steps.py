"""The policy as it was after an earlier step, sampled from that step's checkpoint: `NAME@STEP` in requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fastapi import HTTPException

from gspo.agents.calls import Call
from gspo.agents.chat import Chat
from gspo.assembly.samplers import checkpoint_sampler
from gspo.runs import checkpoint
from gspo.training.state import Run


class EarlierSteps:
    """Samples turns with the weights of a certain step: the policy's own while they are the newest, else those of the step's
    checkpoint. A checkpoint is loaded beside the policy when it is first requested. It stays in memory until another one is
    requested, or `drop`; but not while it is `held`.

    Attributes:
        newest: The last step, and the version of its weights.
    """

    def __init__(self, run: Run, chat: Chat) -> None:
        self.run, self.chat, self.newest = run, chat, (run.step, run.sampler.version)
        self._loaded: dict[int, tuple[Chat, ExitStack]] = {}
        self._users: Counter[int] = Counter()
        self._counting, self._loading = threading.Lock(), threading.RLock()

    async def turn(self, step: int, *request: Any) -> list[Call]:
        """`Chat.turn` with the weights of `step`. Raises HTTPException if they are not there any more."""
        newest, version = self.newest
        if step == newest:
            calls = await self.chat.turn(*request)
            if all(bool((call.rollout.version[call.rollout.sampled] == version).all()) for call in calls):
                return calls  # else the weights have changed meanwhile
        with self.held(step):
            chat = await asyncio.to_thread(self._chat, step)
            return await chat.turn(*request)

    @contextmanager
    def held(self, step: int) -> Iterator[None]:
        """Keeps a step's weights in memory, if they are or will be loaded, until the context exits."""
        with self._counting:
            self._users[step] += 1
        try:
            yield
        finally:
            with self._counting:
                self._users[step] -= 1

    def drop(self, but: Collection[int] = ()) -> None:
        """Frees the memory of all loaded steps that are not held, except `but`."""
        with self._loading:
            for step in [step for step in self._loaded if step not in but and not self._users[step]]:
                self._loaded.pop(step)[1].close()

    def _chat(self, step: int) -> Chat:
        with self._loading:
            if step not in self._loaded:
                self.drop()
                checkpoints = self.run.log.folder.checkpoints
                folder = checkpoint.folder_of(checkpoints, step) if step else None
                if folder is not None and not folder.is_dir():
                    there = ", ".join(str(int(path.name.removeprefix("step_"))) for path in checkpoint.steps(checkpoints))
                    raise HTTPException(
                        404, f"the weights of step {step} are gone: there are checkpoints of steps {there or '(none)'}; "
                        "train.save_every and train.keep_checkpoints say which there are"
                    )  # fmt: skip
                stack = ExitStack()
                completer = stack.enter_context(checkpoint_sampler(self.run.config, folder))
                self._loaded[step] = Chat(completer, self.chat.encoder, self.chat.sampling, self.chat.context), stack
            return self._loaded[step][0]
