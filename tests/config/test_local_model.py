"""Which models are on this machine: found without torch and without the network."""

import pytest

from gspo.config.local_model import local_copy
from gspo.config.policy import ModelConfig


def folder(path, *names):
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize(
    ("own", "other", "found"),
    [
        (("config.json", "tokenizer.json"), None, True),
        (("config.json",), None, False),
        (("tokenizer.json",), None, False),
        (("config.json",), ("tokenizer_config.json",), True),
        (("config.json", "tokenizer.json"), (), False),
        (("adapter_config.json", "tokenizer.json"), None, False),
    ],
)
def test_a_folder_is_at_hand_with_its_tokenizer(tmp_path, own, other, found):
    path = str(folder(tmp_path / "model", *own))
    tokenizer = None if other is None else str(folder(tmp_path / "tokenizer", *other))
    model = ModelConfig(path=path, tokenizer=tokenizer, trust_remote_code=True)
    assert local_copy(model) == (model if found else None)


@pytest.mark.parametrize("path", ["", "nobody/has-it", "./none", "a/b/c"])
def test_what_is_not_here_is_no_error(path):
    assert local_copy(ModelConfig(path=path)) is None


def test_a_cached_model_is_at_hand_at_its_revision(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    snapshot = folder(cache / "models--org--name" / "snapshots" / ("a" * 40), "config.json", "tokenizer_config.json")
    refs = folder(cache / "models--org--name" / "refs")
    (refs / "main").write_text("a" * 40)
    found = local_copy(ModelConfig(path="org/name"))
    assert found == ModelConfig(path=str(snapshot)) and found.revision is None
    assert local_copy(ModelConfig(path="org/name", revision="a" * 40)) == ModelConfig(path=str(snapshot))
    assert local_copy(ModelConfig(path="org/name", revision="v2")) is None
    assert local_copy(ModelConfig(path="org/name", tokenizer="org/other")) is None
    assert local_copy(ModelConfig(path=str(snapshot), tokenizer="org/name")).tokenizer == str(snapshot)
