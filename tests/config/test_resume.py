import re

import pytest

from gspo.config.algorithm import resolved
from gspo.config.files import from_dict
from gspo.config.names import all_keys
from gspo.config.resume import FREE, ON_PURPOSE, check_allowed, same_run
from gspo.config.schema import SECTIONS, Config


def test_where_it_is_and_when_it_stops_may_change():
    assert not FREE - {*SECTIONS, *all_keys()}
    for tables in (
        {},
        {"log": {"dir": "elsewhere", "trackers": ["wandb"]}},
        {"guard": {"patience": 3}},
        {"train": {"steps": 7, "micro_batch_tokens": 64}},
        {"eval": {"every": 3}, "model": {"device": "cuda"}},
    ):
        same_run(Config(), from_dict(tables))


def test_what_makes_it_another_run_may_not(refuses):
    table = [
        ("optimizer.lr = 0.5 cannot be changed in a resumed run: it began with 'auto'", {"optimizer": {"lr": 0.5}}),
        ("train.seed = 9", {"train": {"seed": 9}}),
        (r"task.config = \{'n': 1\}", {"task": {"config": {"n": 1}}}),
        ("eval.num_prompts = 3", {"eval": {"num_prompts": 3}}),
        (r"refresh\.drop_above = 0\.8 cannot be changed in a resumed run", {"refresh": {"drop_above": 0.8}}),
    ]
    refuses(lambda tables: same_run(Config(), from_dict(tables)), table)


def test_the_option_that_was_changed_is_named_and_none_that_follows_from_it(refuses):
    """The run folder holds every setting, also those that an algorithm's name brings with it."""
    old, _ = resolved(Config())
    names = [(f"^algorithm.name = '{name}' cannot be .* began with 'gspo'", name) for name in ("grpo", "sapo", "ppo")]
    refuses(lambda name: same_run(old, resolved(from_dict({"algorithm": {"name": name}}))[0]), names)


def test_the_learning_rate_and_its_schedule_may_change_on_purpose():
    new = from_dict({"optimizer": {"lr": 0.5, "schedule": "cosine"}, "train": {"steps": 7}})
    with pytest.raises(ValueError, match=r"optimizer\.lr = 0\.5 cannot be changed .*by --allow .* \(from Python: allow="):
        same_run(Config(), new)
    with pytest.raises(ValueError, match=r"optimizer\.schedule = 'cosine' cannot"):
        same_run(Config(), new, ["optimizer.lr"])
    assert same_run(Config(), new, ["optimizer.lr", "optimizer.schedule"]) == [
        "optimizer.lr = 0.5 (was 'auto')", "optimizer.schedule = 'cosine' (was 'constant')", "train.steps = 7 (was 100)",
    ]  # fmt: skip
    assert same_run(Config(), Config(), ["optimizer.lr"]) == []


def test_what_may_be_allowed(subtests):
    with pytest.raises(ValueError, match=r"allow = 'train\.lr': unknown key, did you mean optimizer\.lr\?; allowed are"):
        check_allowed(["train.lr"])
    for key in all_keys():
        with subtests.test(key=key):
            if key in ON_PURPOSE:
                check_allowed([key])
                continue
            free = key in FREE or key.partition(".")[0] in FREE
            why = "may change it without that" if free else "would make it another run; allowed are optimizer.lr"
            with pytest.raises(ValueError, match=f"allow = '{re.escape(key)}': .*{why}"):
                check_allowed([key])


FIRST, SECOND = {"at": 5, "temperature": 0.5}, {"at": 9, "temperature": 0.7}


def test_a_longer_stage_leaves_evaluations_as_they_were():
    stages = [{"at": 9, "max_completion_length": 4096}]
    for evaluation in ({"every": 5}, {"every": 5, "max_completion_length": 256}):
        old, new = from_dict({"eval": {"every": 5}}), from_dict({"eval": evaluation, "stage": stages})
        if "max_completion_length" in evaluation:
            assert len(same_run(old, new, begun=5)) == 1
        else:
            with pytest.raises(
                ValueError, match=r"would allow 4096 tokens where they allowed 256: set eval.max_completion_l"
            ):
                same_run(old, new, begun=5)


STAGED = [  # before, after, the last step that was begun, whether it is refused
    ([FIRST], [FIRST, SECOND], 6, False),
    ([FIRST, SECOND], [FIRST], 8, False),
    ([FIRST, SECOND], [FIRST | {"temperature": 0.6}, SECOND], 4, False),
    ([FIRST, SECOND], [FIRST | {"temperature": 0.6}, SECOND], 5, True),
    ([FIRST, SECOND], [SECOND], 6, True),
    ([SECOND], [FIRST, SECOND], 7, True),
    ([FIRST, SECOND], [FIRST], 9, True),
]


def test_past_stages_stay_and_future_ones_may_change(subtests):
    for before, after, begun, refused in STAGED:
        with subtests.test(before=before, after=after, begun=begun):
            old, new = from_dict({"stage": before}), from_dict({"stage": after})
            assert same_run(old, old, begun=begun) == []
            if refused:
                with pytest.raises(ValueError, match=rf"^\[\[stage\]\] up to step {begun} cannot be changed in a resumed"):
                    same_run(old, new, begun=begun)
                continue
            (change,) = same_run(old, new, begun=begun)
            assert change.startswith("[[stage]] = [") and "(was [" in change
