"""Supervised fine-tuning of a served model, as a step of its run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from gspo.agents.chat import Chat, opens_thinking
from gspo.agents.trajectories import plain
from gspo.assembly.learners import supervised_learning
from gspo.data.messages import calls_of, content_of
from gspo.data.prompts import check_thoughts
from gspo.learner.learner import LocalLearner
from gspo.training.sft import imitated
from gspo.training.state import Run, load
from gspo.types import Completion, Metrics


def targets(trajectories: Iterable[Any], chat: Chat) -> list[list[Completion]]:
    """The assistant turns to imitate, by conversation; one without any is left out. Raises ValueError for a turn that
    cannot be imitated, and if there is none.
    """
    found = []
    for number, trajectory in enumerate(trajectories):
        messages = [plain(item) for item in trajectory.messages_and_choices]
        rows = []
        for i in [i for i, message in enumerate(messages) if message["role"] == "assistant"]:
            name = f"trajectories[{number}].messages_and_choices[{i}]"
            if calls_of(messages[i]):
                raise ValueError(f"{name} calls tools: give the turn as the text that the model writes")
            asked, text = chat.encoded(messages[:i], trajectory.tools or ()), content_of(messages[i])
            try:
                check_thoughts(opens_thinking(asked.text, messages[i - 1]), text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            rows.append(imitated(asked.tokens, chat.encoder.completion(text)))
            if chat.context is not None and len(rows[-1].tokens) > chat.context:
                raise ValueError(f"{name} ends at token {len(rows[-1].tokens)} of {chat.context} that fit: leave it out")
        if rows:
            found.append(rows)
    if not found:
        raise ValueError("trajectories: there is no assistant turn to imitate")
    return found


def fit(run: Run, conversations: Sequence[Sequence[Completion]], lr: float | Sequence[float], size: int) -> list[Metrics]:
    """One pass in the given order, with a new optimizer, as one step of the run. Returns the metrics of each update. Raises
    ValueError if the run has several ranks, or there are too few or too many learning rates.

    Args:
        lr: Learning rate, or one for each update.
        size: Conversations per update.
    """
    if not isinstance(run.learner, LocalLearner):
        raise ValueError(f"scale.ranks = {run.config.scale.ranks}: a served model imitates on one rank; use `gspo sft`")
    batches = [list(chain(*conversations[i : i + size])) for i in range(0, len(conversations), size)]
    rates = [lr] * len(batches) if isinstance(lr, (int, float)) else list(lr)
    if len(rates) != len(batches):
        raise ValueError(f"learning_rate: {len(rates)} numbers for {len(batches)} updates; give as many, or one number")
    constant = replace(run.config.optimizer, warmup=0, schedule="constant")  # the rates are given for each update
    config = replace(run.config, train=replace(run.config.train, steps=len(batches)), optimizer=constant)
    learner = supervised_learning(config, cast(Any, run.learner.policy).model)[1]
    run.step += 1
    run.log.step, updates = run.step, []
    for number, (batch, rate) in enumerate(zip(batches, rates)):
        run.screen.phase("imitating", number, len(batches))
        learner.override_lr(rate)
        learner.take([batch])
        updates.append(learner.update(0).metrics)
    load(run, run.sampler.version + 1)
    run.log.metrics({"step": run.step} | {f"sft/{name}": value for name, value in updates[-1].items()})
    return updates
