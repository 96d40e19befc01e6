"""What the endpoint costs: requests through it with OpenAI's client against the bare sampler, in turns on the same machine.

python lab/speed/endpoint.py [--at-once 1 8 32] [--repeats 7] [--waves 4] [--threads 1] [--out FILE.json]

Both are given the same prompts and seeds, and sample completions of exactly the same length: the endpoint in waves of so
many requests at once, the sampler in batches of as many. The client runs in the process of the endpoint, as with
`gspo.serve`. Reported are medians over the repeats, the median of the paired ratios with a 95 % interval, and what a request
waits longer for its answer than for the bare batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from paired import median_interval

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.types import Prompt

MODELS = {
    # name: (configuration, tokens of a prompt, tokens of a completion)
    "0.5M": (tiny_qwen3_moe(), 40, 100),
    "3.4M": (tiny_qwen3_moe(hidden=128, layers=4, experts=16, expert_width=128), 40, 57),
}
LETTERS = [chr(0x4E00 + i) for i in range(126)]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class Sides:
    """A served model, asked through the endpoint or by itself. at_once: requests of a wave. waves: of a repeat."""

    def __init__(self, served: Any, prompt: int, completion: int, at_once: int, waves: int) -> None:
        self.served, self.prompt, self.completion, self.at_once, self.waves = served, prompt, completion, at_once, waves

    def messages(self, number: int) -> list[dict[str, str]]:
        """What request `number` asks."""
        draw = np.random.default_rng(number)
        return [{"role": "user", "content": "".join(draw.choice(LETTERS, self.prompt))}]

    def numbers(self, repeat: int) -> list[list[int]]:
        """Those of the requests of a repeat, by wave."""
        first = repeat * self.waves * self.at_once
        return [[first + wave * self.at_once + i for i in range(self.at_once)] for wave in range(self.waves)]

    async def endpoint(self, client: Any, repeat: int) -> list[list[float]]:
        """Seconds of each request, by wave."""
        return [await asyncio.gather(*(self._ask(client, number) for number in wave)) for wave in self.numbers(repeat)]

    async def _ask(self, client: Any, number: int) -> float:
        begin = time.perf_counter()
        answer = await client.chat.completions.create(
            model="policy", messages=self.messages(number), max_tokens=self.completion, seed=number
        )
        seconds = time.perf_counter() - begin
        if answer.usage.completion_tokens != self.completion or answer.usage.prompt_tokens != self.prompt:
            raise RuntimeError(f"a completion of {answer.usage}: the endpoint did not do the same work")
        return seconds

    def bare(self, repeat: int) -> list[float]:
        """Seconds of each batch."""
        chat, seconds = self.served.chat, []
        for wave in self.numbers(repeat):
            prompts = [Prompt(str(number), "", chat.encoded(self.messages(number))[1]) for number in wave]
            seeds = [np.random.SeedSequence([chat.sampling.seed, number]).generate_state(1).tolist()[0] for number in wave]
            sampling = replace(chat.sampling, max_new_tokens=self.completion, seed=tuple(seeds))
            begin = time.perf_counter()
            rollouts = self.served.run.sampler.generate(prompts, 1, sampling)
            seconds.append(time.perf_counter() - begin)
            if any(int(rollout.sampled.sum()) != self.completion for rollout in rollouts):
                raise RuntimeError("the sampler did not do the same work")
        return seconds


def compare(sides: Sides, repeats: int, warm_up: int) -> dict[str, Any]:
    """Requests and tokens a second of both, the ratio, and what a request waits longer."""
    count, sizes = sides.at_once * sides.waves, []
    rates: dict[str, list[float]] = {"endpoint": [], "bare": []}
    added: list[float] = []

    async def measured() -> None:
        async with sides.served.openai_client(max_retries=0, timeout=600) as client:
            for repeat in range(repeats + warm_up):
                seconds: dict[str, list[Any]] = {}
                for side in ("endpoint", "bare") if repeat % 2 else ("bare", "endpoint"):
                    begin = time.perf_counter()
                    if side == "endpoint":
                        with Counting(sides.served.run.sampler, sizes):
                            seconds[side] = await sides.endpoint(client, repeat)
                        rate = count / (time.perf_counter() - begin)
                    else:
                        seconds[side] = sides.bare(repeat)
                        rate = count / sum(seconds[side])
                    if repeat >= warm_up:
                        rates[side].append(rate)
                if repeat >= warm_up:
                    waits = zip(seconds["endpoint"], seconds["bare"])
                    added.extend(wait - call for wave, call in waits for wait in wave)

    asyncio.run(measured())
    ratios = [a / b for a, b in zip(rates["endpoint"], rates["bare"])]
    low, high, coverage = median_interval(ratios)
    return {
        "requests": {side: statistics.median(values) for side, values in rates.items()},
        "tokens": {side: statistics.median(values) * sides.completion for side, values in rates.items()},
        "ratio": {"median": statistics.median(ratios), "low": low, "high": high, "coverage": coverage},
        "added_seconds": {"median": statistics.median(added), "p95": float(np.quantile(added, 0.95))},
        "mean_batch": statistics.mean(sizes),
    }


class Counting:
    """Notes the sizes of the batches that a sampler is given."""

    def __init__(self, sampler: Any, sizes: list[int]) -> None:
        self.sampler, self.sizes = sampler, sizes

    def __enter__(self) -> None:
        generate = self.sampler.generate

        def counted(prompts: Any, *arguments: Any) -> Any:
            self.sizes.append(len(prompts))
            return generate(prompts, *arguments)

        self.sampler.generate = counted

    def __exit__(self, *_: object) -> None:
        del self.sampler.generate


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A model at every number of requests at once."""
    outline, prompt, completion = MODELS[name]
    tokenizer = longest_match_tokenizer(LETTERS)
    tokenizer.chat_template = TEMPLATE
    tiny = build_tiny(outline, tokenizer)
    rows = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        gspo.serve(tiny.model, tokenizer=tokenizer, log={"dir": f"{scratch}/run"}) as served,
    ):
        served.chat.sampling = replace(served.chat.sampling, stop_ids=())  # no completion ends early
        for at_once in options.at_once:
            row = compare(Sides(served, prompt, completion, at_once, options.waves), options.repeats, options.warm_up)
            rows.append({"model": name, "at_once": at_once} | row)
            show(rows[-1])
    return rows


def show(row: dict[str, Any]) -> None:
    """A line."""
    requests, tokens, ratio, added = (row[key] for key in ("requests", "tokens", "ratio", "added_seconds"))
    print(
        f"{row['model']}, {row['at_once']} at once: {requests['endpoint']:.1f} requests/s, "
        f"{tokens['endpoint']:,.0f} tokens/s; bare {requests['bare']:.1f}, {tokens['bare']:,.0f}; "
        f"ratio {ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]; batches of {row['mean_batch']:.1f}; "
        f"a request waits {1e3 * added['median']:.1f} ms longer, p95 {1e3 * added['p95']:.1f} ms",
        flush=True,
    )


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--waves", type=int, default=4, help="of requests in a repeat")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/endpoint.json"), help="file for all the numbers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = {
        "machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count(), "threads": options.threads,
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    results = [row for name in options.models for row in measure(name, options)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(machine | {"repeats": options.repeats, "results": results}, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
