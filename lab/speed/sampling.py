"""Tokens a second of the embedded sampler against transformers' `generate` and its continuous batching.

python lab/speed/sampling.py [--rows 32 128 256] [--repeats 5] [--threads 2] [--out FILE.json]

All sample the same number of tokens from the same model, transformers with its own grouped_mm experts (no
end-of-sequence token), in turns within each repeat, so that a slow moment of the machine hits all of them. Reported
are medians, and the median of the ratios of one repeat. `ends apart` is a run whose completions end at different times:
there `generate` keeps finished rows in its batch, and only tokens of completions count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import models
import torch
import transformers
from paired import median_interval
from transformers import ContinuousBatchingConfig, GenerationConfig

from gspo.backends.hf.model import HFModel
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import ModelConfig
from gspo.types import Prompt, Sampling

G = 8  # completions a prompt
PRETRAINED = "SmolLM2"  # 135 M; prompts of 64 tokens, completions of 32
PAGE = 32  # tokens in a page of continuous batching's cache; 160 and 256 were no faster
MODELS = {
    # name: (configuration, vocabulary, tokens of a prompt, tokens of a completion)
    "3.4M": (tiny_qwen3_moe(hidden=128, layers=4, experts=16, expert_width=128), 34, 40, 57),
    "0.5M": (tiny_qwen3_moe(), 128, 40, 100),
}


def make_model(name: str, device: str) -> tuple[HFModel, int, int]:
    if name == PRETRAINED:
        return models.pretrained(ModelConfig(device=device, autocast="none")), 64, 32
    config, vocabulary, prompt, completion = MODELS[name]
    pieces = [chr(0x4E00 + i) for i in range(vocabulary - 2)]
    settings = ModelConfig(device=device, autocast="none")
    return build_tiny(config, longest_match_tokenizer(pieces), 0, settings), prompt, completion


def make_prompts(model: HFModel, count: int, length: int) -> list[Prompt]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, len(model.tokenizer), (count, length), generator=draw).tolist()
    return [Prompt(id=str(i), messages="", tokens=tuple(row)) for i, row in enumerate(ids)]


@contextmanager
def as_without_gspo(model: HFModel) -> Iterator[None]:
    """transformers' fastest experts."""
    ours = model.config._experts_implementation if hasattr(model.config, "num_experts") else None
    if ours:
        model.model.set_experts_implementation("grouped_mm")
    try:
        yield
    finally:
        if ours:
            model.model.set_experts_implementation(ours)


def embedded(model: HFModel, prompts: list[Prompt], completion: int, stop_ids: tuple[int, ...]) -> Callable[[], int]:
    sampler = HFSampler(model, batch_size=len(prompts) * G)
    seeds = iter(range(10**9))

    def run() -> int:
        sampling = Sampling(max_new_tokens=completion, stop_ids=stop_ids, seed=next(seeds))
        return sum(int(r.sampled.sum()) for r in sampler.generate(prompts, G, sampling))

    return run


def generation(completion: int, ends: list[int] | int | None) -> GenerationConfig:
    """Settings of transformers for the whole distribution."""
    return GenerationConfig(do_sample=True, top_k=0, top_p=1.0, max_new_tokens=completion, pad_token_id=0, eos_token_id=ends)


def generate(model: HFModel, prompts: list[Prompt], completion: int, stop_ids: tuple[int, ...]) -> Callable[[], int]:
    ids = torch.tensor([p.tokens for p in prompts], device=model.device).repeat_interleave(G, 0)
    config = generation(completion, list(stop_ids) or None)

    def run() -> int:
        model.model.generation_config.eos_token_id = None
        with as_without_gspo(model):
            out = model.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        out = out[:, ids.shape[1] :]
        if not stop_ids:
            return out.numel()
        ended = torch.isin(out, torch.tensor(stop_ids, device=out.device))
        return int((ended.cumsum(1) - ended.long() == 0).sum())  # up to and with the first stop token

    return run


def continuous(model: HFModel, prompts: list[Prompt], completion: int, stop_ids: tuple[int, ...]) -> Callable[[], int]:
    """Its cache has what these rows need: left to itself it takes most of the machine's memory, and 14 times as long."""
    inputs = [list(p.tokens) for p in prompts for _ in range(G)]
    pages = -(-(len(inputs[0]) + completion) // PAGE)
    sizes = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=pages * len(inputs) + 8, max_batch_tokens=max(512, len(inputs))
    )
    config = generation(completion, list(stop_ids) or -1)

    def run() -> int:
        attention = model.attention
        with as_without_gspo(model):
            out = model.model.generate_batch(
                inputs=inputs, generation_config=config, continuous_batching_config=sizes, progress_bar=False
            )
        model.model.set_attn_implementation(attention)  # it leaves its own behind
        return sum(len(o.generated_tokens) for o in out.values())

    return run


ENGINES = {"embedded": embedded, "generate": generate, "continuous": continuous}


def compare(runs: dict[str, Callable[[], int]], repeats: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Tokens a second of each, and its ratio to `generate` paired in a repeat. The first round warms up."""
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        names = list(runs)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            start = clock()
            tokens = runs[name]()  # its result is on the CPU: a GPU has finished
            if repeat:
                speeds[name].append(tokens / (clock() - start))
    ratios = {name: [a / b for a, b in zip(speeds[name], speeds["generate"])] for name in runs}
    return {
        name: {
            "tokens_per_second": statistics.median(speeds[name]),
            "lowest": min(speeds[name]),
            "highest": max(speeds[name]),
            "ratio_to_generate": statistics.median(ratios[name]),
            "ratio_low": median_interval(ratios[name])[0],
            "ratio_high": median_interval(ratios[name])[1],
        }
        for name in runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 256], help=f"multiples of {G}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=[*MODELS, PRETRAINED])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument(
        "--clock",
        default="wall",
        choices=["wall", "cpu"],
        help="cpu: processor time, for a machine that others use",
    )
    parser.add_argument("--out", type=Path, help="write the results to this file")
    args = parser.parse_args()
    if "generate" not in args.engines:
        parser.error("--engines must name generate, which the others are compared with")
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    transformers.logging.set_verbosity_error()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    results: list[dict] = []
    for name in args.models:
        model, prompt, completion = make_model(name, args.device)
        for case in ("equal", "ends apart"):
            stop_ids = () if case == "equal" else tuple(range(1, 1 + max(1, len(model.tokenizer) // 34)))
            for rows in args.rows:
                prompts = make_prompts(model, rows // G, prompt)
                engines = [e for e in args.engines if e != "continuous" or case == "equal"]
                runs = {engine: ENGINES[engine](model, prompts, completion, stop_ids) for engine in engines}
                by_engine = compare(runs, args.repeats, clock)
                results.append({"model": name, "case": case, "rows": rows, "engines": by_engine})
                line = ", ".join(
                    f"{e} {v['tokens_per_second']:,.0f} tok/s ({v['ratio_to_generate']:.2f})" for e, v in by_engine.items()
                )
                print(f"{name}, {case}, {rows} rows: {line}", flush=True)
                if args.out:
                    report = {
                        "threads": args.threads,
                        "clock": args.clock,
                        "repeats": args.repeats,
                        **versions,
                        "results": results,
                    }
                    args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
