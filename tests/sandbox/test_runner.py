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
