"""The recipes: settings that come with gspo, by name. The first two lines of each say what it is, and whether it has run."""

from __future__ import annotations

from pathlib import Path

from gspo.config.suggestions import nearest

FOLDER = Path(__file__).parents[1] / "recipes"
PREFIX = "recipe:"


def recipes() -> dict[str, Path]:
    """The file of each recipe, by its name."""
    return dict(sorted((path.stem, path) for path in FOLDER.glob("*.toml")))


def file_of(word: str) -> str:
    """The file of the recipe in `recipe:NAME`; any other path as it is. Raises ValueError for an unknown name."""
    if not word.startswith(PREFIX):
        return word
    name, files = word.removeprefix(PREFIX), recipes()
    if name not in files:
        raise ValueError(f"{word}: no such recipe{nearest(name, files)}; `gspo recipes` lists them")
    return str(files[name])
