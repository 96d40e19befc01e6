import functools

import pytest

from tests.backends.hf.families import tiny
from tests.backends.hf.folders import model_in


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny("qwen3_moe").save(folder)
    return folder


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Folders of models for several ranks by (dense, tied): what is learned alone from a folder is learned once."""
    return functools.cache(lambda dense, tied: model_in(tmp_path_factory.mktemp("models") / "model", dense, tied))
