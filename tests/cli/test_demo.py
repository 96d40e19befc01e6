"""gspo demo; tests/demo has whole demos."""

from pathlib import Path

from gspo.cli.main import main
from gspo.demo import smollm2, stages


def test_a_demo_to_resume_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, folder in (
        (["demo"], "runs/demo"),
        (["demo", "--moe"], "runs/demo-moe-cold-start"),
        (["demo", "--agent"], "runs/demo-agent-cold-start"),
        (["demo", "--dir=here"], "here"),
    ):
        assert main([*words, "--resume"]) == 2
        assert f"--resume: there is no {folder};" in capsys.readouterr().err
    assert main(["demo", "--moe", "--agent"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert main(["demo", "--train.steps=1"]) == 2
    assert "`gspo demo` takes no configuration fields" in capsys.readouterr().err


def test_without_its_model_the_demo_trains_a_mixture_of_experts(tmp_path, monkeypatch, capsys):
    def fetch(show):
        raise smollm2.Unavailable("no network")

    def begin(folder, seed, resume, kind):
        if kind == "sums":
            return run(folder, seed, resume, kind)
        begun.append((folder, seed, resume, kind))
        Path("runs/demo-moe-cold-start").mkdir(parents=True)
        raise KeyboardInterrupt

    begun, run = [], stages.run_demo
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "fetch_smollm2", fetch)
    monkeypatch.setattr(stages, "run_demo", begin)
    assert main(["demo", "--seed=3"]) == 130
    assert begun == [(Path("runs/demo-moe"), 3, False, "moe")]
    error = capsys.readouterr().err
    assert "warning: no network; the demo trains a tiny mixture of experts instead" in error
    assert error.endswith("gspo: interrupted; start it again with --moe --resume\n")  # without, it would be the other demo
