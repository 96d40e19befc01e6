"""gspo serve; tests/serving has served models."""

from gspo.cli.main import main


def test_a_setting_that_has_no_effect_is_refused_before_anything_is_loaded(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["serve", "train.toml"]) == 2
    assert "eval.every = 2: agents evaluate themselves" in capsys.readouterr().err
