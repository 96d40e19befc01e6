"""What the page of a study says of the terms of its cells."""

from gspo.compare.spec import Cell
from gspo.compare.terms import describe, differing
from gspo.config.files import as_config


def cell(variant, changes, seed=0, setting="runs"):
    place = {"task": {"seed": seed}, "train": {"seed": seed}, "log": {"dir": f"{variant}/{seed}"}}
    return Cell(setting, variant, seed, as_config(as_config({}, changes), place))


def test_all_that_variants_share_is_said_and_what_differs():
    cells = [cell("A", {"algorithm": {"name": "grpo"}}), cell("B", {}), cell("B", {}, seed=1)]
    assert differing(cells) == ["algorithm.name"]
    assert describe(cells, {}) == (
        "Cells with the same seed have the same prompts in the same order, the same model to begin with, the same number "
        "of steps. Variants differ in algorithm.name."
    )


def test_what_variants_change_is_not_called_the_same():
    cells = [cell("A", {"train": {"steps": 5}}), cell("B", {"model": {"path": "other"}}), cell("C", {"lora": {"rank": 4}})]
    assert describe(cells, {}) == (
        "Cells with the same seed have the same prompts in the same order. "
        "Variants differ in model.path, lora.rank, train.steps."
    )
    cells = [cell("A", {}), cell("A", {"train": {"steps": 5}}, setting="short")]  # settings may differ from each other
    assert describe(cells, {}).startswith("Within a setting, cells with the same seed have ")
    assert describe(cells, {}).endswith("Variants do not differ.")


REFILL, REFRESH = {"rollout": {"dynamic_sampling_rounds": 2}}, {"refresh": {"every": 5, "drop_above": 0.9}}
AHEAD = {"rollout": {"max_staleness": 1}}
TAGS, LENGTH = {"reward": {"functions": ["exact"]}}, {"rollout": {"max_completion_length": 64}}
PLAIN = {"reward": {"functions": ["rewards:mine"]}}


def test_the_same_prompts_are_those_that_nothing_changes(subtests):
    for base, changes, same in (
        ({}, LENGTH, True), ({}, {"reward": {"correct_threshold": 0.5}}, True),
        ({"rollout": {"num_prompts": 4}}, {"rollout": {}}, False),
        (REFILL, {}, False), (REFRESH, {}, False), (AHEAD, {}, False),  # what is learned, or is done first, decides
        ({"task": {"too_long": "leave_out"}}, LENGTH, False),  # other rows have room
        ({"task": {"too_long": "leave_out"}}, {"model": {"path": "other"}}, False),
        (PLAIN, TAGS, False), (PLAIN | {"task": {"system": ""}}, TAGS, True),  # `exact` asks for tags
    ):  # fmt: skip
        with subtests.test(base=base, changes=changes):
            cells = [cell("A", base), cell("B", base | changes)]
            assert ("the same prompts in the same order" in describe(cells, {})) == same


def test_the_same_number_of_steps_is_counted():
    cells = [cell("A", {}), cell("B", {}), cell("A", {}, seed=1)]
    A, B, other = (("runs", each.variant, each.seed) for each in cells)
    assert "the same number of steps" in describe(cells, {A: 9, B: 9, other: 8})
    assert "the same number of steps" not in describe(cells, {A: 9, B: 7})  # the guard has stopped one
