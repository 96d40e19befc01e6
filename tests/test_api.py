"""gspo from Python: what is refused, and what a run leaves. The rooms' tests have whole runs."""

import pkgutil
import pydoc
import re
import signal
from importlib import resources
from pathlib import Path

import pytest

import gspo
from tests import tiny_run
from tests.logged import logs
from tests.tiny_run import ROWS, likes_a


def test_a_result_is_what_the_run_left(tmp_path):
    tiny = tiny_run.model()
    config = tiny_run.settings(tmp_path / "run", train={"steps": 1}, eval={"every": 0})
    made = gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config)
    assert made.finished and made.folder == tmp_path / "run" and made.metrics["step"] == 1
    assert made.model is tiny.model and made.tokenizer is tiny.tokenizer
    assert (made.folder / "model" / "model.safetensors").exists() and (made.folder / "report.html").exists()
    again = gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config, resume=True)  # nothing is left
    assert again.finished and again.metrics == made.metrics
    page = made._repr_html_()
    assert re.findall('<img alt="([^"]*)" width="432" src="data:image/svg\+xml;base64,PHN2Zy', page) == ["reward"]
    assert f"<tr><th>reward</th><td>{made.metrics['reward']:.3f}</td></tr>" in page and "<th>loss" not in page
    assert f'<a href="{(made.folder / "report.html").as_uri()}">' in page


def test_what_a_notebook_shows_is_escaped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path('<b>"%\u202e', "javascript:run")
    metrics = {"step": 1, "reward": 0.5, "reward/<i>": 1.0, "reward/b": 0.0, "entropy": None}
    made = gspo.Result(folder, None, None, metrics, finished=False)
    page = made._repr_html_()
    assert "<img" not in page and "<a " not in page  # nothing is there yet
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    page = made._repr_html_()
    assert "<b>" not in page and "<i>" not in page and "\u202e" not in page and "&lt;i&gt;</th><td>1.00</td>" in page
    assert '<a href="%3Cb%3E%22%25%E2%80%AE/javascript%3Arun/report.html">' in page and "entropy" not in page


def test_the_api_shows_itself():
    names = {*gspo.__all__, "train", "sft", "evaluate", "serve", "Result", "__version__"}
    assert names <= set(dir(gspo)) and not {"importlib", "Any", "WHERE"} & set(dir(gspo))
    text = pydoc.plain(pydoc.render_doc(gspo))
    assert all(name in text for name in gspo.__all__)
    assert "Trains `model` on the prompts of `dataset`" in text
    assert (resources.files(gspo) / "py.typed").is_file()


@pytest.mark.parametrize("what", ["report.html", "figures"])
def test_a_report_that_cannot_be_written_costs_no_result(tmp_path, what):
    """The disk does not take the page, or its figures would go elsewhere."""
    tiny, run = tiny_run.model(), tmp_path / "run"

    def reward(prompts, completions, **columns):
        if what == "report.html":
            (run / what / "in the way").mkdir(parents=True, exist_ok=True)
        elif not (run / what).is_symlink():
            (run / what).symlink_to(tmp_path)
        return [float(len(text)) for text in completions]

    config = tiny_run.settings(tmp_path / "run", train={"steps": 1}, eval={"every": 0})
    with logs(match=r"report could not be written .*(directory|link).* `gspo report .*run`"):
        made = gspo.train(tiny.model, tiny_run.ROWS, reward, tokenizer=tiny.tokenizer, config=config)
    assert made.finished and (made.folder / "model" / "model.safetensors").exists()
    assert not list(made.folder.glob(".report*")) and not (made.folder / "report.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_who_asks_twice_to_end_waits_for_no_report(tmp_path):
    tiny, lines = tiny_run.model(), tmp_path / "run" / "metrics.jsonl"

    def ask_twice(*_):
        if lines.exists() and lines.read_text():  # the first step is done
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    tiny.model.get_input_embeddings().register_forward_hook(ask_twice)
    config = tiny_run.settings(tmp_path / "run", train={"steps": 9}, eval={"every": 0})
    with pytest.raises(KeyboardInterrupt):
        gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config)
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("call", [gspo.train, gspo.sft, gspo.evaluate])
def test_a_model_and_a_task_are_required(call):
    with pytest.raises(ValueError, match=r"model\.path is required"):
        call(config={"task": {"source": "rows.jsonl"}})
    with pytest.raises(ValueError, match=r"task\.source is required"):
        call(config={"model": {"path": "m"}})


def test_a_model_rows_and_a_reward_are_evaluated_as_they_are_trained(tmp_path):
    tiny, rows = tiny_run.model(), tiny_run.ROWS[:5]
    task = {"source": "org/data", "eval_source": "gone.jsonl", "size": 2, "split": "main", "config": {"name": "socratic"}}
    config = {"task": task, "eval": {"num_generations": 2, "num_prompts": 0}}
    config |= {"rollout": {"max_completion_length": 6}, "reward": {"correct_threshold": 0.5}}
    metrics, groups = gspo.evaluate(tiny.model, rows, tiny_run.likes_a, tokenizer=tiny.tokenizer, config=config)
    assert metrics["eval/prompts"] == 5 and [group.prompt.messages for group in groups] == [row["prompt"] for row in rows]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert len(rollouts) == 10
    for rollout in rollouts:
        assert rollout.reward == pytest.approx(tiny_run.likes_a([], [rollout.text])[0])


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("task", "size", 2), ("task", "eval_source", "r.jsonl"), ("task", "eval_split", "test"), ("eval", "num_prompts", 3),
        ("task", "split", "main"), ("task", "config", {"name": "x"}),
    ],
)  # fmt: skip
def test_what_would_choose_among_rows_that_are_all_evaluated_is_refused(section, name, value):
    message = rf"{section}\.{name} = .* has no effect: all rows of dataset are evaluated\. Leave .* dataset=rows\[:100\]"
    with pytest.raises(ValueError, match=message):
        gspo.evaluate("m", ROWS, likes_a, **{section: {name: value}})


@pytest.mark.parametrize("call", [gspo.train, gspo.sft, gspo.evaluate])
def test_a_configuration_in_the_place_of_the_model_is_told_its_own(call):
    with pytest.raises(ValueError, match=r"this is a configuration: pass it as config="):
        call("run.toml")


@pytest.mark.parametrize("given", ["optimizer.lr", [3]], ids=repr)
def test_one_name_is_not_taken_for_a_list_of_its_letters(tmp_path, given):
    for call, inputs in ((gspo.train, (ROWS, likes_a)), (gspo.sft, (ROWS,)), (gspo.serve, ())):
        with pytest.raises(ValueError, match=r"allow = .*: expected a list of keys, as in allow=\[.optimizer\.lr.\]"):
            call("model", *inputs, log={"dir": str(tmp_path / "r")}, allow=given).__enter__()


def test_no_package_hides_a_name_of_the_interface():
    """Importing gspo.x.y sets gspo.x, whatever else is called so."""
    assert not {module.name for module in pkgutil.iter_modules(gspo.__path__)} & set(gspo.__all__)
