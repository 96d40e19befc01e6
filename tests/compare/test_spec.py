import re

import pytest
import tomli_w

from gspo.cli.main import main
from gspo.compare.spec import read
from gspo.config.files import to_toml
from gspo.config.policy import ModelConfig
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.config.schema import Config
from tests.compare.studies import BASE, write


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "seeds = [3, 3]", r"seeds = \[3, 3\]: a list of different whole numbers"),
        ("seeds = [3, 4]", "seed = [3]", "seed: unknown key, did you mean seeds"),
        ('baseline = "GRPO"', 'baseline = "GRPOO"', "baseline = 'GRPOO': is no variant, did you mean GRPO"),
        ("lr = 3e-3", "rl = 3e-3", r"optimizer\.rl = 0\.003: unknown key"),
        ("train = {steps = 3}", "train = {steps = 3, seed = 1}", ""),
        ('algorithm = {name = "grpo"}', "train = {seed = 1}", r"GRPO: train\.seed: the study sets it"),
        ("threads = 1", 'threads = "all"', "threads = 'all': must be a whole number of at least 1"),
        ('model = {path = "tiny"}', "", r"model\.path is required"),
        ("train = {steps = 3}", "train = 5", r"train = 5: expected a table \[train\]"),
        ('algorithm = {name = "grpo"}', "train = 5", r"train = 5: expected a table \[train\]"),
        ("[variants.GRPO]", '[settings."x"]\nonly = ["GRP"]\n[variants.GRPO]', "'GRP' is no variant, did you mean GRPO"),
        ("[variants.GRPO]", '[variants."GRPO "]\n[variants.GRPO]', "two cells would have the folder"),
        ("[variants.GRPO]", '[settings."x"]\nonly = ["GRPO"]\n[variants.GRPO]', "variants.GSPO auto: has no cell: "),
        (
            "[variants.GRPO]",
            '[settings."x".variants]\nGRPO = 3\n[variants.GRPO]',
            r"variants = \{'GRPO': 3\}: give tables of",
        ),
        ("title =", "title", "not valid TOML"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(place, capsys, old, new, message):
    assert old in BASE
    write(place, BASE.replace(old, new))
    status = main(["compare", "study.toml", "--dir", "out", "--dry-run"])
    assert status == (2 if message else 0)
    assert re.search(message, capsys.readouterr().err)
    assert not (place / "out").exists()


def test_cells_are_settings_times_variants_times_seeds(tmp_path):
    text = (
        BASE
        + """
[settings."short one"]
rollout = {max_completion_length = 4}
seeds = [4]
[settings.long]
only = "GRPO"
variants = {GRPO = {optimizer = {lr = 1e-2}}}
"""
    )
    study = read(write(tmp_path, text), tmp_path / "out", {"train.steps": "7"})
    assert [cell.name for cell in study.cells] == [
        "short-one/GRPO/seed4", "short-one/GSPO-auto/seed4", "long/GRPO/seed3", "long/GRPO/seed4",
    ]  # fmt: skip
    assert study.settings == ["short one", "long"] and study.variants("long") == ["GRPO"]
    short, auto, *_, last = (cell.config for cell in study.cells)
    assert (short.rollout.max_completion_length, last.rollout.max_completion_length) == (4, 6)
    assert (short.optimizer.lr, last.optimizer.lr) == (3e-3, 1e-2)  # the pair's own word counts more
    assert (short.algorithm.name, auto.algorithm.epsilon) == ("grpo", "auto")
    assert {cell.config.train.steps for cell in study.cells} == {7}  # the command line's counts most
    assert all((c.config.train.seed, c.config.task.seed) == (c.seed, c.seed) for c in study.cells)
    assert last.log.dir == str(tmp_path / "out" / "cells" / "long" / "GRPO" / "seed4")


def test_a_name_may_be_words_but_leads_out_of_no_folder(tmp_path):
    """All are quoted keys that TOML allows."""
    for kind, name in (("variants", ".."), ("settings", "../x"), ("variants", "a\x1b[2Jb")):
        table = tomli_w.dumps({kind: {name: {"train": {"steps": 2}}}})
        with pytest.raises(ValueError, match=rf"study\.toml: {kind}\."):
            read(write(tmp_path, f"{BASE}\n{table}"), tmp_path / "out")
    for name in ("λ = 0.5 (1/2)", "a/../x"):
        table = tomli_w.dumps({"variants": {name: {"train": {"steps": 2}}}})
        cell = read(write(tmp_path, f"{BASE}\n{table}"), tmp_path / "out").cells[-1]
        place = (tmp_path / "out" / "cells" / cell.name).resolve()
        assert place.parents[2] == (tmp_path / "out" / "cells").resolve() and cell.variant == name


def test_settings_that_may_not_be_meant_are_told_once_for_all_seeds(place, capsys):
    """A file from `gspo config` has gspo's clip range, which then is that of GRPO's tokens too."""
    ranges = "algorithm = {epsilon = 3e-4, epsilon_high = 4e-4}"
    text = BASE.replace("train = {steps = 3}", f"train = {{steps = 3}}\n{ranges}").replace('epsilon = "auto"', "")
    write(place, text.replace('{name = "gspo", }', '{name = "gspo"}'))
    assert main(["compare", "study.toml", "--dir", "out", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.count("warning") == 1 and "warning  runs / GRPO: clip range 0.0003/0.0004 on token ratios" in told


def test_a_base_may_be_a_file_beside_it(tmp_path):
    base = Config(
        model=ModelConfig(path="m"), task=TaskConfig(source="rows.jsonl"), reward=RewardConfig(functions=["exact"])
    )
    (tmp_path / "base.toml").write_text(to_toml(base))
    study = read(write(tmp_path, 'seeds = [0]\nbase = "base.toml"\n[variants.a]\n'), tmp_path)
    (cell,) = study.cells
    assert cell.config.reward == base.reward and (study.title, study.baseline, study.last) == ("study", "a", 10)
