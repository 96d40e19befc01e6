"""Who learns, by the configuration."""

from importlib.util import find_spec

import pytest

from gspo.assembly.learners import learning, learning_rate, longest_read, size, supervised_learning
from gspo.backends.hf.lora import adapted, packed
from gspo.backends.hf.policy import HFPolicy
from gspo.config.algorithm import resolved
from gspo.config.files import from_dict
from gspo.config.policy import LoraConfig, ModelConfig
from gspo.learner.imitation import Imitation
from tests import tiny_run


def config(**sections):
    return resolved(from_dict({"train": {"steps": 5, "micro_batch_tokens": 77, "seed": 3}} | sections))[0]


@pytest.mark.parametrize(("name", "critic", "level"), [("gspo", False, "sequence"), ("ppo", True, "token")])
def test_the_learner_is_what_the_settings_say(name, critic, level):
    reference = HFPolicy(tiny_run.model())
    settings = config(algorithm={"name": name, "epochs": 3, "router_replay": "R3"})
    policy, learner = learning(settings, tiny_run.model(), {"logp_ref": reference})
    assert (policy.critic is not None) == critic and learner.objective.row.level == level
    assert learner.optimizer.total == 5 * settings.algorithm.mini_batches * 3 and learner.micro_batches.max_tokens == 77
    assert learner.seed == settings.train.seed == 3
    assert learner.updater.replay and learner.router_replay == "R3" and learner.frozen["logp_ref"] is reference
    _, learner = supervised_learning(settings, tiny_run.model())
    assert isinstance(learner.objective, Imitation) and learner.optimizer.total == 5


def test_the_learning_rate_follows_from_the_size_where_it_is_not_set():
    for kind, model in ((learning, tiny_run.model()), (supervised_learning, tiny_run.model())):
        _, learner = kind(config(), model, {})
        assert learner.optimizer.config.lr == 1e-5  # as small as can be
    _, learner = learning(config(optimizer={"lr": 0.25}), tiny_run.model(), {})
    assert learner.optimizer.config.lr == 0.25


def test_the_size_counts_all_weights_once_and_neither_adapters_nor_a_critic():
    model = tiny_run.model()
    count = sum(p.numel() for p in model.model.parameters())
    learning(config(algorithm={"name": "ppo", "critic": "copy"}), model, {})
    assert size(model) == count
    model, settings = adapted(model, LoraConfig(rank=2)), config(lora={"rank": 2})
    assert size(model) == count and learning_rate(settings, model) == 1e-4
    if find_spec("bitsandbytes"):
        assert size(packed(model, ModelConfig(quantize="nf4"))) == count


@pytest.mark.parametrize(
    "task, prompts, limit, tokens",
    [
        ({}, [3, 5], 8, 13),
        ({"environment": "rooms:Room", "max_turns": 4}, [3, 5], 8, 37),
        ({"environment": "rooms:Room", "max_turns": 40}, [3, 5], 8, 154),  # two micro-batches
        ({"environment": "rooms:Room", "max_turns": 40}, [3, 5], 200, 205),
        ({}, [], 8, 154),
        ({}, [], 200, 201),
    ],
)
def test_memory_is_checked_for_a_whole_conversation(task, prompts, limit, tokens):
    given = from_dict(
        {
            "task": task, "train": {"micro_batch_tokens": 77}, "rollout": {"max_completion_length": limit},
            "stage": [{"at": 3, "max_completion_length": 9}],
        }
    )  # fmt: skip
    assert longest_read(given, prompts, 2) == tokens
    assert prompts or longest_read(given, prompts, 3) == 154
