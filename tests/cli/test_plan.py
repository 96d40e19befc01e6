"""gspo plan; tests/plan has its numbers."""

from gspo.cli.main import main


def test_what_does_not_fit_ends_with_1(place, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["plan", "train.toml", "--memory=80", "--prompt-tokens", "16"]) == 0
    assert main(["plan", "train.toml", "--memory=1e-6"]) == 1
