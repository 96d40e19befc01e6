"""The embedded sampler's copies of the model: what does not fit the leader is refused before anything is loaded."""

import json
import shutil

import pytest
import torch

from gspo.assembly.host_memory import check_copies, free
from gspo.config.files import from_dict
from tests.launch.started import begin, finished
from tests.public_models import PAPER, folder_of


@pytest.fixture(scope="module")
def large(place):
    """A model of 235 billion weights, whose weights cannot be read."""
    folder = place / "235B"
    shutil.copytree(place / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").write_bytes(b"nothing")
    sizes = PAPER["QWEN3_MOE"] | PAPER["SIZES"]["235B-A22B"]
    (folder / "config.json").write_text(json.dumps(sizes))
    (place / "serve.toml").write_text("train.seed = 2")
    return folder


@pytest.mark.parametrize("command", ["train", "serve"])
def test_a_copy_that_does_not_fit_is_refused_before_the_model_is_loaded(place, large, command):
    given = "--scale.ranks=2", f"--model.path={large}", "--train.seed=2"
    settings = "serve.toml" if command == "serve" else "run.toml"
    status, output = finished(begin(place, f"too-large-{command}", *given, command=command, settings=settings))
    assert status == 2 and output.count("gspo: error") == 1, output
    assert 'sampler.engine = "embedded": the leader needs 875.8 GiB for a whole copy of the model and ' in output
    assert 'are free: set sampler.engine = "vllm"' in output and "safetensors" not in output, output


def of(path, **changes):
    return from_dict({"model": {"path": path}} | changes)


def test_what_is_refused_and_what_is_not(tmp_path, monkeypatch):
    large, room = folder_of(tmp_path, "30B-A3B"), free(torch.device("cpu"))
    billions = 30.532
    monkeypatch.setattr("gspo.assembly.host_memory.free", lambda device: 4.1e9 * billions)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    check_copies(of(large), 10_000)  # the copy, and little of shards
    with pytest.raises(ValueError, match=r"and 14.2 GiB for shards"):  # 16 bytes of each weight among 32
        check_copies(of(large), 32)
    with pytest.raises(ValueError, match=r"and 28.4 GiB for shards"):
        check_copies(of(large, scale={"data_parallel_replicas": 2}), 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # without GPUs they share what the machine has
    with pytest.raises(ValueError, match=r"and 56.9 GiB for shards"):
        check_copies(of(large), 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    check_copies(of(large, model={"path": large, "dtype": "bfloat16"}), 32)
    for config, ranks in ((of(large, sampler={"engine": "vllm"}), 2), (of("nowhere"), 1)):
        check_copies(config, ranks)
    assert 0 < room < 1e15
