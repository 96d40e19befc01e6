"""What a call from Python becomes; tests/test_bad_input.py has what does not go together."""

from gspo.assembly.call_inputs import GIVEN, configured
from gspo.config.files import to_toml
from gspo.config.schema import Config

LOADED, ITS_TOKENIZER = object(), object()


def test_sections_change_the_configuration():
    for source in ({"train": {"steps": 7}}, None, Config()):
        made = configured(source, {"optimizer": {"lr": 0.5}}, "a/model", None)
        assert (made.model.path, made.optimizer.lr) == ("a/model", 0.5)
        assert made.train.steps == (7 if isinstance(source, dict) else Config().train.steps)


def test_a_file_is_read(tmp_path):
    (tmp_path / "run.toml").write_text(to_toml(configured({"train": {"steps": 7}}, {}, "m", None)))
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
