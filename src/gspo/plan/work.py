"""The work that `gspo plan` plans for: lengths of prompts and completions, micro-batches of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gspo.assembly.early_checks import checked_prompts
from gspo.backends.hf.files import Outline, read_config
from gspo.config.local_model import local_copy
from gspo.config.schema import Config, RunConfig
from gspo.config.source_kind import in_environment
from gspo.config.stages import longest
from gspo.distributed import load_balance
from gspo.learner import layout
from gspo.plan.activation_memory import device_type
from gspo.plan.cost_model import Work
from gspo.plan.memory import MicroBatch
from gspo.types import Completion

FIRST = 100  # prompts of a task of which the longest is planned for


@dataclass(frozen=True)
class Lengths:
    """Tokens per prompt and per completion (None: the longest that the run allows)."""

    prompt: int = 512
    completion: int | None = None

    def longest(self, config: Config) -> int:
        """Tokens per completion; of an agent those of all its turns, as far as the context reaches."""
        one = self.completion or config.rollout.max_completion_length
        if self.completion or not in_environment(config.task):
            return one
        room = (outline_of(config).context_length or math.inf) - self.prompt
        return int(max(one, min(one * config.task.max_turns, room)))

    def evaluated(self, config: Config) -> int:
        """Tokens per completion of an evaluation, as far as the context reaches."""
        limit = config.eval.max_completion_length or longest(config.rollout, config.stage)[1]
        alike = replace(config, rollout=replace(config.rollout, max_completion_length=limit))
        return int(min(self.longest(alike), (outline_of(config).context_length or math.inf) - self.prompt))


def lengths_of(config: Config, prompt: int | None, completion: int | None) -> Lengths:
    """The lengths to plan for; the prompt's from the first ones if they are here. Raises ValueError for bad settings."""
    prompts = checked_prompts(config, here, FIRST)[0] if (here := local_copy(config.model)) is not None else []
    longest = completion or config.rollout.max_completion_length
    context = outline_of(config).context_length or Lengths.prompt + longest
    prompt = prompt or max((len(each.tokens) for each in prompts), default=max(1, min(Lengths.prompt, context - longest)))
    if prompt + longest > context:
        both = f"a prompt of {prompt} tokens (option prompt-tokens) and a completion of {longest} (completion-tokens)"
        raise ValueError(f"{both} do not fit the model's context of {context}: lower one of them")
    return Lengths(prompt, completion)


def outline_of(config: Config) -> Outline:
    """What the model's config.json says, without a tokenizer."""
    return Outline(None, read_config(config.model))  # type: ignore[arg-type]


def work_of(config: RunConfig, ranks: int, lengths: Lengths) -> tuple[Work, MicroBatch]:
    """The work of the fullest rank in a step with completions of equal length, and its largest training micro-batch."""
    algorithm, rollout = config.algorithm, config.rollout
    updates, longest = algorithm.mini_batches, lengths.longest(config)
    group = list(completions(1, rollout.num_generations, lengths.prompt, longest))
    gains = device_type(config.model) == "cpu" and layout.worth_sharing(layout.build(group, share=True).forest)
    share = config.train.layout == "shared" or (config.train.layout == "auto" and gains)

    def read(prompts: int) -> list[tuple[int, int]]:
        """Tokens and sampled tokens of each micro-batch, on the rank with the most completions."""
        batch = list(completions(prompts, rollout.num_generations, lengths.prompt, longest))
        dealt = [[batch[i] for i in mine] for mine in load_balance.split_evenly(batch, ranks, share)]
        fullest = max(dealt, key=len)
        parts = layout.micro_batches(fullest, config.train.micro_batch_tokens, share)
        return [(layout.size([fullest[i] for i in part], share), len(part) * longest) for part in parts]

    trained = read(rollout.num_prompts // updates)
    recalls = algorithm.old_logprobs == "recompute" or algorithm.router_replay == "R2"
    passes = recalls + bool(algorithm.beta) + config.teacher.local
    alone = read(rollout.num_prompts) if passes else []
    times, tokens, read_tokens = updates * algorithm.epochs, *(sum(n for n, _ in parts) for parts in (trained, alone))
    work = Work(times * len(trained), passes * len(alone), times * tokens, passes * read_tokens)
    return work, MicroBatch(*max(trained), len(trained))


def completions(prompts: int, generations: int, prompt: int, completion: int) -> Iterator[Completion]:
    """Yields stand-in completions of equal length. A row of tokens is a single number in memory, expanded."""
    sampled = torch.arange(prompt + completion) >= prompt
    nothing = torch.zeros(1).expand(completion)
    for number in range(prompts):
        tokens = torch.tensor([number]).expand(prompt + completion)
        for _ in range(generations):
            yield Completion(tokens=tokens, sampled=sampled, logp_mu=nothing, logp_old=nothing, advantage=0.0)
