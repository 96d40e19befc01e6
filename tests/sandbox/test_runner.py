"""What the runner gives a program cannot be changed."""

import os

import pytest

from gspo.sandbox import runner


def test_standard_input_cannot_be_changed():
    file = runner.sealed(b"abc")
    assert os.read(file, 10) == b"abc"
    for change in (lambda: os.write(file, b"x"), lambda: os.truncate(file, 1), lambda: os.truncate(file, 9)):
        with pytest.raises(PermissionError):
            change()
    os.close(file)


def test_ends_in_words():
    assert [runner.describe_end(status) for status in (0, 3, -9, -99)] == [
        b"exit status 0", b"exit status 3", b"ended by SIGKILL", b"exit status -99",
    ]  # fmt: skip
