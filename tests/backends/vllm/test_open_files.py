import resource
from dataclasses import replace

import pytest

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.open import sampler_of
from gspo.backends.vllm.open_files import FILES, SPARE, allow_connections
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from tests.tiny_run import model

SMALL = SamplerConfig(engine="vllm", engines=2, batch_size=4)


@pytest.fixture
def limits():
    """The limits of this process, which come back."""
    before = resource.getrlimit(FILES)
    yield before
    resource.setrlimit(FILES, before)


def test_the_limit_rises_to_what_the_engines_take(limits, tmp_path):
    """Twice as many connections as requests, if there may be as many, and never less than before."""
    _, hard = limits
    for given, wanted in (
        (SMALL, SPARE + 16),
        (replace(SMALL, batch_size=40), SPARE + 160),
        (SMALL, SPARE + 160),
        (replace(SMALL, urls=["a", "b", "c"], batch_size=100), SPARE + 600),
        (replace(SMALL, batch_size=(hard - SPARE) // 2), hard),
    ):
        if given is SMALL and wanted == SPARE + 16:
            resource.setrlimit(FILES, (SPARE + 8, hard))
        allow_connections(given)
        assert resource.getrlimit(FILES) == (wanted, hard)
    resource.setrlimit(FILES, (SPARE + 8, hard))
    policy = HFPolicy(model())
    with pytest.raises(ValueError, match=rf"sampler.batch_size = {hard}: .* {2 * hard + SPARE} open files, .*ulimit -Hn"):
        sampler_of(Config(sampler=replace(SMALL, batch_size=hard)), policy, None, tmp_path)
    assert resource.getrlimit(FILES) == (SPARE + 8, hard)
