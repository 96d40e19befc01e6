"""What a model's config.json and tokenizer rule out: told before weights are read, in the words of the run itself."""

import json
import logging
import re
import tomllib

import pytest
from tokenizers import decoders

from gspo.assembly.assemble import training
from gspo.assembly.early_checks import checked_prompts
from gspo.backends.hf.tiny import build_tiny
from gspo.cli.main import main
from gspo.config.files import from_dict, to_toml
from gspo.config.local_model import local_copy
from gspo.plan.work import lengths_of
from tests import tiny_run
from tests.backends.hf.families import FAMILIES
from tests.data.tools import TEMPLATE, characters
from tests.logged import logs

NO_END = {"eos_token": None, "eos_token_id": None}
ROWS = [f"{i}+1=" for i in range(12)]
CHAT = [{"role": "user", "content": "1+1="}]
SYSTEM = "{% if messages[0]['role'] != 'system' %}[system]be kind;{% endif %}" + TEMPLATE.removeprefix("{{ bos_token }}")


def saved(folder, template=None, prompts=ROWS, family="qwen3", **changes):
    """The settings of a run with a tiny model and a file of rows, both in this folder."""
    tokenizer = characters(template)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(["\x1b", "\u202e"])
    build_tiny(FAMILIES[family] | {"vocab_size": 120}, tokenizer).save(folder / "model")
    rows = [{"prompt": prompt, "answer": "2"} for prompt in prompts]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {"model": {"path": str(folder / "model")}, "task": {"source": str(folder / "rows.jsonl")}}
    named |= {"reward": {"functions": ["exact"]}}
    for name, table in changes.items():
        named[name] = named.get(name, {}) | table if isinstance(table, dict) else table
    return tiny_run.settings(folder / "run", **named)


REFUSED = {
    "an argument without a template": ({"task": {"template_args": {"x": 1}}}, {}, "the tokenizer has no chat template"),
    "an argument that it does not take": (
        {"task": {"template_args": {"tools_too": 1}}},
        {"template": TEMPLATE},
        r"does not use it: remove it \(it takes enable_thinking\)",
    ),
    "messages without a template": ({}, {"prompts": [CHAT] * 12}, r"row 0: .* is a list of chat messages"),
    "messages that it refuses": (
        {},
        {"template": TEMPLATE, "prompts": [[{"role": "tool", "content": "1"}]] * 12},
        "row 0: .* no tools here",
    ),
    "a system message too many": (
        {"task": {"system": "s"}},
        {"template": TEMPLATE, "prompts": [[{"role": "system", "content": "t"}, *CHAT]] * 12},
        "has a system message of its own",
    ),
    "no room for a prompt": ({"rollout": {"max_completion_length": 256}}, {}, "leaves no room for a prompt: .* 256 tokens"),
    "no room in an evaluation": ({"eval": {"max_completion_length": 300}}, {}, "eval.max_completion_length = 300 leaves no"),
    "no room in a stage": ({"stage": [{"at": 2, "max_completion_length": 256}]}, {}, r"stage\[0\].max_completion_length"),
    "too long a prompt": ({"rollout": {"max_completion_length": 250}}, {"prompts": ["1" * 9] * 12}, "only 6 fit"),
    "an unknown column": ({"task": {"prompt_column": "promt"}}, {}, "no column 'promt', did you mean prompt"),
    "layers that it does not have": ({"lora": {"rank": 2, "targets": ["query"]}}, {}, "lora.targets = .*has .*q_proj"),
    "experts of a dense model": ({"lora": {"rank": 2, "targets": ["experts"]}}, {}, "this model has no experts"),
    "kernels of experts": ({"model": {"expert_kernels": "eager"}}, {}, "has no experts whose kernels can be chosen"),
    "a load without routers": ({"algorithm": {"aux_loss": 0.1}}, {}, "there is no load to balance"),
    "routes without routers": ({"algorithm": {"router_replay": "R2"}}, {}, "there is no routing to replay"),
    "no such architecture": ({}, {"config.json": {"model_type": "unheard_of"}}, "does not know its model type"),
    "a vocabulary too small": ({}, {"config.json": {"vocab_size": 90}}, "but the model embeds only 90 tokens"),
    "no end": (
        {},
        {**dict.fromkeys(("tokenizer_config.json", "config.json", "generation_config.json"), NO_END)},
        "a completion could never end",
    ),
    "an end that is no token": ({}, {"generation_config.json": {"eos_token_id": ["x"]}}, "eos_token_id = "),
    "a damaged tokenizer": ({}, {"tokenizer.json": None}, "no tokenizer can be loaded"),
}


def spoil(folder, files):
    """Overwrites keys of a model's files; None for nonsense."""
    for name, keys in files.items():
        if keys is None:
            (folder / name).write_text("nonsense")
        else:
            (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | keys))


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_run_would_refuse_is_refused_in_its_words(tmp_path, case):
    changes, model, said = REFUSED[case]
    files = {name: keys for name, keys in model.items() if "." in name}
    tables = saved(tmp_path, **{name: value for name, value in model.items() if "." not in name}, **changes)
    spoil(tmp_path / "model", files)
    config = from_dict(tables)
    with pytest.raises(ValueError, match=said) as early:
        checked_prompts(config, local_copy(config.model), 1)
    if "vocab_size" not in str(files):  # the weights no longer fit such a config.json
        with pytest.raises(ValueError) as late, training(config):
            pass
        assert re.sub(r"row \d+", "row 0", str(late.value)) == str(early.value)  # the run reads held-out rows first
    assert not (tmp_path / "run").exists()


def shown(config, count=1):
    with logs("", logging.INFO) as told:
        prompts, text = checked_prompts(config, local_copy(config.model), count)
        logging.getLogger("gspo").info("the end")
    return prompts, text, told[:-1]


@pytest.mark.parametrize(
    ("template", "task", "text", "added"),
    [
        (None, {}, "<s>0+1=", []),
        (TEMPLATE, {}, "<s>[system]Put your final answer between <answer> and </answer>.;[user]0+1=;[assistant]", [
            'prompts get the system message "Put your final answer between <answer> and </answer>.": a reward reads the '
            'answer there (task.system sets another one, "" none)'
        ]),
        (SYSTEM, {"system": ""}, "[system]be kind;[user]0+1=;[assistant]", []),
        (SYSTEM, {"system": "be brief"}, "[system]be brief;[user]0+1=;[assistant]", []),
        (SYSTEM, {"template": "none"}, "<s>0+1=", []),
    ],
)  # fmt: skip
def test_the_prompt_is_shown_as_its_tokens_are(tmp_path, template, task, text, added):
    config = from_dict(saved(tmp_path, template, task=task))
    prompts, shown_text, told = shown(config, 3)
    assert len(prompts) == 3 and shown_text == f"a prompt as the model reads it, {len(prompts[0].tokens)} tokens:\n{text}"
    assert told == added


@pytest.mark.parametrize(
    "changes",
    [
        {"task": {"source": "org/rows"}},
        {"task": {"source": ""}, "rollout": {"max_completion_length": 256}},  # of `gspo serve`, which caps each request
        {"task": {"environment": "somewhere:Game"}},
    ],
)
def test_other_tasks_are_not_read(tmp_path, changes):
    config = from_dict(saved(tmp_path, **changes))
    assert shown(config) == ([], "", [])


def test_a_function_is_called_and_a_generated_task_generated(tmp_path, monkeypatch):
    """The README's task is a function, with prompts shorter than what a plan assumes of those elsewhere."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nine_rows.py").write_text("def rows():\n    return [{'prompt': str(i), 'answer': ''} for i in range(9)]")
    config = from_dict(saved(tmp_path, task={"source": "nine_rows:rows"}))
    prompts, text, _ = shown(config, 3)
    assert [prompt.messages for prompt in prompts] == ["0", "1", "2"] and text.endswith("tokens:\n<s>0")
    assert lengths_of(config, None, None).prompt == 2
    generated = shown(from_dict(saved(tmp_path, task={"source": "reasoning_gym:chain_sum"})), 3)[0]
    assert len(generated) == 3 and all(prompt.messages for prompt in generated)


def test_what_is_too_long_is_left_out_where_the_task_says_so(tmp_path):
    rows = ["1" * 9, "22", "3" * 9]
    tables = saved(tmp_path, prompts=rows, task={"too_long": "leave_out"}, rollout={"max_completion_length": 250})
    prompts, text, _ = shown(from_dict(tables), 100)
    assert [prompt.messages for prompt in prompts] == ["22"] and text.endswith("<s>22")
    tables = saved(tmp_path, prompts=rows[:1], task={"too_long": "leave_out"}, rollout={"max_completion_length": 250})
    assert shown(from_dict(tables))[:2] == ([], "")


def test_config_and_plan_refuse_what_the_model_rules_out_and_show_its_prompt(tmp_path, capsys):
    tables = saved(tmp_path, SYSTEM, prompts=["1\x1b[31m\u202e2"] * 3, task={"system": ""})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(from_dict(tables)))
    assert main(["config", str(file)]) == 0
    out = capsys.readouterr()
    assert "[user]1\\x1b[31m\\u202e2;[assistant]" in out.err
    assert tomllib.loads(out.out)["model"] == tables["model"] | tomllib.loads(out.out)["model"]  # nothing else there
    for command in ("config", "plan"):
        assert main([command, str(file), "--task.template_args", "{x = 1}"]) == 2
        assert "template_args.x: the chat template does not use it: remove it (it takes enable_thinking)" in (
            capsys.readouterr().err
        )
