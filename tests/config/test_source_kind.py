import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import GIVEN, has_splits, kind, played


@pytest.mark.parametrize(
    ("source", "expected", "splits"),
    [
        (GIVEN, "given", False),
        ("verifiers:v", "verifiers", True),
        ("reasoning_gym:gcd", "generated", False),
        ("my.rows:make", "function", False),
        ("rows.jsonl", "file", False),
        ("a/rows.json", "file", False),
        ("openai/gsm8k", "hub", True),
        ("./folder", "hub", True),
    ],
)
def test_a_name_says_what_it_stands_for(source, expected, splits):
    assert kind(source) == expected and has_splits(source) is splits


@pytest.mark.parametrize("name", ["dataset_dict.json", "state.json"])
def test_a_saved_folder_shows_itself_by_its_files(tmp_path, name):
    (tmp_path / "rows").mkdir()
    assert kind(str(tmp_path / "rows")) == "hub"
    (tmp_path / "rows" / name).touch()
    assert kind(str(tmp_path / "rows")) == "saved"
    assert has_splits(str(tmp_path / "rows"))


def test_who_plays():
    assert not played(TaskConfig(source="rows.jsonl"))
    assert played(TaskConfig(source="rows.jsonl", environment="a:B")) and played(TaskConfig(source="verifiers:v"))
