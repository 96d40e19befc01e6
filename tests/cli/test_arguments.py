"""Options and fields of a command line."""

import pytest

from gspo.cli.arguments import take_fields
from gspo.cli.commands import parser
from gspo.config.field import SEEDS


def test_fields_are_taken_out_wherever_they_stand():
    words, fields = take_fields(["--train.steps", "3", "train", "--log.dir=--odd", "a.toml", "--eval.every", "-1"])
    assert words == ["train", "a.toml"]
    assert fields == {"train.steps": "3", "log.dir": "--odd", "eval.every": "-1"}
    arguments = parser().parse_args(words)
    assert (arguments.command, arguments.config) == ("train", "a.toml")


@pytest.mark.parametrize("text", ["-1", str(SEEDS + 1), "x", "9" * 5000])
def test_a_seed_is_a_whole_number_of_its_range(text):
    assert parser().parse_args(["demo", f"--seed={SEEDS}"]).seed == SEEDS
    message = rf"--seed: '{text[:40]}': must be a whole number from 0 to {SEEDS}; see `gspo demo"
    with pytest.raises(ValueError, match=message):
        parser().parse_args(["demo", f"--seed={text}"])
