"""gspo config."""

import tomllib

from gspo.cli.main import main
from gspo.config.files import from_dict, load
from gspo.config.schema import Config
from tests.cli.whole import COLD_START, TRAIN


def test_config_prints_a_configuration_that_reads_back(tmp_path, capsys):
    assert main(["config"]) == 0
    tables = tomllib.loads(capsys.readouterr().out)
    assert tables["algorithm"] | {"epsilon": 3e-4, "epsilon_high": 4e-4, "mini_batches": 4} == tables["algorithm"]
    resolved = Config().algorithm, from_dict(tables).algorithm
    assert resolved[0].name == resolved[1].name == "gspo"
    (tmp_path / "train.toml").write_text(TRAIN)
    assert main(["config", str(tmp_path / "train.toml"), "--algorithm.name", "dapo", "--train.steps", "5"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "resolved.toml").write_text(text)
    config = load(tmp_path / "resolved.toml")
    assert config == load(
        tmp_path / "train.toml",
        {"train.steps": 5, "algorithm.name": "dapo", "algorithm.epsilon": 0.2, "algorithm.epsilon_high": 0.28,
         "algorithm.mini_batches": 4, "algorithm.scale_rewards": "group", "algorithm.critic": "none"},
    )  # fmt: skip
    assert "# Number of rollout batches (`gspo sft`: of updates)." in text and "\nsteps = 5\n" in text
    assert main(["config", str(tmp_path / "resolved.toml")]) == 0
    assert capsys.readouterr().out == text


def test_what_no_command_would_take_is_told_and_what_another_takes_is_not(tmp_path, capsys):
    for name, text in (("train", TRAIN), ("cold", COLD_START), ("serve", 'model.path = "m"\nserve.port = 9000\n')):
        (tmp_path / f"{name}.toml").write_text(text)
        assert main(["config", str(tmp_path / f"{name}.toml")]) == 0
        assert "would be refused" not in capsys.readouterr().err
    assert main(["config", str(tmp_path / "train.toml"), "--lora.alpha=32", "--rollout.top_p=0.9"]) == 0
    assert "gspo: warning: here the run would be refused: " in capsys.readouterr().err


def test_sections_are_printed_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()  # a folder of that name is no configuration file
    (tmp_path / "train.toml").write_text(TRAIN)
    assert main(["config", "guard", str(tmp_path / "train.toml"), "train", "--train.steps=7"]) == 0
    tables = tomllib.loads(capsys.readouterr().out)
    assert list(tables) == ["train", "guard"] and tables["train"]["steps"] == 7
    for words, why in ((["algoritm"], ", did you mean algorithm?"), (["a.toml", "b.toml"], "a.toml: neither")):
        assert main(["config", *words]) == 2
        assert why in capsys.readouterr().err
