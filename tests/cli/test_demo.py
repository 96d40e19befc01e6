"""gspo demo; tests/demo has whole demos."""

from gspo.cli.main import main


def test_a_demo_to_resume_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, folder in ((["demo"], "runs/demo"), (["demo", "--agent"], "runs/demo-agent")):
        assert main([*words, "--resume"]) == 2
        assert f"--resume: there is no {folder}-cold-start" in capsys.readouterr().err
    assert main(["demo", "--train.steps=1"]) == 2
    assert "`gspo demo` takes no configuration fields" in capsys.readouterr().err
