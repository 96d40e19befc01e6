"""GSPO in one loop, from gspo's own parts: sample, score, advantages, updates, sync. Change any line of it.

    python examples/loop.py                  # a tiny random mixture of experts, less than a minute on a CPU
    python examples/loop.py --model FOLDER   # a model of yours: a folder, or a Hugging Face id

The task: repeat the word of the prompt. `gspo train` runs the same steps, with checkpoints, metrics, evaluation, a guard and
several processes around them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from gspo.backends.hf.load import load_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, ModelConfig, ResolvedOptimizer
from gspo.learner.layout import split
from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer, lr_for
from gspo.rollout.credit import training_batch
from gspo.types import Group, Prompt, Rollout, Sampling

WORDS = ("red", "blue", "green", "white")
PROMPTS, GENERATIONS, LENGTH = 8, 8, 6  # prompts a step, completions a prompt, tokens a completion at most


def tiny() -> HFModel:
    """A random mixture of experts that knows the words of the task."""
    return build_tiny(tiny_qwen3_moe(context=32), longest_match_tokenizer([*WORDS, " ", ":"]), 0)


def prompts_of(model: HFModel) -> Iterator[Prompt]:
    """Prompts without end, each with the word that its reward looks for."""
    number = 0
    while True:
        word = WORDS[number % len(WORDS)]
        yield Prompt(str(number), f"{word}:", tuple(model.tokenizer(f"{word}:")["input_ids"]), {"word": word})
        number += 1


def reward(rollout: Rollout) -> float:
    """The share of the completion that is the word of its prompt."""
    word = rollout.prompt.columns["word"]
    return len(word) * rollout.text.count(word) / max(1, len(rollout.text))


def train(model: HFModel, steps: int, lr: float) -> list[float]:
    """Trains for so many steps. Returns the mean reward of each."""
    row, algorithm, _ = resolve(AlgorithmConfig(name="gspo", epsilon="auto"))  # a row of the table, and its settings
    mini_batches = algorithm.mini_batches or 1
    policy = HFPolicy(model, temperature=1.0, layout="auto")
    optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(lr=lr), steps * mini_batches, max_bad=3)
    objective = PolicyObjective(row, algorithm, LENGTH)
    learner = PolicyLearner(policy, optimizer, objective, MicroBatches(4096))  # of at most so many tokens
    sampler = HFSampler(model, batch_size=PROMPTS * GENERATIONS)
    prompts, means = prompts_of(model), list[float]()
    for step in range(steps):
        # Sample: token ids with the log-probability mu of each.
        sampling = Sampling(LENGTH, stop_ids=model.stop_ids, seed=step)
        batch = [next(prompts) for _ in range(PROMPTS)]
        rollouts = sampler.generate(batch, GENERATIONS, sampling)
        # Score: a number for each completion.
        rollouts = [dataclasses.replace(rollout, reward=reward(rollout)) for rollout in rollouts]
        # Advantages: A_i = (r_i - mean) / std within the group of a prompt.
        groups = [Group(p, rollouts[i * GENERATIONS : (i + 1) * GENERATIONS]) for i, p in enumerate(batch)]
        made = training_batch(groups, row, algorithm, mask_truncated=False)
        # Updates: one for each mini-batch, with the ratio s_i = (pi_theta / pi_old)^(1/|y_i|), clipped as a whole.
        parts = split(made.groups, mini_batches)
        learner.prepare(parts, recompute=False)  # pi_old: the sampler's own log-probabilities
        updates = [learner.update(number) for number in range(len(parts))]
        learner.finish()
        # Sync: the sampler gets the new weights.
        sampler.load(learner.publish(step + 1))
        means.append(sum(map(reward, rollouts)) / len(rollouts))
        clipped = updates[-1].metrics["clip_ratio/tokens"]
        print(f"step {step + 1}: reward {means[-1]:.3f}, {clipped:.0%} of the last update's tokens clipped", flush=True)
    return means


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's folder or Hugging Face id; a tiny random one without it")
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)d")
    parser.add_argument("--lr", type=float, help="learning rate; default: 1e-2 for the tiny model, else by size")
    options = parser.parse_args()
    model = load_model(ModelConfig(path=options.model)) if options.model else tiny()
    train(model, options.steps, options.lr or (lr_for(model.model.num_parameters()) if options.model else 1e-2))


if __name__ == "__main__":
    main()
