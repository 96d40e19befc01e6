"""Rewards of completions. A failing reward costs its completion, never the run."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gspo.config.checks import check_names
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import BENCHMARK, GIVEN
from gspo.data.benchmarks.table import named
from gspo.data.reasoning_gym import PREFIX
from gspo.data.reward_bounds import NO_OPINION, invalid
from gspo.rewards import code as programs
from gspo.rewards.arguments import TrainerState
from gspo.rewards.channels import Channel, Thread, Worker
from gspo.rewards.graders import Result, RewardFunction, RewardInput
from gspo.rewards.programs import PATIENCE
from gspo.rewards.required_columns import RequiredColumns
from gspo.rewards.retry_policy import CallMode, score_rows
from gspo.safe import without_logins
from gspo.types import Prompt, Rollout

logger = logging.getLogger(__name__)


class Rewards:
    """The weighted sum of reward functions. A callable may have graders.py:Traits as its attribute `traits`.

    Args:
        reward: Its named rewards run in subprocesses that start here, in the background, and are killed when a call hangs.
            Its weights are in the order of the names, then of `functions`.
        functions: Callables, plain or async, `f(prompts, completions, **columns) -> list[float | None]`. They run in
            threads, which cannot be killed but are left behind.
        named_callables: Callables for names that need more than a worker has, such as a model; they run in threads too.
    """

    def __init__(
        self,
        reward: RewardConfig,
        task: TaskConfig,
        functions: Sequence[Callable[..., Any]] = (),
        named_callables: Mapping[str, Callable[..., Any]] = {},
        code: CodeConfig | None = None,
    ) -> None:
        """Raises ValueError if a reward does not suit the task. With callables, the default `task` is dropped if the source
        has no scorer of its own.
        """
        scored = task.source.startswith(PREFIX) and (task.eval_source or PREFIX).startswith(PREFIX)
        specs = list(reward.functions)
        if functions and specs == ["task"] and not scored:
            specs = []
        _check(specs, task, scored)
        if unset := [name for name in reward.env_passthrough if name not in os.environ]:
            raise ValueError(f"reward.env_passthrough: no environment variable {unset[0]!r}; set it, or take its name out")
        self.state = TrainerState()
        labels = [spec.rpartition(":")[2] for spec in specs]
        labels += [getattr(f, "__name__", type(f).__name__).strip("<>") for f in functions]
        self.names = [label if (k := labels[:i].count(label)) == 0 else f"{label}_{k + 1}" for i, label in enumerate(labels)]
        weights = reward.weights or [1.0] * len(self.names)
        if not self.names:
            raise ValueError("there is no reward function: name one in reward.functions")
        if len(weights) != len(self.names):
            raise ValueError(
                f"reward.weights = {reward.weights}: {len(self.names)} reward functions need as many "
                f"weights: {', '.join(self.names)}"
            )
        self.weights = dict(zip(self.names, weights))
        callables = dict(zip(self.names[len(specs) :], functions))
        callables |= {name: named_callables[spec] for name, spec in zip(self.names, specs) if spec in named_callables}
        self.functions = {name: RewardFunction(function) for name, function in callables.items()}
        self.specs = {name: spec for name, spec in zip(self.names, specs) if name not in callables}
        self.code = code or CodeConfig()
        self.required = RequiredColumns(reward, self.code, specs, self.functions)
        self.limits = {name: self._limit(name, reward.timeout) for name in self.names}
        self.modes = {name: CallMode() for name in self.names}
        self._settings = list(self.specs.values()), reward, task
        self._start()

    def _start(self) -> None:
        specs, reward, task = self._settings
        self.workers = [Worker(specs, reward, task, self.code) for _ in range(reward.workers if specs else 0)]
        self.threads = {name: Thread(function, self.limits[name]) for name, function in self.functions.items()}

    def _limit(self, name: str, timeout: float) -> float:
        """Seconds per call."""
        if name in self.functions:
            limit = self.functions[name].traits.limit
            return timeout if limit is None else limit
        if self.specs[name] == "code":
            return programs.longest(self.code)
        return PATIENCE if self.specs[name] in self.required.of_benchmarks else timeout

    def at(self, step: int, steps: int) -> None:
        """Sets the completed and total steps, for functions that take `trainer_state`."""
        self.state = TrainerState(step, steps)

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raises ValueError if a prompt lacks what the rewards require, such as a comparable right answer."""
        self.required.check(prompts)

    @property
    def needs(self) -> Mapping[str, str]:
        """Columns that the prompts need, with the setting or callable that names each."""
        return self.required.needs

    def wait(self) -> None:
        """Waits until the workers are ready and shows their notices. Raises ValueError for a reward that cannot be used."""
        for worker in self.workers:
            worker.wait()
        if self.workers:
            first = self.workers[0]
            self.required.add({name: first.signatures[spec].required for name, spec in self.specs.items()})
            if first.notice:
                logger.log(logging.WARNING if self.code.sandbox == "none" else logging.INFO, first.notice)
        for function in self.functions.values():
            function.traits.wait()

    def counts(self) -> dict[str, float]:
        """The callables' counts since the last call, as `scoring/NAME/...`."""
        counted = {name: function.traits.counts() for name, function in self.functions.items()}
        return {f"scoring/{name}/{key}": value for name, counts in counted.items() for key, value in counts.items()}

    def score(
        self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None, groups: Sequence[Hashable] = ()
    ) -> list[Rollout]:
        """The rollouts with `reward`, `reward_parts` (by name; None: not scored, or failed), their weights, and `error`.
        `progress` is called with how many are finished. groups: as in interfaces.py:Scorer. Warns of failed calls for many
        completions. Raises ValueError for a fault that affects every completion.
        """
        self.check(rollout.prompt for rollout in rollouts)
        groups = groups or [rollout.prompt.id for rollout in rollouts]
        try:
            results = self._results(list(map(self._row, rollouts, groups)), progress)
        except BaseException:  # such as Ctrl-C: no result may be left over for the next call
            self.close()
            self._start()
            raise
        for name, mode in self.modes.items():
            for text in mode.news:
                logger.warning(f"reward {name}: {text}")
            mode.news.clear()
        sizes = Counter(groups)
        return [
            self._scored(rollout, {name: results[name][i] for name in self.names}, sizes[groups[i]] == 1)
            for i, rollout in enumerate(rollouts)
        ]

    def _results(self, rows: list[RewardInput], progress: Callable[[int], None] | None) -> dict[str, list[Result]]:
        """The results of each reward: those of workers in chunks, which idle workers take, those of threads at once."""
        results: dict[str, list[Result]] = {name: [(None, None)] * len(rows) for name in self.names}
        lock = threading.Lock()
        count = 0

        def note_results(new: int) -> None:
            nonlocal count
            with lock:
                count += new
                if progress is not None:
                    progress(count // len(self.names))

        def run(channel: Channel, jobs: Iterable[tuple[str, int, int]]) -> None:
            for name, start, stop in jobs:
                spec, limit, mode = self.specs.get(name, name), self.limits[name], self.modes[name]
                results[name][start:stop] = score_rows(channel, spec, rows[start:stop], limit, mode, note_results)

        chunks = _chunks([row.group for row in rows], len(self.workers))
        shared = iter([(name, *chunk) for chunk in chunks for name in self.specs])
        lanes = [partial(run, worker, shared) for worker in self.workers]
        lanes += [partial(run, thread, [(name, 0, len(rows))]) for name, thread in self.threads.items()]
        _in_parallel(lanes)
        return results

    def _scored(self, rollout: Rollout, results: dict[str, Result], alone: bool) -> Rollout:
        """alone: No other completion of its prompt is there to be compared with."""
        parts = {name: value for name, (value, _) in results.items()}
        opinions = [self.weights[name] * value for name, value in parts.items() if value is not None]
        errors = [f"{name}: {error}" for name, (_, error) in results.items() if error is not None]
        if not opinions and not errors:
            errors = [NO_OPINION]
        elif not errors:
            errors = [f"{name}: it gave no score" for name in self.functions if self._silent(name, parts[name], alone)]
        reward = None if errors else sum(opinions)
        if reward is not None and (problem := invalid(reward)):
            reward, errors = None, [f"the weighted sum is {problem}, or lower reward.weights"]
        return dataclasses.replace(
            rollout, reward=reward, reward_parts=parts, reward_weights=tuple(self.weights.values()),
            error=without_logins("; ".join(errors)) or None,
        )  # fmt: skip

    def _silent(self, name: str, value: float | None, alone: bool) -> bool:
        """Whether a callable that counts has no value where it should: the sum of the others would be another reward."""
        traits = self.functions[name].traits
        return value is None and traits.complete and self.weights[name] != 0 and not (alone and traits.by_group)

    def _row(self, rollout: Rollout, group: Hashable) -> RewardInput:
        prompt = rollout.prompt
        ids = array("i", rollout.tokens[len(prompt.tokens) :].tolist())
        return RewardInput(
            prompt.messages, rollout.text, prompt.task, prompt.columns, prompt.opens_thinking, group, ids, self.state
        )

    def close(self) -> None:
        """Stops the workers and threads."""
        channels: list[Channel] = [*self.workers, *self.threads.values()]
        for channel in channels:
            channel.close()

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check(specs: list[str], task: TaskConfig, scored: bool) -> None:
    if "task" in specs and not scored:
        name = (task.eval_source if task.source.startswith(PREFIX) else task.source) or "this data set"
        use = '"exact" or "math" with reward.answer_column, or a function of yours as module:function'
        if name == GIVEN:
            use = f"{use}, or pass reward="
        if name.startswith(BENCHMARK):
            use = f'"{named(name.removeprefix(BENCHMARK)).reward}"'
        raise ValueError(f'reward.functions: {name} has no scorer of its own for "task"; use {use}')
    check_names(specs)


def _chunks(groups: Sequence[Hashable], count: int) -> list[tuple[int, int]]:
    """At most `count` ranges (start, stop) of about equal size; the completions of one group stay together."""
    starts = [i for i in range(len(groups)) if i == 0 or groups[i] != groups[i - 1]]
    cuts = sorted({starts[len(starts) * k // count] for k in range(count)}) if starts else []
    return list(itertools.pairwise([*cuts, len(groups)]))


def _in_parallel(lanes: Sequence[Callable[[], None]]) -> None:
    """Runs each lane in a thread; raises the first error once all have ended."""
    errors: list[BaseException] = []

    def guarded(lane: Callable[[], None]) -> None:
        try:
            lane()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
