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
    monkeypatch.setattr(smollm2, "fetch_smollm2", lambda show, place: fetched.append(place))
    for name, path in recipes().items():
        if name != "smollm2-grpo-gspo":
            fetch_model(load(f"recipe:{name}"))
            assert len(fetched) == (MODEL in path.read_text()), name
            fetched.clear()
    place = Path(MODEL).expanduser()
    assert tmp_path in place.parents
    place.mkdir(parents=True)
    fetch_model(load("recipe:smollm2-words"))
    assert fetched == []
