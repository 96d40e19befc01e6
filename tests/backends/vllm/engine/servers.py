"""Real vLLM servers for tiny models, started once for all tests that need them."""

import copy
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch

import gspo
from gspo.backends.hf.lora import adapted, packed
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.backends.vllm.choose_transfer import choose_transfer
from gspo.backends.vllm.open import sampler_of
from gspo.config.policy import LoraConfig, ModelConfig
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.learner import layout
from gspo.learner.weights import PolicyWeights
from gspo.types import Completion, Prompt, Rollout, Sampling
from tests.tiny_run import PIECES, ROWS, likes_a, settings

PYTHON = os.environ.get("GSPO_VLLM_PYTHON", "")
ENGINE_ARGS = {"enforce_eager": True, "max_model_len": 128}
ENGINE = {"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS}
# Two cores: one thread a process, nothing bound to a core, little room for keys and values.
os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}

SMALL = {"hidden": 64, "layers": 2, "experts": 4, "expert_width": 64, "heads": 2, "kv_heads": 1, "context": 128}
MOE = tiny_qwen3_moe(**SMALL)
UNTIED = MOE | {"tie_word_embeddings": False}
DENSE = {name: value for name, value in MOE.items() if "expert" not in name and "topk" not in name} | {"model_type": "qwen3"}
MODELS = {"moe": MOE, "moe, untied": UNTIED, "dense": DENSE}


def policy_of(name, dtype="float32", seed=0):
    """A tiny policy. Its weights are large enough that no token is nearly certain, and none is alike."""
    tiny = build_tiny(MODELS[name], longest_match_tokenizer(PIECES), seed, ModelConfig(device="cpu", dtype=dtype))
    change(tiny.model, 0.1, seed)
    return HFPolicy(tiny)


@torch.no_grad()
def change(model, size, seed):
    """Moves every weight of a model at random, or every one of a policy that is trained."""
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.add_(size * torch.randn(p.shape, generator=g).to(p.dtype))


def adapted_policy(name, rank=4, dtype="float32", targets=("all-linear",), quantize="none"):
    """A tiny policy with adapters that do something, on weights of few bits where `quantize` says so."""
    model = adapted(policy_of(name, dtype).model, LoraConfig(rank=rank, targets=[*targets]))
    policy = HFPolicy(model if quantize == "none" else packed(model, ModelConfig(device="cpu", quantize=quantize)))
    change(policy, 0.3, 0)
    return policy


@contextmanager
def served(policy, rank=0, **options):
    """A sampler with a server of its own, or several (`engines`), that hold the weights of `policy`, version 0. rank: of its
    adapters. Its `server` is the first.
    """
    given = SamplerConfig(**ENGINE | options)
    with tempfile.TemporaryDirectory(prefix="gspo-test-", dir="/dev/shm") as scratch:
        config = Config(sampler=given, lora=LoraConfig(rank=rank))
        sampler = sampler_of(config, policy, PolicyWeights(policy, 0), Path(scratch))
        sampler.said, sampler.server, sampler.weight_dir = [], sampler.fleet.members[0].engine, Path(scratch)
        sampler.fleet.notify = sampler.said.append
        try:
            sampler.fleet.start()
            engines = [member.engine for member in sampler.fleet.members]
            sampler.transfer = choose_transfer(given, policy, engines, Path(scratch))
            sampler.load(PolicyWeights(policy, 0))
            yield sampler
        finally:
            sampler.fleet.stop()
            if keep := os.environ.get("GSPO_VLLM_LOGS"):
                shutil.copy(sampler.server.log, Path(keep) / f"{Path(scratch).name}.log")


def prompts(count=4):
    """Prompts of different lengths."""
    return [Prompt(str(i), "", tuple(2 + (i * j) % 12 for j in range(1, 4 + 3 * i))) for i in range(1, count + 1)]


def interrupt(sampler, policy, size, routes=False):
    """Moves the weights again and again while completions are sampled, until some were met. The completions, and the weights
    of each version.
    """
    models, rollouts, parts = {sampler.version: copy.deepcopy(policy.model.model.state_dict())}, [], 0
    while parts < 3 and len(models) < 60:
        begun = [(Rollout.begun(p), 10 * i + j) for i, p in enumerate(prompts()) for j in range(8)]
        jobs = [sampler.begin(*start, Sampling(90, seed=len(rollouts), routes=routes)) for start in begun]
        while not all(job.done() for job in jobs):
            time.sleep(0.05)
            change(policy.model.model, size, len(models))
            version = sampler.version + 1
            models[version] = copy.deepcopy(policy.model.model.state_dict())
            sampler.load(PolicyWeights(policy, version))
        rollouts += [job.result() for job in jobs]
        parts = sum(len(r.version[r.sampled].unique()) > 1 for r in rollouts)
    assert parts >= 3, f"of {len(rollouts)} completions {parts} were interrupted"
    return rollouts, models


def gaps(sampler, policy, seed):
    """|log mu - log pi| of sampled tokens."""
    rollouts = sampler.generate(prompts(), 4, Sampling(24, 0.7, seed=seed, stop_ids=(1,)))
    completions = [Completion(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 0.0) for r in rollouts]
    with torch.no_grad():
        policy.temperature = 0.7
        logp = policy.forward(layout.build(completions)).logp
        policy.temperature = 1.0
    return (logp - torch.cat([completion.logp_mu for completion in completions])).abs()


def train(folder, name="moe", resume=False, **sections):
    """A run of a tiny model."""
    tiny = build_tiny(MODELS[name], longest_match_tokenizer(PIECES))
    config = settings(folder, **{"sampler": ENGINE} | sections)
    return gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config, resume=resume)


def lines(folder, name="metrics"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def tokens(rollouts):
    return [rollout.tokens.tolist() for rollout in rollouts]
