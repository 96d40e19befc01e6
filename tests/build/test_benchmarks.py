import dataclasses

import pytest

from gspo.build.benchmarks import answering, encoded, sampling_of, seed_at, worded
from gspo.config.files import from_dict
from tests.tiny_run import model

ROWS = [{"id": f"p{i}", "prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(3)]


@pytest.fixture
def config(tmp_path):
    made = model()
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
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


def test_a_problem_that_does_not_fit_is_refused_whatever_the_task_says(config):
    long = [*ROWS, {"id": "long", "prompt": "1+" * 40, "answer": "40"}]
    leave_out = dataclasses.replace(config, task=dataclasses.replace(config.task, too_long="leave_out"))
    with pytest.raises(ValueError, match=r"row 3: the prompt has \d+ tokens, but only 56 fit"):
        encoded(leave_out, long)


def test_a_completion_depends_on_its_problem_and_number_alone(config):
    prompts = encoded(config, ROWS)
    with answering(config, prompts) as (begin, most):
        every = {(i, j): begin(i, j) for i in range(3) for j in range(2)}
        texts = {key: future.result(60).text for key, future in every.items()}
    with answering(config, prompts) as (begin, _):
        alone = begin(2, 1).result(60)
    assert most == 256 and alone.text == texts[2, 1] and len(set(texts.values())) > 1


def test_an_endpoint_samples_as_the_model_would(config):
    sampling = sampling_of(config)
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (8, 0.5, 3)
    assert len({seed_at(config, i, j) for i in range(9) for j in range(9)}) == 81
