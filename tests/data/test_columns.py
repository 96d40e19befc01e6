import re

import pytest

from gspo.data.columns import cell, value_in

VERL = {
    "prompt": "1+1=", "reward_model": {"style": "rule", "ground_truth": "2", "a.b": {"c": None}}, "x.y": 1, "x": {"y": 2},
}  # fmt: skip


def test_a_dotted_name_reads_a_nested_column():
    names = {"reward_model.ground_truth": "2", "reward_model.a.b.c": None, "x.y": 1, "prompt": "1+1="}
    assert {name: cell(VERL, name, "key") for name in names} == names  # a column of that very name goes first
    for name in ("prompt.x", "reward_model.", ".x", "x.z", "z.y", "reward_model.a", ""):
        assert value_in(VERL, name, "-") == "-"


def test_a_missing_column_is_told_with_the_nested_ones():
    found = "prompt, reward_model, reward_model.style, reward_model.ground_truth"
    with pytest.raises(ValueError, match=re.escape(f"set reward.answer_column to one of: {found}")):
        cell(VERL, "answer", "reward.answer_column")
    with pytest.raises(ValueError, match=r"did you mean reward_model\.ground_truth"):
        cell(VERL, "reward_model.groundtruth", "reward.answer_column")
