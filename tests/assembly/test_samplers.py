import pytest
import torch

from gspo.agents.episodes import Episodes
from gspo.assembly import samplers
from gspo.assembly.samplers import EVAL_SEED, evaluator_of, samplers_of, samplings
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.config.files import from_dict
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling
from tests import tiny_run


class Room:
    """An environment that ends with the first answer."""

    tools = ()

    def __init__(self, row):
        self.row = row


def opened(policy, **sections):
    return samplers_of(from_dict(sections), policy, PolicyWeights(policy, 0))


@pytest.fixture
def policy():
    return HFPolicy(tiny_run.model())


def test_training_samples_the_whole_distribution_and_evaluation_as_it_is_told():
    model = tiny_run.model()
    config = from_dict(
        {
            "rollout": {"max_completion_length": 9, "temperature": 0.8, "stop": ["b"]},
            "eval": {"temperature": 0.0, "top_p": 0.5, "top_k": 3},
            "train": {"seed": 4},
        }
    )
    train, held_out = samplings(config, model)
    assert train == Sampling(9, 0.8, 1.0, 0, ("b",), model.stop_ids, 4)
    assert held_out == Sampling(9, 0.0, 0.5, 3, ("b",), model.stop_ids, EVAL_SEED + 4)  # the length is that of training
    longer = from_dict({"rollout": {"max_completion_length": 9}, "eval": {"max_completion_length": 20}})
    assert [one.max_new_tokens for one in samplings(longer, model)] == [9, 20]


def test_a_stop_string_that_no_text_has_is_refused_before_anything_is_sampled():
    config = from_dict({"rollout": {"stop": ["b", "<eos>\n"]}})
    with pytest.raises(ValueError, match=r"rollout\.stop.*'<eos>\\n' has the special token '<eos>'.*stop at '<eos>' alone"):
        samplings(config, tiny_run.model())


def test_the_policy_samples_itself(policy):
    with opened(policy, sampler={"batch_size": 3}) as (train, held_out):
        assert train is held_out and isinstance(train, HFSampler) and train.model is policy.model
        (one,) = train.generate([Prompt("p", "", (2, 3))], 1, Sampling(4))
        assert len(one.tokens) == 6


def test_a_coarse_sampler_is_a_copy_and_evaluation_is_exact(policy):
    before = [p.clone() for p in policy.model.model.parameters()]
    config = from_dict({"sampler": {"quantize": "int4"}})
    with samplers_of(config, policy, PolicyWeights(policy, 0)) as (train, held_out):
        assert held_out.model is policy.model and train.model is not policy.model
        pairs = zip(train.model.model.parameters(), policy.model.model.parameters())
        assert any(not torch.equal(coarse, exact) for coarse, exact in pairs)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.model.parameters()))


def test_an_evaluation_makes_no_copy(policy, monkeypatch):
    monkeypatch.delattr(samplers, "copy")
    config = from_dict({"sampler": {"quantize": "int4"}})
    with evaluator_of(config, policy) as sampler:
        assert sampler.quantize == "none" and sampler.model is policy.model
    with pytest.raises(NameError), samplers_of(config, policy, PolicyWeights(policy, 0)):
        pass


def test_a_task_with_an_environment_is_played(policy):
    task = {"source": "rows.jsonl", "environment": f"{__name__}:Room"}
    with opened(policy, task=task) as (train, held_out):
        assert isinstance(train, Episodes) and train is held_out
    with pytest.raises(ValueError, match="has no function 'Roam', did you mean Room"):
        opened(policy, task=task | {"environment": f"{__name__}:Roam"}).__enter__()
