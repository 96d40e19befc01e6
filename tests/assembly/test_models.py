import json
import logging

import pytest
import torch

from gspo.assembly.assemble import note_limits
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.models import (
    check_fit,
    check_routers,
    evaluated_prompts,
    models_of,
    prompts_of,
    trained_outline,
)
from gspo.backends.hf.files import Outline, outline
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.config.files import from_dict
from gspo.config.policy import ModelConfig
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from gspo.types import Prompt
from tests import tiny_run
from tests.backends.hf.families import TOKENIZER, tiny
from tests.data.tools import TEMPLATE, characters, text
from tests.logged import logs, silent


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's own model, and a checkpoint with other weights."""
    folder = tmp_path_factory.mktemp("models")
    tiny_run.model().save(folder / "own")
    tiny_run.model(seed=1).save(folder / "step_000002" / "model")
    return folder


def test_a_prompt_has_room_in_the_context_of_the_engine():
    config, prompts = from_dict({"rollout": {"max_completion_length": 30}}), [Prompt(f"{n}", "", (0,) * n) for n in (5, 10)]
    check_fit(config, prompts, 40)
    check_fit(config, prompts, None)
    check_fit(config, [], 20)  # agents bring theirs
    with pytest.raises(ValueError, match="leaves 9 tokens for a prompt, and the longest has 10: start it with a longer one"):
        check_fit(config, prompts, 39)


def of(saved, **sections):
    return from_dict({"model": {"path": str(saved / "own"), "device": "cpu"}} | sections)


def weight(model):
    return next(model.model.parameters()).detach()


def test_a_given_model_is_trained_itself(saved):
    tiny = tiny_run.model(seed=2)
    given = CallInputs(tiny.model, tiny.tokenizer)
    model, frozen = models_of(of(saved), given, None)
    assert model.model is tiny.model and frozen == {}
    config = of(saved, algorithm={"beta": 0.1})
    _, frozen = models_of(config, given, saved / "step_000002")
    assert torch.equal(weight(tiny), weight(tiny_run.model(seed=1)))  # with the weights of the checkpoint
    assert torch.equal(weight(frozen["logp_ref"].model), weight(tiny_run.model(seed=2)))
    with pytest.raises(ValueError, match="object has been trained since"):  # as after an error while the run was resumed
        models_of(config, given, saved / "step_000002")


def test_the_reference_is_where_training_began(saved):
    model, frozen = models_of(of(saved, algorithm={"beta": 0.1}), CallInputs(), saved / "step_000002")
    reference = frozen["logp_ref"]
    assert torch.equal(weight(reference.model), weight(tiny_run.model()))
    assert torch.equal(weight(model), weight(tiny_run.model(seed=1)))
    assert not any(p.requires_grad for p in reference.model.model.parameters())
    model, frozen = models_of(of(saved, algorithm={"beta": 0.1}, lora={"rank": 2}), CallInputs(), None)
    assert weight(frozen["logp_ref"].model).data_ptr() == weight(model).data_ptr()  # adapters switched off, no copy


def test_experts_that_ranks_cannot_share_are_refused_before_weights_are_read(saved):
    config = of(saved, scale={"ranks": 3, "expert_parallel": 3})
    with pytest.raises(ValueError, match=r"scale.expert_parallel = 3 does not divide the 4 experts of model.path"):
        trained_outline(config, CallInputs(), None)


def test_an_evaluation_reads_no_training_row(saved, tmp_path):
    tiny, rows = tiny_run.model(), [{"prompt": "1" * 60, "answer": 1}, *tiny_run.ROWS[:19]]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = of(
        saved,
        task={"source": str(tmp_path / "long.jsonl")},
        eval={"max_completion_length": 50},
        rollout={"max_completion_length": 8},
    )
    found = evaluated_prompts(config, CallInputs(), outline(tiny.model, tiny.tokenizer))
    assert [prompt.id for prompt in found] == ["eval-18", "eval-19"]
    with pytest.raises(ValueError, match=r"row 0: .* lower rollout.max_completion_length or eval.max_completion_length"):
        prompts_of(config, CallInputs(), outline(tiny.model, tiny.tokenizer))


def test_prompts_say_how_to_answer_where_a_reward_reads_tags():
    pytest.importorskip("reasoning_gym")
    seen = Outline(characters(TEMPLATE), Roomy())

    def of_task(**task):
        task = {"source": "reasoning_gym:gcd", "size": 2} | task
        return prompts_of(from_dict({"task": task, "eval": {"num_prompts": 2}}), CallInputs(), seen)

    with logs('system message "Put your final answer between <answer> and </answer>', logging.INFO):
        train, held_out = of_task()
    assert all(text(seen.tokenizer, one.tokens).startswith("<s>[system]Put your final") for one in train + held_out)
    with logs(match="neither task.system nor the prompts say so"):
        of_task(system="Be brief.")
    with silent():
        of_task(system="Say <answer>x</answer>.")


class Roomy:
    """The configuration of a model that reads anything."""

    def get_text_config(self):
        return self


def test_a_mixture_whose_routing_is_unseen_is_not_called_dense(tmp_path):
    """Doge's experts are chosen by no router of their own. It is refused as that, and a run says so at its start."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    doge = build_tiny(
        {"model_type": "doge", "is_moe": True, "num_experts": 16, "num_experts_per_tok": 2, "intermediate_size": 32} | shape,
        TOKENIZER, cfg=ModelConfig(device="cpu", attention="eager"),
    )  # fmt: skip
    for section in ({"aux_loss": 0.1}, {"router_replay": "R2"}):
        with pytest.raises(ValueError, match="DogeForCausalLM is a mixture of experts whose routing gspo does not see"):
            check_routers(from_dict({"algorithm": section}), doge)
    policy = HFPolicy(doge)
    assert "does not see" in policy.unseen
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder) as log, logs() as told:
        note_limits(log, policy)
    assert told[0].startswith(f"{policy.unseen}: there are no moe/ metrics")
    assert HFPolicy(tiny("llama")).unseen == HFPolicy(tiny("qwen3_moe")).unseen == ""
