import re

import pytest

from gspo.config.algorithm import resolved
from gspo.config.checks import check_training
from gspo.config.files import from_dict, load_of_run, to_toml
from gspo.config.names import all_keys
from gspo.config.resume import FREE, ON_PURPOSE, check_allowed, same_run
from gspo.config.schema import SECTIONS, Config
from gspo.config.unused import check_unused


def test_what_is_free_is_a_section_or_a_key():
    assert not FREE - {*SECTIONS, *all_keys()}


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"log": {"dir": "elsewhere", "trackers": ["wandb"]}},
        {"guard": {"patience": 3}},
        {"train": {"steps": 7, "micro_batch_tokens": 64}},
        {"eval": {"every": 3}, "model": {"device": "cuda"}},
    ],
)
def test_where_it_is_and_when_it_stops_may_change(tables):
    same_run(Config(), from_dict(tables))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"optimizer": {"lr": 0.5}}, "optimizer.lr = 0.5 cannot be changed in a resumed run: it began with 1e-06"),
        ({"train": {"seed": 9}}, "train.seed = 9"),
        ({"task": {"config": {"n": 1}}}, r"task.config = \{'n': 1\}"),
        ({"eval": {"num_prompts": 3}}, "eval.num_prompts = 3"),
    ],
)
def test_what_makes_it_another_run_may_not(tables, message):
    with pytest.raises(ValueError, match=message):
        same_run(Config(), from_dict(tables))


def test_what_a_served_run_does_not_read_is_not_compared():
    old = from_dict({"rollout": {"num_prompts": 8}})
    assert same_run(old, Config(), command="serve") == []
    with pytest.raises(ValueError, match=r"rollout\.num_prompts = 32 cannot be changed"):
        same_run(old, Config())


@pytest.mark.parametrize(
    "command, tables",
    [("sft", {"algorithm": {"epsilon": 0.1}}), ("sft", {"guard": {"window": 9}}), ("serve", {"task": {"size": 9}})],
)
def test_what_its_command_never_read_may_be_taken_out(command, tables):
    """An earlier gspo let it be set, and this one refuses it."""
    with pytest.raises(ValueError, match="has no effect"):
        check_unused(from_dict(tables), command)
    same_run(from_dict(tables), Config(), command=command)


@pytest.mark.parametrize("name", ["grpo", "sapo", "ppo", "dapo"])
def test_the_option_that_was_changed_is_named_and_none_that_follows_from_it(name):
    """The run folder holds every setting, also those that an algorithm's name brings with it."""
    old, _ = resolved(Config())
    new, _ = resolved(from_dict({"algorithm": {"name": name}}))
    with pytest.raises(ValueError, match=f"^algorithm.name = '{name}' cannot be changed .* began with 'gspo'"):
        same_run(old, new)


def test_the_learning_rate_and_its_schedule_may_change_on_purpose():
    new = from_dict({"optimizer": {"lr": 0.5, "schedule": "cosine"}, "train": {"steps": 7}})
    with pytest.raises(
        ValueError,
        match=r"optimizer\.lr = 0\.5 cannot be changed .*or allow it by --allow .* \(from Python: allow=",
    ):
        same_run(Config(), new)
    with pytest.raises(ValueError, match=r"optimizer\.schedule = 'cosine' cannot"):
        same_run(Config(), new, ["optimizer.lr"])
    assert same_run(Config(), new, ["optimizer.lr", "optimizer.schedule"]) == [
        "optimizer.lr = 0.5 (was 1e-06)", "optimizer.schedule = 'cosine' (was 'constant')", "train.steps = 7 (was 100)",
    ]  # fmt: skip
    assert same_run(Config(), Config(), ["optimizer.lr"]) == []


def test_what_may_be_allowed(subtests):
    for key in all_keys():
        with subtests.test(key=key):
            if key in ON_PURPOSE:
                check_allowed([key])
                continue
            free = key in FREE or key.partition(".")[0] in FREE
            why = "may change it without that" if free else "of two different runs; allowed are optimizer.lr"
            with pytest.raises(ValueError, match=f"allow = '{re.escape(key)}': .*{why}"):
                check_allowed([key])


FIRST, SECOND = {"at": 5, "temperature": 0.5}, {"at": 9, "temperature": 0.7}


@pytest.mark.parametrize(
    ("before", "after", "begun", "refused"),
    [
        ([FIRST], [FIRST, SECOND], 6, False),
        ([FIRST, SECOND], [FIRST], 8, False),
        ([FIRST, SECOND], [FIRST | {"temperature": 0.6}, SECOND], 4, False),
        ([FIRST, SECOND], [FIRST | {"temperature": 0.6}, SECOND], 5, True),
        ([FIRST, SECOND], [SECOND], 6, True),
        ([SECOND], [FIRST, SECOND], 7, True),
        ([FIRST, SECOND], [FIRST], 9, True),
    ],
)
def test_past_stages_stay_and_future_ones_may_change(before, after, begun, refused):
    old, new = from_dict({"stage": before}), from_dict({"stage": after})
    if refused:
        with pytest.raises(ValueError, match=rf"^\[\[stage\]\] up to step {begun} cannot be changed in a resumed run"):
            same_run(old, new, begun=begun)
    else:
        (change,) = same_run(old, new, begun=begun)
        assert change.startswith("[[stage]] = [") and "(was [" in change
    assert same_run(old, old, begun=begun) == []


def test_a_refresh_may_not_change():
    with pytest.raises(ValueError, match=r"refresh\.drop_above = 0\.8 cannot be changed in a resumed run"):
        same_run(from_dict({}), from_dict({"refresh": {"drop_above": 0.8}}))


def test_what_is_no_key_cannot_be_allowed():
    with pytest.raises(ValueError, match=r"allow = 'train\.lr': unknown key, did you mean optimizer\.lr\?; allowed are"):
        check_allowed(["train.lr"])


HUMANEVAL = ["gspo.rewards.programs:humaneval"]
REFRESH = {"every": 5, "drop_above": 0.9}


@pytest.mark.parametrize(
    ("tables", "key", "value"),
    [
        ({"reward": {"functions": ["code"]}, "code": {"language": "cpp"}}, "code.function_column", "f"),
        ({"reward": {"functions": HUMANEVAL}}, "reward.env", ["KEY"]),
    ],
)
def test_what_an_earlier_gspo_let_be_set_for_nothing_may_be_left_out(tmp_path, tables, key, value):
    section, name = key.split(".")
    base = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}} | tables
    new = from_dict(base)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(from_dict(base | {section: base.get(section, {}) | {name: value}})))
    old = load_of_run(file, "")
    with pytest.raises(ValueError, match=rf"^{re.escape(key)} = .* has no effect: .*leave it out$"):
        check_training(old, resume=True)
    check_training(new, resume=True)
    (change,) = same_run(old, new)
    assert change.startswith(f"{key} = ")
    with pytest.raises(ValueError, match=f"{re.escape(key)} = .* cannot be changed in a resumed run"):
        same_run(new, old)  # only taken out, never put in


def test_a_run_of_an_earlier_gspo_goes_on_with_settings_of_code_that_contradict(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(
        '[model]\npath = "m"\n[task]\nsource = "rows.jsonl"\n[reward]\nfunctions = ["code"]\n'
        '[code]\nseconds = 90.0\ntests_column = "x"\npublic_column = "x"\n'
    )
    old = load_of_run(file, "")
    with pytest.raises(ValueError, match=r"code\.seconds = 90 and code\.total_seconds = 60"):
        check_training(old)  # as a new run
    check_training(old, resume=True)
    assert same_run(old, old) == []


def test_what_would_have_an_effect_now_may_not_be_left_out():
    old, new = ({"refresh": REFRESH | more, "train": {"steps": n}} for more, n in (({"return_after": 99}, 100), ({}, 300)))
    with pytest.raises(ValueError, match=r"refresh\.return_after = 0 cannot be changed in a resumed run: it began with 99"):
        same_run(from_dict(old), from_dict(new))
    old = from_dict({"reward": {"functions": ["mine:f"], "env": ["KEY"]}})
    with pytest.raises(ValueError, match=r"reward\.env = \[\] cannot be changed in a resumed run"):
        same_run(old, from_dict({"reward": {"functions": ["mine:f"]}}))
