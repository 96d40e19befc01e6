"""gspo plan; tests/plan has its numbers."""

import os
import sys

from gspo.cli.main import main


def test_what_does_not_fit_ends_with_1(place, monkeypatch):
    """Also where the reader is gone before the buffered text comes (`| head`)."""
    monkeypatch.chdir(place)
    assert main(["plan", "train.toml", "--memory=80", "--prompt-tokens", "16"]) == 0
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["plan", "train.toml", "--memory=1e-6"]) == 1
