"""Run with vLLM's interpreter by test_in_process.py: what it prints is what was found, a JSON line each."""

import json
import sys
from pathlib import Path

import torch

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.backends.vllm.errors import EngineError
from gspo.learner.weights import PolicyWeights
from gspo.types import Rollout, Sampling
from tests.backends.vllm.engine.servers import (  # fmt: skip
    ENGINE_ARGS,
    MODELS,
    adapted_policy,
    change,
    change_adapters,
    gaps,
    interrupt,
    policy_of,
    prompts,
    served,
)
from tests.tiny_run import PIECES, ROWS, likes_a, settings


def tell(**facts):
    print(json.dumps(facts), flush=True)


def updates(name):
    """Agreement over weight updates, corrupt weights, interrupted completions, a lost engine."""
    policy = policy_of(name)
    with served(policy, in_process=True, batch_size=4) as sampler:
        for version in range(1, 4):
            change(policy.model.model, 0.05, version)
            sampler.load(PolicyWeights(policy, version))
            tell(gap=float(gaps(sampler, policy, version).max()))
        sampler.sleep_level = 2
        expected = [r.tokens.tolist() for r in sampler.generate(prompts(), 2, Sampling(8))]
        sampler.begin(Rollout.begun(prompts()[0]), 0, Sampling(90)).cancel()
        sampler.rest()
        sampler.load(PolicyWeights(policy, 4))
        tell(slept=[r.tokens.tolist() for r in sampler.generate(prompts(), 2, Sampling(8))] == expected)
        sampler.sleep_level = 0
        rollouts, models = interrupt(sampler, policy, 0.02, routes=True)
        tell(versions=len(models), whole=all(int(r.sampled.sum()) == 90 for r in rollouts))
        sampler.server._engine.step = broken
        rollouts = sampler.generate(prompts(), 2, Sampling(8))
        tell(again=len(rollouts), said=sampler.said)
        change(policy.model.model, 0.05, 99)  # the engine is not told
        try:
            sampler.check(PolicyWeights(policy, sampler.version))
        except EngineError as error:
            tell(stale=str(error)[:40])


def broken():
    raise RuntimeError("out of memory")


def adapter():
    policy = adapted_policy("dense")
    with served(policy, rank=4, in_process=True) as sampler:
        for version in range(1, 3):
            change_adapters(policy, 0.05, version)
            sampler.load(PolicyWeights(policy, version))
            tell(gap=float(gaps(sampler, policy, version).max()), adapters=sampler.server.adapters)


def run(folder):
    """A training run that replays vLLM's experts and samples ahead."""
    tiny = build_tiny(MODELS["moe"], longest_match_tokenizer(PIECES))
    config = settings(
        folder, sampler={"engine": "vllm", "in_process": True, "engine_args": ENGINE_ARGS}, train={"steps": 4},
        algorithm={"router_replay": "R3"}, rollout={"max_staleness": 1}, eval={"every": 0},
    )  # fmt: skip
    gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config)
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        tell(step=metrics["step"], volatility=metrics["moe/volatility"], kl=metrics["mismatch/kl"])


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]](*sys.argv[2:])
