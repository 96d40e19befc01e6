"""What a call from Python becomes; tests/test_bad_input.py has what does not go together."""

from gspo.assembly.call_inputs import GIVEN, configured

LOADED, ITS_TOKENIZER = object(), object()


def test_a_file_is_read(tmp_path):
    (tmp_path / "run.toml").write_text('model.path = "m"\n')
    assert configured(tmp_path / "run.toml", {}, None, None).model.path == "m"
    assert configured(str(tmp_path / "run.toml"), {}, "other", None).model.path == "other"


def test_what_is_given_has_a_name_in_the_configuration():
    class Named:
        name_or_path = "org/model"

    assert configured(None, {}, LOADED, ITS_TOKENIZER, [{"prompt": "?"}]).model.path == GIVEN
    trained = Named()
    assert configured(None, {}, trained, ITS_TOKENIZER).model.path == "org/model"
    for folder, path in (("", GIVEN), ("/run/model", "/run/model")):  # in training, and saved
        trained.gspo_folder = folder
        assert configured(None, {}, trained, ITS_TOKENIZER).model.path == path
        assert configured(None, {}, trained, ITS_TOKENIZER, resume=True).model.path == "org/model"
    assert configured(None, {}, "m", None, [{"prompt": "?"}]).task.source == GIVEN
    assert configured(None, {"task": {"source": "rows.jsonl"}}, "m", None, [{"prompt": "?"}]).task.source == "rows.jsonl"
