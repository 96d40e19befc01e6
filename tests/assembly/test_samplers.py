from contextlib import contextmanager
from copy import deepcopy

import pytest

from gspo.agents.environment import Step
from gspo.agents.episodes import Episodes
from gspo.assembly.samplers import EVAL_SEED, evaluator_of, samplers_of, samplings
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.backends.vllm.process import free_port
from gspo.config.files import from_dict
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling
from tests import tiny_run
from tests.agents.talking import tokenizer
from tests.backends.hf.families import FAMILIES
from tests.backends.vllm.engines import Bigrams, Engines
from tests.logged import logs, silent
from tests.serving import served
from tests.training.whole import numbers, train


class Room:
    """An environment that ends with the first answer."""

    tools = ()

    def __init__(self, row):
        self.row = row


class Endless(Room):
    """One that always asks on."""

    async def start(self):
        return [{"role": "user", "content": "what is in the box"}]

    async def step(self, turn):
        return Step([{"role": "user", "content": "and then"}])


def opened(policy, **sections):
    return samplers_of(from_dict(sections), policy, PolicyWeights(policy, 0))


@pytest.fixture
def policy():
    return HFPolicy(tiny_run.model())


def test_training_samples_the_whole_distribution_and_evaluation_as_it_is_told():
    model = tiny_run.model()
    config = from_dict({
        "rollout": {"max_completion_length": 9, "temperature": 0.8, "stop": ["b"]},
        "eval": {"temperature": 0.0, "top_p": 0.5, "top_k": 3}, "train": {"seed": 4},
    })  # fmt: skip
    train, held_out = samplings(config, model)
    assert train == Sampling(9, 0.8, 1.0, 0, ("b",), model.stop_ids, 4)
    assert held_out == Sampling(9, 0.0, 0.5, 3, ("b",), model.stop_ids, EVAL_SEED + 4)  # the length is that of training
    longer = from_dict({"rollout": {"max_completion_length": 9}, "eval": {"max_completion_length": 20}})
    assert [one.max_new_tokens for one in samplings(longer, model)] == [9, 20]


def test_a_turn_that_ends_no_completion_is_warned_of():
    """As with Qwen's base models: their template ends turns with <|im_end|>, and their eos token is another."""
    wrapped = deepcopy(tokenizer("chatml"))
    wrapped.eos_token = wrapped.pad_token = "<|begin|>"
    base, chat = (build_tiny(FAMILIES["qwen3"] | {"vocab_size": 400}, one) for one in (wrapped, tokenizer("chatml")))
    with logs(match=r'ends a turn with <\|im_end\|>, which ends no completion.*set rollout.stop = \["<\|im_end\|>"\]'):
        samplings(from_dict({}), base)
    with silent():
        samplings(from_dict({}), chat)
        samplings(from_dict({"rollout": {"stop": ["<|im_end|>"]}}), base)
        samplings(from_dict({"task": {"template": "none"}}), base)


def of_ones(config, model, size=7):
    return HFSampler(model, size) if size else [model]


@contextmanager
def of_two(config, model):
    OPENED.append(config.sampler.engine)
    yield HFSampler(model, 1), HFSampler(model, 2)
    OPENED.append("closed")


OPENED = []


def test_a_function_makes_the_samplers_and_they_get_the_weights(policy):
    weights = PolicyWeights(policy, 3)
    config = from_dict({"sampler": {"engine": f"{__name__}:of_ones"}})
    with samplers_of(config, policy, weights) as (train, held_out):
        assert train is held_out and (train.batch_size, train.version) == (7, 3)
    config = from_dict({"sampler": {"engine": f"{__name__}:of_two"}})
    with samplers_of(config, policy, weights) as (train, held_out):
        assert (train.batch_size, held_out.batch_size, held_out.version) == (1, 2, 3)
        assert [f"{__name__}:of_two"] == OPENED
    assert OPENED[1:] == ["closed"]
    with evaluator_of(config, policy) as sampler:
        assert sampler.batch_size == 2


def test_a_function_that_makes_no_sampler_is_named(policy):
    args = {"engine": f"{__name__}:of_ones", "engine_args": {"size": 0}}
    with pytest.raises(ValueError, match=r"returned a list without version, .*generate, .*: return a gspo"):
        opened(policy, sampler=args).__enter__()


def test_a_run_samples_with_an_engine_of_its_own(tmp_path):
    own = {"engine": f"{__name__}:of_ones", "engine_args": {"size": 256}}
    run = train(tmp_path / "run", sampler=own, train={"steps": 2})
    assert run.finished and numbers(run.folder) == numbers(train(tmp_path / "plain", train={"steps": 2}).folder)


def test_a_task_with_an_environment_is_played(policy):
    task = {"source": "rows.jsonl", "environment": f"{__name__}:Room"}
    with opened(policy, task=task) as (train, held_out):
        assert isinstance(train, Episodes) and train is held_out
    with pytest.raises(ValueError, match="has no function 'Roam', did you mean Room"):
        opened(policy, task=task | {"environment": f"{__name__}:Roam"}).__enter__()


def test_an_episode_ends_where_the_context_of_its_engine_does():
    """Which refuses the turn after that; the model reads on."""
    engines, policy = Engines(), HFPolicy(served.tiny())
    short, long = free_port(), free_port()
    try:
        config = from_dict({
            "sampler": {"engine": "vllm", "urls": [engines.start(short, "--context=70"), engines.start(long)]},
            "task": {"source": "rows.jsonl", "environment": f"{__name__}:Endless", "max_turns": 100},
        })  # fmt: skip
        with samplers_of(config, policy, Bigrams(1, policy.model.config.vocab_size)) as (sampler, _):
            (one,) = sampler.generate([Prompt("p", "", (2, 3))], 1, Sampling(8, seed=0, stop_ids=policy.model.stop_ids))
    finally:
        for port in engines.processes:
            engines.kill(port)
    assert one.stop == "length" and one.reward_parts["turns/context_full"] == 1 and one.error is None
    assert 50 < len(one.tokens) <= 70 == policy.model.context_length
