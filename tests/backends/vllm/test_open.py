import fcntl

import pytest

import gspo
from gspo.backends.vllm.open import LOCK, sweep
from tests.tiny_run import ROWS, likes_a, model, settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"vLLM is not installed here: .*sampler\.python"),
        ({"python": "/no/such/python"}, "sampler.python = '/no/such/python': no such program"),
        ({"url": "http://127.0.0.1:9", "exchange": "/no/such"}, "sampler.exchange = '/no/such': no such folder"),
        ({"url": "http://127.0.0.1:9"}, r"sampler.url = 'http://127.0.0.1:9': nothing answers .*gspo_vllm.py"),
    ],
)
def test_what_is_refused_before_a_run_has_a_folder(tmp_path, changes, message):
    tiny = model()
    with pytest.raises(ValueError, match=message):
        gspo.train(
            tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer,
            config=settings(tmp_path / "run", sampler={"engine": "vllm"} | changes),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_what_killed_runs_left_in_memory_is_swept(tmp_path):
    for name in ("gspo-dead", "gspo-alive", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).touch()
    with open(tmp_path / "gspo-alive" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gspo-alive", "other"]
