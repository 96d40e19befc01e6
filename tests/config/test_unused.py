"""Every option has an effect where it is accepted: each field is flipped, with all others at their defaults."""

import dataclasses
import os
import re

import pytest

from gspo.config.algorithm import resolved
from gspo.config.commands import check_command
from gspo.config.files import from_dict
from gspo.config.names import all_keys
from gspo.config.schema import SECTIONS, Config
from gspo.config.unused import check_unused

pytestmark = pytest.mark.usefixtures("all_installed")
BASE = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}, "reward": {"functions": ["exact"]}}

PLAYED = {"reward": {"functions": ["task"]}, "task": {"environment": "rooms:Room"}}
VLLM = {"sampler": {"engine": "vllm"}}
HUB = {"task": {"source": "org/rows"}}
MODEL = {"reward": {"functions": ["model"]}, "reward_model": {"path": "m"}}
SERVER = {"reward": {"functions": ["model"]}, "reward_model": {"path": "m", "url": "http://127.0.0.1:8000"}}
JUDGE = {"reward": {"functions": ["judge"]}, "judge": {"model": "m", "rubric": "r"}}
TAUGHT = {"algorithm": {"name": "gspo_token"}, "teacher": {"path": "t"}}
TAUGHT_BY_SERVER = {**TAUGHT, "teacher": {"path": "t", "url": "http://127.0.0.1:8000/v1"}}
RANKS, PAIRS = ({**JUDGE, "judge": {**JUDGE["judge"], "mode": mode}} for mode in ("rank", "pairs"))
RUNNING = {"sampler": {"engine": "vllm", "urls": ["http://127.0.0.1:8000"]}}


def merged(*tables):
    """Nested tables laid over one another."""
    made = {}
    for table in tables:
        for section, values in table.items():
            made[section] = made.get(section, {}) | values
    return made


def by_key(*table):
    """{key: what goes with it} of (what goes with them, "key key section.*") rows, of which the later ones count."""
    return {
        key: tables
        for tables, words in table
        for word in words.split()
        for key in ([k for k in all_keys() if k.startswith(word[:-1])] if word.endswith(".*") else [word])
    }


# What must be set too for a field to have an effect; None: nothing in `gspo train`.
NEEDS = by_key(
    (None, "task.completion_column rollout.top_p rollout.top_k train.batch_size serve.*"),
    ({"lora": {"rank": 2}}, "lora.alpha lora.targets model.quantize"),
    (HUB, "task.split task.config task.eval_split"),
    ({"reward": {"functions": ["task"]}}, "task.environment"),
    (PLAYED, "task.max_turns task.step_timeout"),
    (MODEL, "reward_model.*"),
    (SERVER, "reward_model.key_variable reward_model.timeout reward_model.retries reward_model.max_concurrent"),
    (JUDGE, "judge.*"),
    (RANKS, "judge.seed"),
    (VLLM, "sampler.engines sampler.urls sampler.python sampler.engine_args sampler.weight_dir sampler.timeout"),
    (VLLM, "sampler.quantization sampler.kv_cache_dtype sampler.speculative_config sampler.weight_check_limit"),
    (VLLM, "sampler.start_timeout sampler.sync_timeout sampler.weight_transfer sampler.sleep_level rollout.max_staleness"),
    ({"reward": {"functions": ["code"]}}, "code.*"),
    ({"reward": {"functions": ["mine:f"]}}, "reward.env_passthrough"),
    ({"algorithm": {"epsilon_high": 1e-3}}, "algorithm.epsilon"),
    ({"algorithm": {"epsilon": 1e-3}}, "algorithm.epsilon_high"),
    ({"algorithm": {"beta": 0.1}}, "algorithm.kl_estimator train.offload_reference"),
    ({"algorithm": {"name": "grpo"}, **PLAYED}, "algorithm.credit"),
    ({"algorithm": {"name": "grpo", "credit": "turn"}, **PLAYED}, "algorithm.discount"),
    ({"algorithm": {"epsilon": "auto"}}, "algorithm.clip_target"),
    ({"algorithm": {"kl_cov": 0.1}}, "algorithm.kl_cov_weight"),
    ({"algorithm": {"name": "gspo_token"}}, "teacher.path"),
    (TAUGHT, "teacher.revision teacher.dtype teacher.weight teacher.url"),
    (TAUGHT_BY_SERVER, "teacher.key_variable teacher.timeout teacher.retries teacher.max_concurrent"),
    ({"algorithm": {"old_logprobs": "recompute"}}, "algorithm.correction algorithm.top_entropy"),
    (
        {"algorithm": {"old_logprobs": "recompute", "correction": "tis"}},
        "algorithm.correction_ratio algorithm.correction_low algorithm.correction_high",
    ),
    ({"algorithm": {"name": "ppo"}}, "algorithm.critic"),
    ({"algorithm": {"name": "sapo"}}, "algorithm.constants"),
    ({"optimizer": {"schedule": "cosine"}}, "optimizer.min_lr"),
    ({"refresh": {"drop_above": 0.9}}, "refresh.every"),
    ({"refresh": {"every": 5}}, "refresh.drop_above refresh.drop_below refresh.source"),
    ({"refresh": {"every": 5, "drop_above": 0.9}}, "refresh.min_seen refresh.return_after refresh.keep"),
    ({"guard": {"action": "rewind"}}, "guard.lr_factor guard.max_rewinds"),
    ({"log": {"trackers": ["wandb"]}}, "log.project"),
    ({"eval": {"every": 5}}, "train.keep_best"),
)
# Other fields that keep a field from having an effect, beside those whose default does.
BLOCKED = by_key(
    ({"guard": {"action": "off"}}, "guard.patience guard.window guard.collapse"),
    ({"guard": {"action": "rewind", "max_rewinds": 0}}, "guard.lr_factor"),
    (merged(TAUGHT, {"reward": {"weights": [0.0]}, "eval": {"every": 5}}), "train.keep_best"),
    (TAUGHT_BY_SERVER, "teacher.revision teacher.dtype"),
    ({"eval": {"temperature": 0}}, "eval.top_p eval.top_k eval.num_generations"),
    ({"optimizer": {"min_lr": 1.0}}, "optimizer.schedule"),
    ({"eval": {"num_prompts": 0}}, "eval.every eval.num_generations eval.temperature eval.max_completion_length"),
    ({"eval": {"num_prompts": 0}}, "task.eval_source reward.correct_threshold"),
    ({"task": {"source": "reasoning_gym:gcd"}}, "task.prompt_column"),
    ({"task": {"source": "benchmark:aime24"}, "reward": {"functions": ["math"]}}, "reward.answer_column"),
    ({"refresh": {"every": 5, "source": "rows:new"}}, "refresh.drop_above refresh.keep"),
    (PLAYED, "reward.timeout"),
    (JUDGE, "reward.workers reward.memory"),
    (PLAYED, "task.system"),
    (PAIRS, "judge.scale"),
    ({"log": {"rollouts": False}}, "log.token_rollouts"),
    ({"task": {"source": "verifiers:v"}, "reward": {"functions": ["task"]}}, "task.system"),
    ({"algorithm": {"name": "sapo"}}, "algorithm.epsilon"),
    ({"algorithm": {"name": "dppo_tv", "old_logprobs": "recompute"}}, "algorithm.correction"),
    ({"algorithm": {"name": "grpo", "old_logprobs": "recompute", "correction": "tis"}}, "algorithm.correction_ratio"),
    ({"algorithm": {"name": "ppo"}}, "rollout.dynamic_sampling_rounds"),
    (RUNNING, "sampler.engine_args sampler.engines"),
    (RUNNING, "sampler.quantization sampler.kv_cache_dtype sampler.speculative_config"),
    (merged(RUNNING, {"sampler": {"weight_transfer": "broadcast"}}), "sampler.weight_dir"),
)
VALUES = {
    "task.date": "2026-01-31",
    "model.device": "cpu", "model.path": "other", "task.source": "others.jsonl", "reward.functions": ["math"],
    "reward.weights": [2.0], "reward.env_passthrough": ["KEY"], "lora.targets": ["q_proj"], "rollout.stop": ["x"],
    "algorithm.name": "luspo", "optimizer.min_lr": 0.5, "algorithm.scale_rewards": "batch",
    "algorithm.epsilon": 2e-3, "algorithm.epsilon_high": 2e-3, "algorithm.constants": {"tau_neg": 1.2}, "optimizer.lr": 1e-3,
    "log.trackers": ["wandb"], "sampler.engine": "vllm",
    "sampler.speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    "sampler.urls": ["http://127.0.0.1:9000"], "reward_model.url": "http://127.0.0.1:9000", "judge.url": "http://127.0.0.1:9000",
    "algorithm.critic": "copy", "algorithm.mini_batches": 2,
    "algorithm.correction_low": 0.9, "algorithm.correction_high": 1.1, "rollout.num_prompts": 64,
    "task.benchmarks": ["aime.txt"], "refresh.drop_below": 0.1, "refresh.source": "rows:new",
    "teacher.url": "http://127.0.0.1:9000/v1", "reward_model.label": "0", "judge.request": {"seed": 1},
}  # fmt: skip


def other(key):
    """A value that differs from the field's default."""
    section, name = key.split(".")
    field = next(f for f in dataclasses.fields(SECTIONS[section]) if f.name == name)
    default, limits = getattr(SECTIONS[section](), name), field.metadata
    if key in VALUES:
        return VALUES[key]
    if limits["choices"]:
        return next(choice for choice in limits["choices"] if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, dict):
        return {"x": 1}
    if isinstance(default, (int, float)):
        return default + 1 if limits["high"] >= default + 1 else default / 2
    return (limits["low"] or 0) + 1 if limits["high"] is not None else "other"


def flipped(key, *tables):
    """The configuration with all that `gspo train` checks before it loads anything."""
    section, name = key.split(".")
    config = from_dict(merged(BASE, *tables, {section: {name: other(key)}}))
    check_command(config, "train")
    return resolved(config)


def used():
    """The fields that have an effect in `gspo train` where nothing else is set."""
    return [key for key in all_keys() if key not in NEEDS]


def test_a_field_that_needs_nothing_is_accepted_alone(subtests):
    """That it is read, tools/checks/test_fields.py finds."""
    for key in used():
        with subtests.test(key=key):
            flipped(key)


def test_a_field_that_needs_another_is_refused_without_it(subtests):
    for key, needs in NEEDS.items():
        with subtests.test(key=key):
            with pytest.raises(ValueError, match=rf"{re.escape(key.split('.')[0])}.*{key.split('.')[1]}"):
                flipped(key)
            if needs is not None:
                flipped(key, needs)


def test_a_field_that_another_takes_the_effect_of_is_refused(subtests):
    for key, tables in BLOCKED.items():
        with subtests.test(key=key), pytest.raises(ValueError, match=rf"{key.split('.')[0]}.*{key.split('.')[1]}"):
            flipped(key, tables)


def test_the_defaults_say_nothing():
    for command, tables in (("train", BASE), ("sft", BASE | {"reward": {}}), ("eval", BASE)):
        check_unused(from_dict(tables), command)
    check_command(from_dict({"model": {"path": "m"}}), "serve")
    # `gspo eval` and `gspo sft` of a run's own file
    check_unused(from_dict({"optimizer": {"lr": 1e-3}, "train": {"steps": 3}, "serve": {"port": 1}}), "eval")
    check_unused(from_dict({"train": {"seed": 3}, "lora": {"rank": 2}}), "sft")


REFUSED = [
    ("eval.every = 5 has no effect: `gspo sft` imitates rows", ("sft", {"eval": {"every": 5}})),
    ("train.seed = 3 has no effect: .*task.seed", ("sft", {"train": {"seed": 3}})),
    ("train.batch_size = 8 has no effect: .*rollout.num_prompts", ("train", {"train": {"batch_size": 8}})),
    ("rollout.num_prompts = 8 has no effect: agents bring", ("serve", {"rollout": {"num_prompts": 8}})),
    (r"stage\[0\].at = 5 has no effect: `gspo sft`", ("sft", {"stage": [{"at": 5, "temperature": 0.5}]})),
    ("lora.alpha = 8.0 has no effect: .* lora.rank = 0", ("serve", {"lora": {"alpha": 8}})),
    ("lora.alpha = 8.0 has no effect", ("eval", {"lora": {"alpha": 8}})),
]


def test_each_command_says_why_it_reads_a_field_not(refuses):
    refuses(lambda pair: check_unused(from_dict(pair[1]), pair[0]), REFUSED)


# What `gspo sft` and `gspo serve` read, sections as a whole or without some; all else they refuse.
LEARNING = "model lora optimizer scale log train"
USED = {
    "sft": (
        f"{LEARNING} task eval.num_prompts",
        "log.rollouts log.token_rollouts train.offload_reference train.keep_best task.environment task.max_turns "
        "task.step_timeout",
    ),
    "serve": (
        f"{LEARNING} algorithm teacher sampler rollout guard serve code.sandbox task.date task.template task.template_args",
        "train.batch_size train.keep_best "
        "rollout.num_prompts rollout.num_generations rollout.dynamic_sampling_rounds rollout.max_staleness "
        "rollout.top_p rollout.top_k rollout.overlong_buffer rollout.keep_special_tokens sampler.sleep_level code.sandbox",
    ),
}
# What must be set too for it, where that is something else than in `gspo train`.
ALSO = {
    "sft": {"train.seed": {"lora": {"rank": 2}}},
    "serve": {
        "train.steps": {"optimizer": {"schedule": "cosine"}}, "algorithm.credit": {"algorithm": {"name": "grpo"}},
        "algorithm.discount": {"algorithm": {"name": "grpo", "credit": "turn"}},
    },
}  # fmt: skip


def checked(command, *tables):
    """The settings are read for `gspo sft` or `gspo serve`, which say what has no effect."""
    source = {"task": {"source": "rows.jsonl"}} if command == "sft" else {}
    config = from_dict(merged({"model": {"path": "m"}}, source, *tables))
    if command == "serve":
        check_command(config, "serve")
        return resolved(config, samples=False)
    check_unused(config, command, filled=resolved(Config())[0])


def read_by(command, key):
    used, but = (words.split() for words in USED[command])
    return bool({key, key.split(".")[0]} & set(used)) and key not in but


@pytest.mark.parametrize("command", USED)
def test_a_command_reads_a_field_or_refuses_it(command, subtests):
    for key in all_keys():
        with subtests.test(key=key):
            section, name = key.split(".")
            flip, needs = {section: {name: other(key)}}, ALSO[command].get(key, NEEDS.get(key))
            if read_by(command, key):
                checked(command, needs or {}, flip)
                continue
            for beside in ({}, needs or {}):
                with pytest.raises(ValueError, match=rf"{section}.*{name}" if not beside else ""):
                    checked(command, beside, flip)


def test_what_gspo_config_prints_can_be_used_again():
    for command in ("train", "sft"):
        tables = BASE if command == "train" else {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}}
        check_unused(resolved(from_dict(tables))[0], command, resolved(Config())[0])


def test_what_changes_nothing_is_refused(refuses):
    """A stage that sets what holds already."""
    rollout = {"temperature": 0.7, "max_completion_length": 64, "num_generations": 4}
    stages = [
        *([{"at": 2, name: value}] for name, value in rollout.items()),
        *([{"at": 2, name: 9}, {"at": 3, "source": "b.jsonl"}, {"at": 5, name: 9, "source": "c.jsonl"}] for name in rollout),
        [{"at": 2, "temperature": 0.7, "num_generations": 8}], [{"at": 2, "source": "rows.jsonl"}],
        [{"at": 2, "source": "./rows.jsonl"}],
        [{"at": 2, "source": "b.jsonl"}, {"at": 3, "source": os.path.abspath("b.jsonl")}],
        [{"at": 2, "source": "b.jsonl"}, {"at": 3, "temperature": 1.0}, {"at": 4, "source": "b.jsonl"}],
    ]  # fmt: skip
    base = merged(BASE, {"rollout": rollout})
    refuses(
        lambda stage: from_dict(base | {"stage": stage}),
        [(r"stage\[\d\].* has no effect: it holds before", s) for s in stages],
    )
    back = [{"at": 2, "source": "b.jsonl", "temperature": 1.0}, {"at": 4, "source": "rows.jsonl", "temperature": 0.7}]
    assert len(from_dict(base | {"stage": back}).stage) == 2
    own = merged(base, {"task": {"source": "rows:make", "config": {"n": 1}}})  # a stage reads it without task.config
    assert from_dict(own | {"stage": [{"at": 2, "source": "rows:make"}]}).stage
