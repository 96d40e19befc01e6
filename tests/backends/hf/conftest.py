import pytest

from tests.backends.hf.families import tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny("qwen3_moe").save(folder)
    return folder
