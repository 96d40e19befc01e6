"""The words of a command line, without running anything."""

import pytest

from gspo.cli.commands import REMOVED, owners_of, parse, refuse


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
