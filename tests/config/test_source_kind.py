from gspo.config.source_kind import GIVEN, has_splits, kind

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
