import pytest

from gspo.config.files import all_keys, from_dict
from gspo.config.resume import FREE, same_run
from gspo.config.schema import SECTIONS, Config


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
        ({"optimizer": {"lr": 0.5}}, "optimizer.lr = 0.5 cannot be changed by --resume: the run began with 1e-06"),
        ({"train": {"seed": 9}}, "train.seed = 9"),
        ({"task": {"config": {"n": 1}}}, r"task.config = \{'n': 1\}"),
        ({"eval": {"num_prompts": 3}}, "eval.num_prompts = 3"),
    ],
)
def test_what_makes_it_another_run_may_not(tables, message):
    with pytest.raises(ValueError, match=message):
        same_run(Config(), from_dict(tables))
