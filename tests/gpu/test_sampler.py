"""The embedded sampler and the trainer say the same of what was sampled, and a token costs few waits."""

from contextlib import nullcontext

import pytest
import torch

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from gspo.objective.completions import Completions
from gspo.objective.mismatch import mismatch
from gspo.types import Completion, Sampling
from tests.backends.hf.families import FAMILIES, TOKENIZER, prompts
from tests.fake_device import fake_gpu
from tests.gpu.test_exactness import waits

pytestmark = pytest.mark.gpu
# Of KL(mu || pi), nats a token, and of |pi - mu|. TF32 would show in the first.
LIMITS = {"none": (1e-9, 1e-4), "bfloat16": (1e-2, 0.3)}
NEW = 64  # tokens at most
EACH = 4  # tokens between two looks for the end of completions
ONCE = 8  # waits of a batch: prompts and results


def tiny(name, device, autocast):
    return build_tiny(FAMILIES[name], TOKENIZER, 0, ModelConfig(device=device, autocast=autocast))


@pytest.mark.parametrize("autocast", LIMITS)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gemma3"])
def test_sampler_and_trainer_agree(name, autocast, device, report):
    model = tiny(name, device, autocast)
    rollouts = HFSampler(model, 32).generate(prompts(4, 9, 30), 8, Sampling(NEW, stop_ids=model.stop_ids, seed=1))
    batch = [Completion(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 1.0) for r in rollouts]
    built = layout.build(batch)
    with torch.no_grad():
        logp = HFPolicy(model).forward(built).logp.cpu()
    found = mismatch(logp, built.logp_mu, Completions.of(built.length))
    kl, gap = LIMITS[autocast]
    report.check(f"sampler against trainer ({name}, autocast {autocast}): KL, nats a token", found["mismatch/kl"], most=kl)
    what = "largest difference of a probability"
    report.check(f"sampler against trainer ({name}, autocast {autocast}): {what}", found["mismatch/prob_max"], most=gap)


@pytest.mark.parametrize("options", [{}, {"stop": ("ab",)}], ids=["stop tokens", "stop strings"])
def test_how_often_sampling_waits(options, device, report):
    sampling = Sampling(NEW, stop_ids=(), seed=1, **options)
    HFSampler(tiny("qwen3", device, "none"), 32).generate(prompts(4, 9), 4, sampling)  # what waits at first alone
    with fake_gpu() if device == "cpu" else nullcontext() as fake:
        sampler = HFSampler(tiny("qwen3", "cuda", "none"), 32)
        with (waits if fake is None else fake.watched)() as seen:
            sampler.generate(prompts(4, 9), 4, sampling)
    what = "stop strings" if options else "stop tokens"
    report.check(f"sampling 64 tokens with {what}: how often the host waits", len(seen), most=NEW / EACH + ONCE)
