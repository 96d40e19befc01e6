"""Dynamic batching: takes completions one at a time, and samples those that arrive together as one batch."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from gspo.interfaces import Job, Sampler
from gspo.types import Rollout, Sampling

# A batch closes after WINDOW seconds without a new request. While it is smaller than the largest of the last four batches,
# it waits for SHARE of the last batch's duration if that is longer: a request that misses a batch waits for all of it.
WINDOW, SHARE = 0.005, 0.05
END = 5.0  # seconds to wait for the thread on close


@dataclass(frozen=True, eq=False)
class Waiting:
    """A completion that is queued for its batch."""

    begun: Rollout
    seed: int
    sampling: Sampling
    future: Future[Rollout] = field(default_factory=Future)

    def now(self) -> Rollout:
        """The finished completion, or only its prompt while it is pending or after it failed."""
        return self.future.result() if self.future.done() and not self.future.exception() else self.begun


class Batching:
    """Takes single completions for a sampler of whole batches, which runs in a worker thread.

    Attributes:
        still: Lock that is held while the sampler runs. Hold it to change the weights.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.still: AbstractContextManager[Any] = threading.Lock()
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._patience, self._sizes = WINDOW, deque([1], 4)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Queues a completion. `so_far` holds only the prompt."""
        waiting = Waiting(so_far, seed, sampling)
        self._queue.put(waiting)
        return Job(waiting.future, waiting.now)

    def close(self) -> None:
        """Stops the thread after the queued completions. Waits at most END seconds, so that it never blocks shutdown."""
        self._queue.put(None)
        self._thread.join(END)

    def _work(self) -> None:
        over = False
        while not over:
            batch: list[Waiting] = []
            one = self._queue.get()
            while one is not None:
                batch.append(one)
                try:
                    one = self._queue.get(timeout=self._patience if len(batch) < max(self._sizes) else WINDOW)
                except queue.Empty:
                    break
            over = one is None
            kinds: dict[Sampling, list[Waiting]] = {}
            for waiting in batch:
                kinds.setdefault(replace(waiting.sampling, seed=0), []).append(waiting)
            begin = time.monotonic()
            for sampling, together in kinds.items():
                self._sample(sampling, together)
            self._sizes.append(len(batch))
            self._patience = max(WINDOW, SHARE * (time.monotonic() - begin))

    def _sample(self, sampling: Sampling, batch: list[Waiting]) -> None:
        together: list[Waiting] = []
        try:
            with self.still:
                together += (one for one in batch if one.future.set_running_or_notify_cancel())
                prompts, seeds = [one.begun.prompt for one in together], tuple(one.seed for one in together)
                rollouts = self.sampler.generate(prompts, 1, replace(sampling, seed=seeds)) if together else []
        except Exception as error:  # re-raised by each future
            for waiting in together:
                waiting.future.set_exception(error)
            return
        for waiting, rollout in zip(together, rollouts):
            waiting.future.set_result(rollout)
