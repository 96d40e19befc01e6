"""Agents ask a served model that a real engine samples, while it learns: updates interrupt turns, which then go on."""

import asyncio
import copy
from types import SimpleNamespace

from gspo.backends.hf.tiny import build_tiny, tiny_qwen3_moe
from tests.agents.talking import tokenizer
from tests.backends.vllm.engine.servers import PYTHON, SMALL
from tests.rollout.test_asynchronous_episodes import gaps
from tests.serving.served import serving
from tests.serving.test_model import collected

ENGINE = {"engine": "vllm", "python": PYTHON, "engine_args": {"enforce_eager": True, "max_model_len": 512}}


def talker():
    return build_tiny(tiny_qwen3_moe(**SMALL | {"context": 512}), tokenizer("chatml"))


def interrupted(rollouts):
    """How many turns have tokens of several versions."""
    met = 0
    for rollout in rollouts:
        versions, turns = rollout.version[rollout.sampled], rollout.turn[rollout.sampled]
        assert (versions.diff() >= 0).all()
        met += sum(len(versions[turns == turn].unique()) > 1 for turn in turns.unique())
    return met


def test_an_update_interrupts_turns_and_each_token_keeps_its_version_and_likelihood(tmp_path):
    """One batch is learned from while the next one is sampled."""
    metrics, rollouts = [], []

    async def main():
        sections = {"rollout": {"max_completion_length": 120}, "serve": {"max_age": 2}, "sampler": ENGINE}
        async with serving(tmp_path / "run", hf=talker(), **sections) as model:
            module = model.run.learner.policy.model.model
            models, batch = {0: copy.deepcopy(module.state_dict())}, await collected(model, 1, 8, 2)
            while len(metrics) < 12 and interrupted(rollouts) < 3:
                learned, batch = await asyncio.gather(model.train(batch), collected(model, 1, 8, 2))
                metrics.append(learned)
                models[model.run.sampler.version] = copy.deepcopy(module.state_dict())
                rollouts.extend(rollout for group in model.source.groups for rollout in group.rollouts)
            return models

    models = asyncio.run(main())
    assert list(models) == list(range(len(metrics) + 1)) and interrupted(rollouts) >= 3
    assert all(line["turns/trained"] == 16 and line["turns/left_out"] == 0 for line in metrics)
    assert all(line["mismatch/kl"] < 1e-6 and line["staleness"] <= 2 for line in metrics)
    weights, others, worst = SimpleNamespace(hf=talker(), models=models), [], 0.0
    for rollout in rollouts:
        versions = rollout.version[rollout.sampled]
        for version in versions.unique().tolist():
            gap = gaps(rollout, weights, version)
            worst = max(worst, float(gap[versions == version].max()))
            others += gap[versions != version].tolist()
    print(f"{interrupted(rollouts)} turns of {16 * len(metrics)} interrupted; {worst:.1g}, {sum(others) / len(others):.2g}")
    assert worst < 1e-4 and sum(others) / len(others) > 1e-3
