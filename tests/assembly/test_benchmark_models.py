import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch

from gspo.assembly.benchmark_models import answering, computation, encoded, sampling_of, seed_at, version, worded
from gspo.backends.hf.files import ADAPTER
from gspo.config.files import from_dict
from gspo.config.policy import ModelConfig
from tests.patience import PATIENCE
from tests.tiny_run import model

ROWS = [{"id": f"p{i}", "prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(3)]


@pytest.fixture
def config(tmp_path):
    model().save(tmp_path / "model")
    return from_dict({
        "model": {"path": str(tmp_path / "model"), "device": "cpu"},
        "task": {"source": "benchmark:aime24"},
        "reward": {"functions": ["math"]},
        "eval": {"max_completion_length": 8, "num_generations": 2, "temperature": 0.5, "top_k": 3},
    })  # fmt: skip


def test_prompts_keep_the_ids_of_their_problems(config):
    prompts = encoded(config, ROWS)
    assert [prompt.id for prompt in prompts] == ["p0", "p1", "p2"] and all(prompt.tokens for prompt in prompts)
    assert prompts[0].columns["answer"] == "1"
    for_endpoints = worded(config, ROWS)
    assert (for_endpoints[0].id, for_endpoints[0].messages, for_endpoints[0].tokens) == ("p0", "0+1=", ())


def test_what_moves_a_models_numbers_tells_evaluations_apart(config, monkeypatch):
    monkeypatch.setattr("gspo.assembly.benchmark_models.pick_device", torch.device)  # this machine may have but one kind
    cfg, changes = config.model, {"dtype": "bfloat16", "autocast": "bfloat16", "attention": "eager"}
    assert computation(cfg) == computation(dataclasses.replace(cfg, path="elsewhere"))
    for key, value in (changes | {"expert_kernels": "eager", "quantize": "int8", "device": "meta"}).items():
        assert computation(dataclasses.replace(cfg, **{key: value})) == computation(cfg) | {key: value}, key


def test_a_problem_that_does_not_fit_is_refused_whatever_the_task_says(config):
    long = [*ROWS, {"id": "long", "prompt": "1+" * 40, "answer": "40"}]
    leave_out = dataclasses.replace(config, task=dataclasses.replace(config.task, too_long="leave_out"))
    with pytest.raises(ValueError, match=r"row 3: the prompt has \d+ tokens, but only 56 fit"):
        encoded(leave_out, long)


def test_a_completion_depends_on_its_problem_and_number_alone(config):
    prompts = encoded(config, ROWS)
    with answering(config, prompts) as (begin, most):
        every = {(i, j): begin(i, j) for i in range(3) for j in range(2)}
        texts = {key: future.result(PATIENCE).text for key, future in every.items()}
    with answering(config, prompts) as (begin, _):
        alone = begin(2, 1).result(PATIENCE)
    assert most == 256 and alone.text == texts[2, 1] and len(set(texts.values())) > 1


def test_an_endpoint_samples_as_the_model_would(config):
    sampling = sampling_of(config)
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (8, 0.5, 3)
    assert len({seed_at(config, i, j) for i in range(9) for j in range(9)}) == 81


def test_a_model_that_was_trained_on_is_another(tmp_path):
    """And so is one on another base, or with another tokenizer."""
    for name in ("model", "adapter", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "adapter" / ADAPTER).write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "model")}))
    of = [
        ModelConfig(str(tmp_path / "model")),
        ModelConfig(str(tmp_path / "adapter")),
        ModelConfig(str(tmp_path / "model"), tokenizer=str(tmp_path / "tokenizer")),
    ]
    before = [version(each) for each in of]
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    assert [version(each) != was for each, was in zip(of, before)] == [False, False, True]
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"1")
    assert [version(each) != was for each, was in zip(of, before)] == [False, True, True]
    before = [version(each) for each in of]
    (tmp_path / "model" / "model.safetensors").write_bytes(b"12")
    assert all(version(each) != was for each, was in zip(of, before))
    with pytest.raises(ValueError, match="no such folder"):
        version(ModelConfig(str(tmp_path / "nowhere")))


MOVES = """
import sys
from pathlib import Path
from gspo.assembly.benchmark_models import version
from gspo.config.policy import ModelConfig

hub = Path(sys.argv[1]) / "hub" / "models--some--model"
for commit, config in (("a" * 40, '{"model_type": "llama"}'), ("b" * 40, '{"model_type": "llama", "x": 1}')):
    folder = hub / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer_config.json").write_text("{}")
    (hub / "refs").mkdir(exist_ok=True)
    (hub / "refs" / "main").write_text(commit)
    print(version(ModelConfig("some/model")))
print(version(ModelConfig("some/model", revision="a" * 40)))
print(version(ModelConfig("some/model", revision="a" * 40, tokenizer="some/model")))
try:
    version(ModelConfig("some/model", tokenizer="no/model"))
except ValueError as error:
    print(error)
"""


def test_a_model_of_the_hub_that_moved_on_is_another(tmp_path):
    """In the cache of the Hub's own library, where it asks nobody."""
    known = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", MOVES, str(tmp_path)]
    ended = subprocess.run(command, env=known, check=True, capture_output=True, text=True)
    first, second, pinned, both, wrong = ended.stdout.splitlines()[:5]
    assert first == pinned == f"commit {'a' * 40}" and second == f"commit {'b' * 40}"
    assert both == f"commit {'a' * 40}, tokenizer commit {'b' * 40}"
    assert wrong.startswith("model.tokenizer = 'no/model': no tokenizer can be loaded")
