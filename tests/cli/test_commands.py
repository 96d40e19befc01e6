"""The words of a command line, without running anything."""

import pytest

from gspo.cli.commands import commands_with, parse, reject_unknown


def test_an_option_of_another_command_is_said_to_be_of_that():
    for command in ("train", "eval", "report"):
        for option in ("--memory", "--resume", "--only", "--benchmark", "--seed"):
            if command in (owners := commands_with(option)):
                continue
            with pytest.raises(ValueError, match=rf"^{option}: unknown option: it is of `gspo {owners[0]}`.*; "):
                reject_unknown(f"{option}=1", command)
    assert commands_with("--resume") == ["train", "sft", "serve", "demo"] and commands_with("--memory") == ["plan"]
    assert commands_with("--nothing") == commands_with("word") == []


def test_an_option_of_training_is_told_as_a_field_to_gspo_eval():
    with pytest.raises(
        ValueError, match=r"^--reward: .* of `gspo train`; .*--section.key VALUE, such as --reward.functions$"
    ):
        reject_unknown("--reward", "eval")


@pytest.mark.parametrize("words", [["--quiet", "config", "--verbose"], ["config", "--quiet", "--verbose"]])
def test_no_command_is_quiet_and_verbose(words):
    with pytest.raises(ValueError, match="--quiet and --verbose: leave one of them out"):
        parse(words, {})
