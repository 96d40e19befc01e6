"""What the page of a study says of the terms of its cells."""

from gspo.config.files import as_config
from gspo.study.spec import Cell
from gspo.study.terms import differing, told


def cell(variant, changes, seed=0, setting="runs"):
    place = {"task": {"seed": seed}, "train": {"seed": seed}, "log": {"dir": f"{variant}/{seed}"}}
    return Cell(setting, variant, seed, as_config(as_config({}, changes), place))


def test_all_that_variants_share_is_said_and_what_differs():
    cells = [cell("A", {"algorithm": {"name": "grpo"}}), cell("B", {}), cell("B", {}, seed=1)]
    assert differing(cells) == ["algorithm.name"]
    assert told(cells) == (
        "Cells with the same seed have the same prompts in the same order, the same model to begin with, the same number "
        "of steps. Variants differ in algorithm.name."
    )


def test_what_variants_change_is_not_called_the_same():
    cells = [cell("A", {"train": {"steps": 5}}), cell("B", {"model": {"path": "other"}}), cell("C", {"lora": {"rank": 4}})]
    assert told(cells) == (
        "Cells with the same seed have the same prompts in the same order. "
        "Variants differ in model.path, lora.rank, train.steps."
    )
    cells = [cell("A", {"rollout": {"num_prompts": 4}}), cell("B", {})]
    assert "prompts in" not in told(cells) and "the same model" in told(cells)


def test_settings_may_differ_from_each_other():
    cells = [cell("A", {}), cell("A", {"train": {"steps": 5}}, setting="short")]
    assert differing(cells) == [] and told(cells).endswith("Variants do not differ.")
