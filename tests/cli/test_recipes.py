"""gspo recipes; tests/config/test_recipes.py has the recipes, tests/real runs them."""

from pathlib import Path

import pytest

from gspo.cli.main import main
from gspo.cli.recipes import MODEL, fetch_model
from gspo.config.files import load
from gspo.config.recipes import recipes
from gspo.demo import smollm2


def test_each_recipe_has_a_line(capsys):
    assert main(["recipes"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines] == list(recipes())
    (words,) = (line for line in lines if line.startswith("smollm2-words "))
    assert "  run here  Sums in words, " in words and "  not run   " in lines[0]
    assert "`gspo train recipe:NAME` runs one" in shown.err


@pytest.mark.parametrize("command", ["train", "sft", "eval", "plan", "config", "serve", "compare"])
def test_wherever_a_file_is_taken_a_recipe_is(command, capsys):
    assert main([command, "recipe:smollm2-word"]) == 2
    assert "recipe:smollm2-word: no such recipe, did you mean smollm2-words?" in capsys.readouterr().err


def test_its_model_is_fetched_to_where_it_names_it(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setenv("HOME", str(tmp_path))

    def fetch(show, place):
        fetched.append(place)
        place.mkdir(parents=True)

    monkeypatch.setattr(smollm2, "fetch_smollm2", fetch)
    place = Path(MODEL).expanduser()
    for name, path in recipes().items():
        if name != "smollm2-grpo-gspo":
            fetch_model(load(f"recipe:{name}"))
            assert len(fetched) == place.exists() == (MODEL in path.read_text()), name
            if fetched:
                fetched.pop().rmdir()
    assert tmp_path in place.parents
    for _ in range(2):
        fetch_model(load("recipe:smollm2-words"))
    assert fetched == [place]


def test_an_evaluation_fetches_the_model_of_its_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def fetch(show, place):
        raise smollm2.Unavailable("no network")

    monkeypatch.setattr(smollm2, "fetch_smollm2", fetch)
    (tmp_path / "rows.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    assert main(["eval", "recipe:smollm2-words"]) == 1 and "no network" in capsys.readouterr().err
    words = ["eval", "recipe:smollm2-suite", "--benchmark", "rows.jsonl"]
    assert main(words) == 1 and "no network" in capsys.readouterr().err
    endpoint = ["--url", "http://127.0.0.1:9/v1", "--key-variable", "NOT_SET"]  # whose own error comes
    assert main([*words, *endpoint]) == 2 and "NOT_SET" in capsys.readouterr().err
