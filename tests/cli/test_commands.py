"""The words of a command line, without running anything."""

import pytest

from gspo.cli.arguments import take_fields
from gspo.cli.commands import REMOVED, owners_of, parse, parser, refuse
from gspo.config.field import SEEDS


def test_fields_are_taken_out_wherever_they_stand():
    words, fields = take_fields(
        ["--train.steps", "3", "train", "--log.dir=--odd", "a.toml", "--eval.every", "-1", "--resume"]
    )
    assert words == ["train", "a.toml", "--resume"]
    assert fields == {"train.steps": "3", "log.dir": "--odd", "eval.every": "-1"}
    arguments = parser().parse_args(words)
    assert (arguments.command, arguments.config, arguments.resume) == ("train", "a.toml", True)


@pytest.mark.parametrize("text", ["-1", str(SEEDS + 1), "x", "9" * 5000])
def test_a_seed_is_a_whole_number_of_its_range(text):
    assert parser().parse_args(["demo", f"--seed={SEEDS}"]).seed == SEEDS
    with pytest.raises(
        ValueError, match=rf"--seed: '{text[:40]}': must be a whole number from 0 to {SEEDS}; see `gspo demo"
    ):
        parser().parse_args(["demo", f"--seed={text}"])


def test_an_option_of_another_command_is_said_to_be_of_that():
    for command in ("train", "eval", "report"):
        for option in ("--memory", "--resume", "--only", "--benchmark", "--seed"):
            if command in owners_of(option):
                continue
            with pytest.raises(ValueError, match=rf"^{option}: unknown option: it is of `gspo {owners_of(option)[0]}`.*; "):
                refuse(f"{option}=1", command)
    assert owners_of("--resume") == ["train", "sft", "serve", "demo"] and owners_of("--memory") == ["plan"]
    assert owners_of("--nothing") == owners_of("word") == []


@pytest.mark.parametrize("word", REMOVED)
def test_a_command_or_option_that_was_removed_says_what_to_do_instead(word):
    words = [word, "a.toml"] if word == "probe" else ["plan", "a.toml", f"{word}=1"]
    with pytest.raises(ValueError, match=rf"{word} was removed: .*; (compare algorithms with|leave it out)"):
        parse(words, {})
