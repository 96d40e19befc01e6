"""The study file: which runs are compared, and with which settings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo.config.algorithm import resolved
from gspo.config.commands import check_command
from gspo.config.files import as_config, load, nested, read_toml, to_dict
from gspo.config.schema import Config
from gspo.config.suggestions import nearest

Tables = dict[str, dict[str, Any]]
KEYS = ("title", "plan", "base", "seeds", "baseline", "metric", "last", "workers", "threads", "variants", "settings")
SET_BY_THE_STUDY = ("task.seed", "train.seed", "log.dir")


@dataclass(frozen=True)
class Cell:
    """One run: its place in the study and its whole configuration."""

    setting: str
    variant: str
    seed: int
    config: Config
    warnings: tuple[str, ...] = ()  # about settings that may not be meant

    @property
    def name(self) -> str:
        """Its name, which is also its folder below the study's `cells`."""
        return f"{slug(self.setting)}/{slug(self.variant)}/seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """The content of a study file."""

    title: str
    plan: str  # what was fixed before anything ran, in words
    baseline: str  # the variant that the others are compared with
    metric: str  # a name in metrics.jsonl whose value at the last step counts beside the reward; "" for none
    last: int  # number of final steps whose mean reward is a cell's reward
    workers: int  # maximum number of concurrent cells
    threads: int  # CPU threads per cell
    cells: list[Cell]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all cells; a setting or a variant may have its own."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def settings(self) -> list[str]:
        """The names of the settings, in order."""
        return list(dict.fromkeys(cell.setting for cell in self.cells))

    @property
    def warnings(self) -> list[str]:
        """What `gspo train` would warn of, for each setting and variant."""
        named = [f"{cell.setting} / {cell.variant}: {text}" for cell in self.cells for text in cell.warnings]
        return list(dict.fromkeys(named))

    def variants(self, setting: str) -> list[str]:
        """The variants that run in a setting, in order."""
        return list(dict.fromkeys(cell.variant for cell in self.cells if cell.setting == setting))


def slug(name: str) -> str:
    """Converts a name to that of a folder."""
    letters = "".join(c if c.isalnum() or c in "-_." else "-" for c in name.strip())
    return "-".join(part for part in letters.split("-") if part)


def read(path: str | Path, folder: str | Path, overrides: Mapping[str, Any] | None = None) -> Study:
    """Reads and checks a study whose cells run in `folder`. `overrides`: `section.key` -> value, for all cells."""
    path = Path(path)
    raw = read_toml(path, "study file")
    for key in raw:
        if key not in KEYS:
            raise ValueError(f"{path}: {key}: unknown key{nearest(key, KEYS)}; a study has {', '.join(KEYS)}")
    seeds = _seeds(f"{path}: seeds", raw.get("seeds"))
    variants = _tables(path, raw, "variants")
    settings = _tables(path, raw, "settings") if "settings" in raw else {"": {}}
    baseline = raw.get("baseline", next(iter(variants)))
    if baseline not in variants:
        raise ValueError(f"{path}: baseline = {baseline!r}: is no variant{nearest(str(baseline), variants)}")
    base, everywhere = _base(path, raw.get("base")), nested(overrides or {})
    cells = []
    for setting, changes in settings.items():
        changes, key = dict(changes), f"{path}: settings.{setting}"
        only, special = changes.pop("only", list(variants)), changes.pop("variants", {})
        if not isinstance(special, dict) or not all(isinstance(own, dict) for own in special.values()):
            raise ValueError(f"{key}.variants = {special!r}: give tables of changes, or choose variants by `only`")
        only = only if isinstance(only, list) else [only]
        for name in (*only, *special):
            if name not in variants:
                raise ValueError(f"{key}: {name!r} is no variant{nearest(str(name), variants)}")
        here = _seeds(f"{key}.seeds", changes.pop("seeds", seeds))
        for variant in only:
            own = dict(variants[variant])
            mine = _seeds(f"{path}: variants.{variant}.seeds", own.pop("seeds", here))
            terms = [(setting, changes), (variant, own), ("", special.get(variant, {})), ("", everywhere)]
            cells += [_cell(path, Path(folder), base, terms, seed) for seed in here if seed in mine]
    idle = [f"variants.{name}" for name in variants if name not in {cell.variant for cell in cells}]
    idle += [f"settings.{name}" for name in settings if name and name not in {cell.setting for cell in cells}]
    if idle:
        raise ValueError(f"{path}: {idle[0]}: has no cell: its `seeds`, or `only`, leave none of them")
    name, count = Counter(cell.name for cell in cells).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path}: two cells would have the folder {name}: give settings and variants other names")
    return Study(
        title=str(raw.get("title", path.stem)),
        plan=str(raw.get("plan", "")),
        baseline=baseline,
        metric=str(raw.get("metric", "eval/accuracy" if cells[0].config.eval.every else "")),
        last=_count(path, raw, "last", 10),
        workers=_count(path, raw, "workers", max(1, (os.cpu_count() or 1) // _count(path, raw, "threads", 1))),
        threads=_count(path, raw, "threads", 1),
        cells=cells,
    )


def _count(path: Path, raw: dict[str, Any], key: str, default: int) -> int:
    value = raw.get(key, default)
    if type(value) is not int or value < 1:
        raise ValueError(f"{path}: {key} = {value!r}: must be a whole number of at least 1")
    return value


def _base(path: Path, base: Any) -> Tables:
    """The configuration that all cells start from: a file beside the study, or tables."""
    if isinstance(base, str):
        return to_dict(load(path.parent / base))
    if isinstance(base, dict):
        return base
    raise ValueError(f"{path}: base = {base!r}: name a configuration file, or give its sections as [base.section]")


def _seeds(key: str, seeds: Any) -> list[int]:
    whole = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds):
        raise ValueError(f"{key} = {seeds!r}: a list of different whole numbers of at least 0 is needed, such as [0, 1, 2]")
    return seeds


def _tables(path: Path, raw: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    tables = raw.get(key)
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f'{path}: {key}: give at least one, each a table of its changes, such as [{key}."a name"]')
    for name in tables:
        if not slug(name)[:1].isalnum() or not name.isprintable():
            raise ValueError(
                f"{path}: {key}.{name!r}: a folder gets this name: begin it with a letter or a digit, no control characters"
            )
    return tables


def _cell(path: Path, folder: Path, base: Tables, terms: list[tuple[str, Tables]], seed: int) -> Cell:
    """The cell of a setting and a variant. `terms`: names and changes of the setting, the variant, both, and all cells."""
    setting, variant = terms[0][0], terms[1][0]
    cell = Cell(setting or "runs", variant, seed, Config())
    config: Any = base
    try:
        for _, changes in terms:
            for key in SET_BY_THE_STUDY:
                section, name = key.split(".")
                if isinstance(table := changes.get(section), dict) and name in table:
                    raise ValueError(f"{key}: the study sets it for each cell; list the seeds in `seeds`")
            config = as_config(config, changes)
        place = {"dir": str(folder / "cells" / cell.name)}
        config = as_config(config, {"task": {"seed": seed}, "train": {"seed": seed}, "log": place})
        check_command(config, "train")
        filled, warnings = resolved(config)
        return replace(cell, config=filled, warnings=tuple(warnings))
    except ValueError as error:
        raise ValueError(f"{path}: {' / '.join(name for name in (setting, variant) if name)}: {error}") from None
