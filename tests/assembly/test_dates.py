"""A chat template that writes the date writes, in a run and in evaluations of its model, the day on which the run began."""

import dataclasses
import datetime
import json

import pytest

import gspo
from gspo.assembly import dates
from gspo.assembly.dates import dated, of_its_day
from gspo.assembly.early_checks import checked_prompts
from gspo.cli.main import main
from gspo.config.files import from_dict, load, to_toml
from gspo.config.local_model import local_copy
from gspo.data import chat_template
from gspo.data.chat_template import fix_date
from tests.data.tools import TEMPLATE, characters
from tests.rewards.classifiers import reward_model, saved, scores
from tests.tiny_run import likes_a, model, settings

DATED = "{{ strftime_now('%d') }}=" + TEMPLATE.removeprefix("{{ bos_token }}").replace("[assistant]", "=").replace(";", "?")
DATED = DATED.replace("'[' + m['role'] + ']' + ", "")  # the tokenizer has few letters
FIRST, SECOND = datetime.datetime(2026, 1, 31, 23, 59), datetime.datetime(2026, 2, 1, 0, 1)


@pytest.fixture
def at(monkeypatch):
    """Sets the clock."""

    def set_clock(now):
        day = type("Now", (datetime.datetime,), {"now": classmethod(lambda cls, tz=None: now)})
        today = type("Today", (datetime.date,), {"today": classmethod(lambda cls: now.date())})
        fake = type("Module", (), {"datetime": day, "date": today})
        for module in (dates, chat_template):
            monkeypatch.setattr(module, "datetime", fake)
        monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", day)

    return set_clock


def folder_of(path, template=DATED):
    tiny = model()
    tiny.tokenizer.chat_template = template
    tiny.save(path / "model")
    return str(path / "model")


def run(path, folder, resume=False, **changes):
    made = settings(folder, **{"task": {"system": ""}} | changes)
    rows = [{"prompt": f"{i}+1=", "answer": "1"} for i in range(20)]
    return gspo.train(path, rows, likes_a, config=made, resume=resume)


def test_a_run_that_goes_on_after_midnight_equals_one_that_was_done_before(tmp_path, at, monkeypatch):
    path, changes = folder_of(tmp_path), {"eval": {"every": 1, "num_prompts": 2}, "train": {"save_every": 1, "seed": 1}}
    shorter, longer = ({**changes, "train": changes["train"] | {"steps": steps}} for steps in (1, 2))
    rendered = set()
    noted = lambda tokenizer, date, tools: rendered.add(date) or fix_date(tokenizer, date)  # noqa: E731
    monkeypatch.setattr(chat_template, "fix_date", noted)
    at(FIRST)
    whole = run(path, tmp_path / "whole", **longer).folder
    parted = run(path, tmp_path / "parted", **shorter).folder
    at(SECOND)
    run(path, parted, True, **longer)
    same = [(folder / "model/model.safetensors").read_bytes() for folder in (whole, parted)]
    assert same[0] == same[1]
    assert rendered == {"2026-01-31"} and load(parted / "config.toml").task.date == "2026-01-31"
    with pytest.raises(ValueError, match=r"task\.date = '2026-02-01' cannot be changed in a resumed run"):
        run(path, parted, True, **longer | {"task": {"system": "", "date": "2026-02-01"}})
    other = run(path, tmp_path / "other", **shorter).folder
    assert load(other / "config.toml").task.date == "2026-02-01"


def test_an_evaluation_of_its_model_has_the_day_of_the_run(tmp_path, at, capsys):
    at(FIRST)
    folder = run(folder_of(tmp_path), tmp_path / "run", train={"steps": 1}, eval={"every": 0, "num_prompts": 4}).folder
    at(SECOND)
    rows = [{"prompt": "1+1=", "answer": "2"}] * 4
    for path, day in ((folder / "model", "31="), (tmp_path / "model", "01=")):
        _, groups = gspo.evaluate(path, rows, likes_a, task={"system": ""}, rollout={"max_completion_length": 2})
        prompt = groups[0].rollouts[0].prompt
        assert model().tokenizer.decode(prompt.tokens).replace(" ", "").startswith(day)
    (tmp_path / "config.toml").write_text("[site]\nname = 1\n")  # of another program
    config = from_dict({"model": {"path": str(tmp_path / "model")}})
    assert of_its_day(config) == config


def test_an_evaluation_on_a_benchmark_goes_on_after_midnight(tmp_path, at, capsys):
    rows = [{"ID": f"2024-I-{i}", "Problem": f"{i}+1=", "Solution": "", "Answer": 100 + i} for i in range(30)]
    (tmp_path / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = folder_of(tmp_path, DATED.replace("m['content']", "m['content'].split('\\n')[0]"))
    words = ["eval", made, "--benchmark", "aime24", "--data", str(tmp_path / "aime.jsonl"), "--dir", str(tmp_path / "out")]
    words += ["--eval.num_generations", "2", "--eval.max_completion_length", "4", "--model.device", "cpu"]
    at(FIRST)
    assert main(words) == 0, capsys.readouterr().err
    replies = (tmp_path / "out/replies.jsonl").read_text()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["prompt"]["date"] == "2026-01-31"
    (tmp_path / "out/replies.jsonl").write_text("\n".join(replies.splitlines()[:7]) + "\n")
    at(SECOND)
    assert main(words) == 0, capsys.readouterr().err
    again = (tmp_path / "out/replies.jsonl").read_text()
    assert sorted(again.splitlines()) == sorted(replies.splitlines())
    assert main([*words, "--task.date", "2026-02-01"]) == 2
    assert "holds another evaluation: prompt was" in capsys.readouterr().err


def test_a_reward_model_reads_the_day_too(tmp_path):
    path = saved(tmp_path / "classifier", template=DATED)
    read = {date: scores(reward_model(path, date=date)) for date in ("2026-01-31", "2026-02-01")}
    assert read["2026-01-31"] == scores(reward_model(path, date="2026-01-31")) != read["2026-02-01"]


def test_a_date_without_effect_is_refused(tmp_path):
    config = from_dict({"model": {"path": folder_of(tmp_path, TEMPLATE)}, "task": {"date": "2026-01-31"}})
    message = r"task\.date = '2026-01-31' has no effect: the chat template writes no date"
    with pytest.raises(ValueError, match=message):
        dated(config, characters(TEMPLATE))
    with pytest.raises(ValueError, match=message):
        checked_prompts(config, local_copy(config.model), 1)
    task = dataclasses.replace(config.task, date=None)
    assert dated(dataclasses.replace(config, task=task), characters(TEMPLATE)).task.date is None
    assert "\ndate =" not in to_toml(dataclasses.replace(config, task=task))
