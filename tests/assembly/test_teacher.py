"""The teacher of on-policy distillation: what is refused before it is loaded, and whole runs that it teaches."""

import dataclasses

import pytest
import torch

import gspo
from gspo.assembly.assemble import evaluating
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.early_checks import checked_prompts
from gspo.assembly.host_memory import teacher_bytes
from gspo.assembly.models import models_of
from gspo.assembly.scorers import scorer_of
from gspo.assembly.teacher import check_teacher, longest_reading, teacher_settings
from gspo.backends.hf.files import outline
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.files import from_dict
from gspo.config.local_model import local_copy
from gspo.config.policy import TeacherConfig
from gspo.types import Prompt, Rollout
from tests import tiny_run
from tests.data.tools import TEMPLATE
from tests.logged import logs
from tests.training.whole import lines


def other(folder, pieces=tiny_run.PIECES, template=None, **changes):
    """A teacher of another kind, saved."""
    tokenizer = longest_match_tokenizer(pieces)
    tokenizer.chat_template = template
    small = {"hidden": 32, "layers": 1, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 64}
    build_tiny(tiny_qwen3_moe(**small | changes), tokenizer, 1).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return other(tmp_path_factory.mktemp("models") / "teacher")


def taught(path, **sections):
    sections = {"algorithm": {"name": "grpo"}, "teacher": {"path": path}} | sections
    return from_dict({"model": {"path": "m", "device": "cpu"}} | sections)


def checked(config):
    tiny = tiny_run.model()
    check_teacher(config, outline(tiny.model, tiny.tokenizer), teacher_settings(config))


REFUSED = {
    "another vocabulary": (
        {"pieces": tiny_run.PIECES[::-1]},
        "another vocabulary than the model's: '0' is id 2 here and id 18 there",
    ),
    "fewer tokens": ({"pieces": tiny_run.PIECES[:-1]}, "another .*: 'b' is id 18 here and unknown there; choose a teacher"),
    "another template": ({"template": TEMPLATE}, "its chat template is not the model's, .*: set model.tokenizer = "),
    "a shorter context": ({"context": 32}, "its context is 32 tokens, the model's 64: choose a teacher that reads as many"),
}


def test_a_teacher_that_reads_other_tokens_is_refused(tmp_path, subtests, teacher):
    checked(taught(teacher))
    for name, (changes, message) in REFUSED.items():
        with subtests.test(name), pytest.raises(ValueError, match=f"^teacher.path = '.*': {message}"):
            checked(taught(other(tmp_path / name, **changes)))
    checked(taught(str(tmp_path / "another template"), task={"template": "none"}))
    checked(taught(other(tmp_path / "more tokens", [*tiny_run.PIECES, "c"])))  # which the model never samples


def test_a_teacher_that_embeds_fewer_tokens_is_refused(tmp_path, teacher):
    tiny = tiny_run.model()
    tiny.model.config.vocab_size += 1  # as if padded
    with pytest.raises(ValueError, match="embeds 19 tokens, but the model may sample 20: choose a teacher with as many"):
        check_teacher(taught(teacher), outline(tiny.model, tiny.tokenizer), teacher_settings(taught(teacher)))


@pytest.mark.parametrize(
    ("path", "sections", "message"),
    [
        ("./none", {}, "teacher.path = './none': no such folder"),
        ("", {"teacher": {"revision": "v1"}}, "teacher.revision = 'v1': has no effect on the folder"),
        ("", {"scale": {"expert_parallel": 3}}, "scale.expert_parallel = 3 does not divide the 4 experts of teacher.path"),
    ],
)
def test_errors_name_the_keys_of_the_teacher(teacher, path, sections, message):
    path = path or teacher
    more = {name: table | {"path": path} if name == "teacher" else table for name, table in sections.items()}
    with pytest.raises(ValueError, match=message):
        checked(taught(path, **more))


def test_a_settings_file_is_checked_with_the_teacher_that_is_here(tmp_path):
    tiny_run.model().save(tmp_path / "model")
    config = taught(other(tmp_path / "other", tiny_run.PIECES[::-1]), model={"path": str(tmp_path / "model")})
    with pytest.raises(ValueError, match="another vocabulary"):
        checked_prompts(config, local_copy(config.model), 1)
    assert checked_prompts(taught("org/elsewhere", model={"path": str(tmp_path / "model")}), local_copy(config.model), 1)


@pytest.mark.parametrize("rests", [False, True])
def test_the_teacher_is_frozen_in_its_own_dtype_beside_what_is_trained(tmp_path, teacher, rests):
    tiny_run.model().save(tmp_path / "own")
    config = from_dict(
        {
            "model": {"path": str(tmp_path / "own"), "device": "cpu"}, "lora": {"rank": 2},
            "teacher": {"path": teacher, "dtype": "bfloat16"}, "algorithm": {"name": "grpo", "beta": 0.1},
            "train": {"offload_reference": rests},
        }
    )  # fmt: skip
    model, frozen = models_of(config, CallInputs(), None)
    made = frozen["logp_teacher"]
    assert (made.resting is not None) == rests and frozen["logp_ref"].resting is None  # its weights are the model's own
    weights = list(made.model.model.parameters())
    assert made.model.model.dtype == torch.bfloat16 and not any(p.requires_grad for p in weights)
    assert any(p.requires_grad for p in model.model.parameters())
    assert teacher_bytes(config) == (0 if rests else 2 * sum(p.numel() for p in weights))


def test_a_teacher_behind_an_endpoint_is_not_loaded(tmp_path):
    tiny_run.model().save(tmp_path / "own")
    config = taught("large", model={"path": str(tmp_path / "own"), "device": "cpu"})
    config = dataclasses.replace(config, teacher=TeacherConfig(path="large", url="http://127.0.0.1:9/v1"))
    assert models_of(config, CallInputs(), None)[1] == {} and teacher_bytes(config) == 0
    assert checked_prompts(config, local_copy(config.model), 1)


def test_an_endpoint_must_read_the_longest_prompt_and_completion():
    """Conversations end where its context does."""
    prompts, rollout = [Prompt("0", "", (2,) * size) for size in (3, 7, 5)], {"max_completion_length": 20}
    config = taught("t", rollout=rollout)
    assert longest_reading(config, prompts) == 7 + 20 + 1
    assert longest_reading(taught("t", rollout=rollout, stage=[{"at": 2, "max_completion_length": 40}]), prompts) == 48
    assert longest_reading(config, ()) is None  # gspo serve
    played = taught("t", task={"environment": "rooms:Room"}, reward={"functions": ["task"]})
    assert longest_reading(played, prompts) is None


def test_a_run_comes_nearer_to_its_teacher_while_the_reward_is_only_watched(tmp_path, teacher):
    settings = tiny_run.settings(
        tmp_path / "run", teacher={"path": teacher}, algorithm={"name": "grpo"}, reward={"weights": [0.0]},
        train={"steps": 6, "save_every": 6}, eval={"every": 0},
    )  # fmt: skip
    tiny = tiny_run.model()
    with logs() as said:
        result = gspo.train(tiny.model, tiny_run.ROWS, tiny_run.likes_a, tokenizer=tiny.tokenizer, config=settings)
    metrics = lines(result.folder / "metrics.jsonl")
    kl = [line["teacher/kl"] for line in metrics]
    assert sum(kl[-2:]) < 0.7 * sum(kl[:2]), kl
    assert {line["reward"] for line in metrics} == {0.0} and metrics[-1]["no_signal/completions"] == 0
    assert len({line["reward/likes_a"] for line in metrics}) > 1
    assert not [text for text in said if "nothing was learned" in text or "same reward" in text]


def test_without_a_reward_every_completion_has_the_reward_0():
    config = taught("t", reward={"functions": []}, task={"source": "rows.jsonl"})
    rollout = dataclasses.replace(Rollout.begun(Prompt("0", "", (2,))), stop="eos")
    with scorer_of(config, CallInputs()) as scorer:
        assert scorer.needs == {} and [made.reward for made in scorer.score([rollout, rollout])] == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"reward.functions = \[\]: nothing tells a right"), evaluating(config):
        pass
