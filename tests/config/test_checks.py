"""Checks of several fields at once: each refuses what it is for, with the remedy, and lets the defaults pass."""

import pytest

from gspo.config import checks
from gspo.config.files import from_dict
from gspo.config.schema import Config

NAMED = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}}
VLLM = {"engine": "vllm"}
JUDGE = {"model": "m", "rubric": "r"}
ENVIRONMENT = {"task": {"source": "rows.jsonl", "environment": "boxes:Box"}}


def test_the_defaults_pass_all_but_what_is_required():
    config = from_dict(NAMED)
    checks.check(Config())
    for check in (checks.check_training, checks.check_reference, checks.check_judging):
        check(config)


@pytest.mark.parametrize(
    ("check", "tables", "message"),
    [
        (
            checks.check_training,
            {"task": {"source": "s"}},
            "model.path is required: set it to the folder or Hugging Face id",
        ),
        (checks.check_training, {"model": {"path": "m"}}, "task.source is required"),
        (checks.check_training, {"rollout": {"top_p": 0.9}}, "rollout.top_p = 0.9: training needs the whole distribution"),
        (checks.check_training, {"rollout": {"top_k": 5}}, "rollout.top_k = 5: .*eval.top_k are free"),
        (checks.check_training, {"rollout": {"refill": 2, "delay": 1}}, "rollout.refill = 2 and rollout.delay = 1"),
        (checks.check_training, {"rollout": {"max_staleness": 1}}, "cannot run ahead of it"),
        (
            checks.check_training,
            {"rollout": {"max_staleness": 1, "delay": 2}, "sampler": VLLM},
            "max_staleness = 1 and rollout.delay = 2: set one of them to 0",
        ),
        (checks.check_training, {"lora": {"rank": 4}, "sampler": {"quantize": "int8"}}, "set lora.rank = 0"),
        (
            checks.check_training,
            {"lora": {"rank": 4}, "sampler": VLLM | {"weight_transfer": "broadcast"}},
            r"is not for adapters \(lora.rank = 4\), which takes the folder",
        ),
        (checks.check_training, {"judge": JUDGE}, 'judge.model = .m. has no effect: add "judge" to reward.functions'),
        (checks.check_training, {"reward_model": {"path": "m"}}, 'reward_model.path = .m. has no effect: add "model"'),
        (
            checks.check_training,
            ENVIRONMENT | {"reward": {"functions": ["exact"]}},
            "task.environment gives the reward itself",
        ),
        (checks.check_training, ENVIRONMENT | {"rollout": {"max_staleness": 1}}, "cannot run ahead of it"),
        (checks.check_training, {"task": {"source": "verifiers:v", "system": "s"}}, "has its own messages; unset it"),
        (checks.check_training, {"task": {"source": "verifiers:v", "environment": "a:B"}}, "is an environment itself"),
        (checks.check_training, {"task": {"source": "a", "eval_source": "verifiers:v"}}, "must be verifiers:NAME too"),
        (checks.check_serving, {"eval": {"every": 2}}, "eval.every = 2: agents evaluate themselves"),
        (checks.check_serving, {"rollout": {"refill": 1}}, "rollout.refill = 1: agents choose"),
        (checks.check_serving, {"rollout": {"max_staleness": 1}}, "serve.max_age says how old a turn may"),
        (checks.check_reference, {"train": {"offload_reference": True}}, "algorithm.beta = 0 there is no reference model"),
        (
            checks.check_reference,
            {"train": {"offload_reference": True}, "algorithm": {"beta": 0.1}, "lora": {"rank": 2}},
            "lora.rank = 2 there is no reference model",
        ),
    ],
)
def test_what_does_not_go_together(check, tables, message):
    if "is required" not in message:
        named = {"model": NAMED["model"]} if check is checks.check_serving else NAMED
        tables = {name: named.get(name, {}) | tables.get(name, {}) for name in {*named, *tables}}
    with pytest.raises(ValueError, match=message):
        check(from_dict(tables))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"reward": {"functions": ["judge"]}}, "judge.model is required"),
        ({"reward": {"functions": ["judge"]}, "judge": JUDGE | {"rubric": " "}}, "judge.rubric is required"),
        (
            {"reward": {"functions": ["judge"]}, "judge": JUDGE | {"request": {"n": 2}}},
            "judge.request.n: is set by the judge",
        ),
        (
            {
                "reward": {"functions": ["judge"]},
                "judge": JUDGE | {"mode": "rank"},
                "eval": {"every": 1, "num_generations": 1},
            },
            "judge.mode = 'rank' compares the completions to a prompt, so an evaluation needs at least 2",
        ),
        ({"reward": {"functions": ["model"]}}, "reward_model.path is required"),
        ({"reward": {"functions": ["model"]}, "reward_model": {"path": "m", "retries": 9}}, "retries is for a server"),
        (
            {"reward": {"functions": ["model"]}, "reward_model": {"path": "m", "url": "http://u", "label": "kind"}},
            "a server's labels go by their number",
        ),
        ({"reward": {"functions": ["exakt"]}}, r"'exakt' is none of .*, did you mean exact\?"),
        ({"task": {"source": "verifier:x"}}, "verifier is unknown, did you mean verifiers:x"),
        ({"log": {"dir": " "}}, "log.dir = '': name a folder"),
        ({"task": {"system": "none"}}, "task.system = 'none': would be the message itself; for none set it to"),
        ({"eval": {"temperature": 1e-320}}, "eval.temperature = 1e-320: must be 0, or at least 0.01"),
        ({"eval": {"every": 5, "num_prompts": 0}}, "eval.every = 5 and eval.num_prompts = 0: nothing is held out"),
        *(
            (
                {section: {key: url if key == "url" else [url]}},
                rf"{section}\.{key}.* = .*: no address of a server; expected one such as http://",
            )
            for section, key in (("sampler", "urls"), ("judge", "url"), ("reward_model", "url"))
            for url in (
                ":::",
                "",
                "127.0.0.1:8000",
                "http://",
                "ftp://x",
                "http://x:99999",
                "http://x:0",
                "http://a b",
                "//x",
            )
        ),
    ],
)
def test_what_is_refused_as_it_is_read(tables, message):
    with pytest.raises(ValueError, match=message):
        from_dict(tables)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ({"seconds": 90}, "code.seconds = 90 and code.total_seconds = 60: one test would have more time than all together"),
        ({"tests_column": "x", "public_column": "x"}, "code.public_column = 'x': is code.tests_column too"),
        (
            {"language": "cpp", "function_column": "f"},
            "code.function_column = 'f' has no effect: functions are called in Py",
        ),
    ],
)
def test_settings_of_code_that_contradict(code, message):
    with pytest.raises(ValueError, match=message):
        checks.check_training(from_dict(NAMED | {"reward": {"functions": ["code"]}, "code": code}))


def test_who_plays():
    assert not checks.played(from_dict(NAMED).task)
    assert checks.played(from_dict(ENVIRONMENT).task) and checks.played(from_dict({"task": {"source": "verifiers:v"}}).task)
