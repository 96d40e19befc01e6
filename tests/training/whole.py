"""Whole runs of a tiny model, and what their files say."""

import json
from pathlib import Path

import gspo
from gspo.backends.hf.sampler import HFSampler
from gspo.interfaces import SamplerError
from tests.tiny_run import ROWS, likes_a, model, settings


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def numbers(folder):
    """The metrics without times and throughputs."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and k != "tokens_per_second"}
        for line in lines(folder / "metrics.jsonl")
    ]


def train(folder, resume=False, allow=(), reward=likes_a, tiny=None, **changes):
    tiny, config = tiny or model(), settings(folder, **changes)
    return gspo.train(tiny.model, ROWS, reward, tokenizer=tiny.tokenizer, resume=resume, allow=allow, config=config)


class Failing:
    """Makes a method of the sampler fail at its k-th call in training, as a dead engine does."""

    def __init__(self, monkeypatch, name, k):
        method, calls = getattr(HFSampler, name), []

        def wrapped(sampler, *args):
            calls.append(name)
            if len(calls) == k:
                if name == "load":
                    sampler.version = args[0].version  # as the port has it
                raise SamplerError("the engine is dead")
            return method(sampler, *args)

        monkeypatch.setattr(HFSampler, name, wrapped)


REQUIRED = """
    step reward reward_std frac_reward_zero_std clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean
    clip_ratio/tokens ratio/mean ratio/std ratio/noise_floor entropy kl grad_norm lr completions/mean_length
    completions/clipped_ratio tokens time/sample time/score time/train tokens_per_second
""".split()
