import os

import pytest

from gspo.demo import smollm2


@pytest.fixture(scope="session")
def pretrained():
    """The folder of SmolLM2. Without it tests are skipped, unless GSPO_REAL=1 has it fetched."""
    if not smollm2.folder().is_dir() and os.environ.get("GSPO_REAL") != "1":
        pytest.skip("SmolLM2 is not in the cache: make test-real")
    return smollm2.fetch_smollm2()
