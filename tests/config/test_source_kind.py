from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import GIVEN, eval_config, has_splits, kind

KINDS = {
    GIVEN: ("given", False),
    "verifiers:v": ("verifiers", True),
    "reasoning_gym:gcd": ("generated", False),
    "my.rows:make": ("function", False),
    "a/rows.json": ("file", False),
    "openai/gsm8k": ("hub", True),
    "./folder": ("hub", True),
}


def test_a_name_says_what_it_stands_for(tmp_path):
    assert {source: (kind(source), has_splits(source)) for source in KINDS} == KINDS
    for name in ("dataset_dict.json", "state.json"):  # a saved folder shows itself by its files
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        assert kind(str(folder)) == "hub"
        (folder / name).touch()
        assert kind(str(folder)) == "saved" and has_splits(str(folder))


def test_options_are_for_held_out_rows_of_the_same_kind():
    """They are the training source's: a file, a function or a benchmark beside it has none of its own."""
    for source, eval_source, has_them in (
        ("openai/gsm8k", None, True), ("openai/gsm8k", "a/b", True), ("openai/gsm8k", "rows.jsonl", False),
        ("my:rows", "benchmark:aime24", False), ("my:rows", "my:others", True), ("my:rows", "reasoning_gym:gcd", False),
        ("benchmark:aime24", None, True), ("benchmark:aime24", "benchmark:aime25", False), (GIVEN, "my:rows", True),
        ("rows.jsonl", "benchmark:livecodebench", True),
    ):  # fmt: skip
        task = TaskConfig(source=source, eval_source=eval_source, config={"name": "main"})
        assert eval_config(task) == ({"name": "main"} if has_them else {}), (source, eval_source)
