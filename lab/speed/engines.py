"""Sampling: the embedded sampler against a vLLM server, the same model and prompts, in turns.

python lab/speed/engines.py --python .venv-vllm/bin/python [--rows 32 128 256] [--repeats 7] [--tokens 96] [--threads 1]

Completions of exactly --tokens tokens to prompts of 12 tokens, 8 to a prompt; tokens a second over the whole call,
likelihoods and routes included. The ratio is the median over paired repeats with a 95 % interval. Both compute with
--threads threads, in turn; vLLM's server needs a core beside them, and two spinning threads on two cores wait for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import models
import torch
from paired import median_interval

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.backends.vllm.open import opened
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.demo import count_bits
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling

MODELS = {
    "0.5 M": {"hidden": 64, "heads": 2, "layers": 4, "expert_width": 32},
    "3.4 M": {"hidden": 128, "heads": 4, "layers": 4},
    "SmolLM2": {},  # pretrained, dense
}
EACH = 8  # completions a prompt


def compare(outline: dict[str, int], python: str, sizes: list[int], repeats: int, tokens: int) -> list[dict[str, Any]]:
    """A line for each number of rows, printed and returned."""
    lines: list[dict[str, Any]] = []
    if outline:
        config = tiny_qwen3_moe(**outline, experts=16, top_k=2, context=256)
        model = build_tiny(config, longest_match_tokenizer(count_bits.PIECES))
    else:
        model = models.pretrained()
    policy, vocabulary = HFPolicy(model), model.config.vocab_size
    arguments = {"enforce_eager": True, "max_model_len": 256}
    settings = SamplerConfig(engine="vllm", python=python, engine_args=arguments, batch_size=max(sizes))
    with opened(Config(sampler=settings), policy, PolicyWeights(policy, 0), None) as served:
        samplers = {"embedded": HFSampler(model, max(sizes)), "vLLM": served}
        for rows in sizes:
            g = torch.Generator().manual_seed(rows)
            ids = torch.randint(vocabulary, (rows // EACH, 12), generator=g)
            prompts = [Prompt(str(i), "", tuple(row.tolist())) for i, row in enumerate(ids)]
            rates: dict[str, list[float]] = {name: [] for name in samplers}
            for repeat in range(-2, repeats):
                for name in samplers if repeat % 2 else reversed(samplers):
                    begin = time.perf_counter()
                    samplers[name].generate(prompts, EACH, Sampling(tokens, seed=repeat + 2, routes=bool(outline)))
                    rates[name].append(rows * tokens / (time.perf_counter() - begin))
            ratios = [a / b for a, b in zip(rates["embedded"][2:], rates["vLLM"][2:])]
            low, high, level = median_interval(ratios)
            rate = ", ".join(f"{name} {statistics.median(values[2:]):,.0f}" for name, values in rates.items())
            between = f"{statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}] ({level:.1%})"
            print(f"{rows} rows: {rate} tokens/s; embedded / vLLM {between}", flush=True)
            speeds = {name: statistics.median(values[2:]) for name, values in rates.items()}
            lines.append({"rows": rows, "ratio": statistics.median(ratios), "low": low, "high": high, "rates": speeds})
    return lines


def main() -> None:
    """Both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter whose environment has vLLM")
    small = [name for name, outline in MODELS.items() if outline]
    parser.add_argument("--models", nargs="+", default=small, choices=list(MODELS))
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 256], help=f"multiples of {EACH}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ |= {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    results: list[dict[str, Any]] = []
    for name in options.models:
        print(name, flush=True)
        lines = compare(MODELS[name], options.python, options.rows, options.repeats, options.tokens)
        results += [{"model": name} | line for line in lines]
    if options.out:
        options.out.write_text(json.dumps({"repeats": options.repeats, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
