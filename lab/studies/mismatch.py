"""How far samplers of low precision are from the trainer: r = pi_old/mu, and what the default bounds of corrections take.

    python lab/studies/mismatch.py ~/.cache/gspo/models/SmolLM2-135M-Instruct

A small mixture of experts is made on the way (world.py), the other model is given. Each samples from rounded weights
(dials.py; `bf16` also multiplies in bfloat16) and is scored as it is. Seven minutes of one core.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Sequence

import torch
import world
from dials import KINDS, round_weights
from torch import Tensor

from gspo.backends.hf.load import load_model, wrap_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.config.policy import ModelConfig
from gspo.demo.word_sums import training
from gspo.learner.memory import MicroBatches
from gspo.learner.scoring import read
from gspo.objective.algorithms import BOUNDS
from gspo.objective.completions import Completions
from gspo.objective.corrections import ratio
from gspo.objective.divergence import k3
from gspo.rollout.credit import completion_of
from gspo.types import Prompt, Sampling

OPEN = ("Write a short story about a lighthouse.", "Explain how a bicycle stays upright.", "What makes bread rise?")


def mismatch(
    model: HFModel, kind: str, prompts: Sequence[Prompt], n: int, sampling: Sampling
) -> tuple[Tensor, Tensor, Completions]:
    """log pi_old and log mu of the sampled tokens [N] of n completions a prompt. kind: one of dials.KINDS."""
    narrow = torch.bfloat16 if kind == "bf16" else model.autocast
    own = dataclasses.replace(model, model=copy.deepcopy(model.model), autocast=narrow)
    if kind != "none":
        round_weights(own.model, kind)
    rollouts = HFSampler(own, 64).generate(prompts, n, sampling)
    completions = [completion_of(rollout, 0.0) for rollout in rollouts]
    readings = read(HFPolicy(model), completions, MicroBatches(4096))
    y = Completions.of(torch.tensor([len(completion.logp_mu) for completion in completions]))
    logp_mu = torch.cat([completion.logp_mu for completion in completions])
    return torch.cat([reading.logp for reading in readings]).double(), logp_mu.double(), y


def taken(logp_old: Tensor, logp_mu: Tensor, y: Completions) -> dict[tuple[str, str], float]:
    """The share of tokens or completions outside the default bounds of each correction."""
    shares = {}
    for (name, over), (low, high) in BOUNDS.items():
        r = ratio("token" if over == "token" else "sequence", over, logp_old, logp_mu, y)
        shares[name, over] = float(((r < (low or 0)) | (r > high)).double().mean())
    return shares


def line(title: str, logp_old: Tensor, logp_mu: Tensor, y: Completions) -> str:
    """A row of the table."""
    token, mean, product = (
        ratio("token" if over == "token" else "sequence", over, logp_old, logp_mu, y)
        for over in ("token", "mean", "product")
    )
    low, high = mean.quantile(torch.tensor([0.01, 0.99], dtype=mean.dtype)).tolist()
    cells = [
        title, f"{float(y.length.double().mean()):.0f}", f"{float(k3(logp_mu, logp_old).mean()):.1e}",
        *(f"{float(r.log().std()):.1e}" for r in (token, mean, product)), f"{low:.4f} to {high:.4f}",
    ]  # fmt: skip
    cells += [f"{share:.1%}" for share in taken(logp_old, logp_mu, y).values()]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=120, help="of the mixture's cold start (default: %(default)s)")
    options = parser.parse_args()
    head = ["model and sampler", "tokens", "KL", "sd log r", "of the mean", "of the product", "mean, 1 % to 99 %"]
    head += [f"{name}, {over}" for name, over in BOUNDS]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    tuned = load_model(ModelConfig(path=options.model, device="cpu"))
    chat = tuned.tokenizer
    made, tokenizer, _ = world.cold_start(8, 2, 4, seed=0, steps=options.steps)
    mixture = wrap_model(made, tokenizer)
    short = [chat.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
             for text in (*(row["prompt"] for row in training(16)), *OPEN)]  # fmt: skip
    topics = [tokenizer(row["prompt"])["input_ids"] for row in world.rows(32, 0)]
    end = (chat.eos_token_id,)
    for title, model, rows, n, length, stop in (
        ("SmolLM2-135M, sums", tuned, short[:16], 8, 24, end), ("SmolLM2-135M, prose", tuned, short[16:], 8, 192, end),
        ("mixture", mixture, topics, 8, 32, ()), ("mixture", mixture, topics[:8], 8, 512, ()),
    ):  # fmt: skip
        prompts = [Prompt(str(i), "", tuple(tokens)) for i, tokens in enumerate(rows)]
        for kind in KINDS[1:]:
            print(line(f"{title}, {kind}", *mismatch(model, kind, prompts, n, Sampling(length, stop_ids=stop))), flush=True)


if __name__ == "__main__":
    main()
