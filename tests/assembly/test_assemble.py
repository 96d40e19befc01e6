"""What a configuration becomes, without a step of training."""

import dataclasses
import logging
from contextlib import nullcontext

import pytest
import torch

import gspo
from gspo.assembly import assemble
from gspo.assembly.call_inputs import CallInputs, configured
from gspo.assembly.models import models_of
from gspo.cli.evaluate import check_typed
from gspo.config.unused import OF_TRAINING
from gspo.report.read import read_lines
from gspo.rollout.evaluation import evaluate
from gspo.runs import checkpoint
from tests import tiny_run
from tests.runs.events import texts

IMITATED = [row | {"completion": row["answer"]} for row in tiny_run.ROWS]


def given(tiny, functions=(tiny_run.likes_a,), rows=tiny_run.ROWS):
    return CallInputs(tiny.model, tiny.tokenizer, rows, None, functions)


def config(folder, tiny, **sections):
    return configured(tiny_run.settings(folder, **sections), {}, tiny.model, tiny.tokenizer, tiny_run.ROWS)


def prompts_shown(folder):
    return [event["text"] for event in read_lines(folder / "events.jsonl") if event["kind"] == "prompt"]


def test_a_run_shows_a_prompt_as_its_tokens_are_before_it_samples(tmp_path):
    tiny = tiny_run.model()
    tiny.tokenizer.chat_template = "{{ messages[0]['content'] }}<eos>{% if add_generation_prompt %}={% endif %}"
    with assemble.training(config(tmp_path / "run", tiny), given=given(tiny)):
        assert prompts_shown(tmp_path / "run") == ["0+0=<eos>="]
    with assemble.imitating(config(tmp_path / "cold", tiny), given=given(tiny, (), IMITATED)):
        assert prompts_shown(tmp_path / "cold") == ["0+0=<eos>="]


def test_a_run_says_that_a_step_takes_prompts_several_times(tmp_path):
    tiny, odd = tiny_run.model(), "rollout.num_prompts = 8: there are fewer prompts, so a step has some several times"
    for rows, told in ((tiny_run.ROWS[:8], 0), (tiny_run.ROWS[:7], 1)):
        folder = tmp_path / str(told)
        with assemble.training(config(folder, tiny, eval={"every": 0}), given=given(tiny, rows=rows)):
            assert texts(folder).count(odd) == told


STOPS = {"rollout": {"max_completion_length": 8, "stop": ["<eos>\n"]}}


@pytest.mark.parametrize(
    ("begin", "sections", "message"),
    [
        (assemble.training, STOPS, r"rollout.stop, .*: '<eos>\\n' has the special token '<eos>' and more"),
        (assemble.evaluating, STOPS, "rollout.stop"),
        (assemble.serving, STOPS, "rollout.stop"),
        (assemble.serving, {"task": {"template_args": {"enable": True}}}, "task.template_args.enable: has no effect"),
        (assemble.serving, {"task": {"date": "2026-01-31"}}, "task.date = '2026-01-31' has no effect"),
    ],
)
def test_what_the_tokenizer_rules_out_is_refused_before_weights_are_read(tmp_path, begin, sections, message):
    tiny_run.model().save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_text("what has another error")
    rows = CallInputs(rows=tiny_run.ROWS, functions=(tiny_run.likes_a,))
    made = configured(tiny_run.settings(tmp_path / "run", **sections), {}, tmp_path / "model", None, tiny_run.ROWS)
    with pytest.raises(ValueError, match=message), begin(made, given=rows):
        pass


def test_what_imitates_has_completions_and_no_rewards(tmp_path):
    tiny = tiny_run.model()
    with assemble.imitating(config(tmp_path / "run", tiny), given=given(tiny, (), IMITATED)) as (run, _):
        (one,) = run.rows.take(1)
        assert int(one.sampled.sum()) == 2  # a digit and the end
        assert any(text.startswith("36 rows to imitate, 4 held out for `gspo eval`") for text in texts(tmp_path / "run"))


def test_half_precision_weights_and_turns_that_end_no_completion_are_warned_of(tmp_path):
    tiny = tiny_run.model()
    tiny.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<pad>{% endfor %}"
    made = config(tmp_path / "run", tiny, model={"dtype": "bfloat16"})
    with assemble.training(made, given=given(tiny)):
        for part in ("moments are in torch.bfloat16", "ends a turn with <pad>, which ends no completion"):
            assert any(part in text for text in texts(tmp_path / "run"))


def test_only_warnings_of_our_own_code_are_the_runs_while_it_loads(tmp_path, monkeypatch):
    """Also a model's modules and the functions that a data set is made by may log."""
    tiny = tiny_run.model()

    def load(*args):
        logging.getLogger("theirs").warning("of others, loading")
        logging.getLogger("gspo.backends").warning("of ours, loading")
        return models_of(*args)

    monkeypatch.setattr(assemble, "models_of", load)
    for made in (assemble.training, assemble.imitating, assemble.serving):
        folder = tmp_path / made.__name__
        with made(config(folder, tiny), given=given(tiny, rows=IMITATED)):
            pass
        assert [text for text in texts(folder) if text.endswith("loading")] == ["of ours, loading"]


def test_a_resumed_run_has_the_state_of_its_checkpoint(tmp_path):
    tiny = tiny_run.model()
    made = config(tmp_path / "run", tiny, train={"steps": 2, "save_every": 1})
    gspo.train(tiny.model, tiny_run.ROWS, tiny_run.likes_a, tokenizer=tiny.tokenizer, config=made)
    with assemble.training(made, True, given(tiny_run.model(seed=5))) as (run, model):
        assert run.step == 2
        saved = checkpoint.latest(tmp_path / "run" / "checkpoints") / checkpoint.MODEL
        there = type(tiny.model).from_pretrained(saved)
        assert all(torch.equal(a, b) for a, b in zip(there.parameters(), model.model.parameters()))


class Unread:
    """A section of which only some fields may be read."""

    def __init__(self, section, name, but):
        self._section, self._name, self._but = section, name, but

    def __getattr__(self, field):
        if field not in self._but:
            raise AssertionError(f"{self._name}.{field} was read")
        return getattr(self._section, field)


def test_an_evaluation_reads_nothing_that_may_not_be_typed_for_it(tmp_path):
    tiny_run.model().save(tmp_path / "model")
    named = {"model": {"path": str(tmp_path / "model")}}
    made = configured(tiny_run.settings(tmp_path / "run", **named), {}, None, None, tiny_run.ROWS)
    copied = {"rollout", "eval", "model", "sampler"}  # whole
    for section in {key.split(".")[0] for key in OF_TRAINING} - copied:
        here = getattr(made, section)
        read = [field.name for field in dataclasses.fields(here) if f"{section}.{field.name}" not in OF_TRAINING]
        object.__setattr__(made, section, Unread(here, section, read))
    with assemble.evaluating(made, CallInputs(None, None, tiny_run.ROWS, None, (tiny_run.likes_a,))) as arguments:
        metrics, _ = evaluate(**arguments)
    assert metrics["eval/prompts"] == len(tiny_run.ROWS)
    assert {"scale.ranks", "lora.rank", "rollout.max_staleness", "rollout.top_p"} < {*OF_TRAINING}
    for key in OF_TRAINING:
        with pytest.raises(ValueError, match=rf"--{key}: has no effect on `gspo eval`"):
            check_typed(["eval.num_generations", key])
    check_typed(["eval.num_generations"])


@pytest.mark.parametrize("ranks", [None, object()])
def test_ranks_take_no_gpus_where_the_cpu_is_asked_for(tmp_path, monkeypatch, ranks):
    made = config(tmp_path / "run", tiny_run.model(), model={"device": "cpu"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(assemble.rank, "joined", lambda scale: nullcontext(ranks))
    refused = pytest.raises(ValueError, match=r'model.device = "cpu": ranks take the GPUs') if ranks else nullcontext()
    with refused, assemble.started(made, False, None, (), "train"):
        pass
