"""gspo export; tests/assembly/test_export.py has what it writes."""

from gspo.cli.main import main


def test_the_model_of_a_run_is_written_where_it_is_asked_for(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["export", "run", "--out", "exported"]) == 0
    assert capsys.readouterr().out == "model   exported\n" and (place / "exported" / "config.json").is_file()
