"""The tasks of examples/smollm2, without a model; tests/real runs their settings."""

import asyncio
import importlib
import json
import sys
from pathlib import Path

import pytest

from gspo.config.rewards import CodeConfig
from gspo.rewards.code import CodeReward

FOLDER = Path(__file__).parents[1] / "examples" / "smollm2"
EMAIL = {"name": "mail.send", "description": "Sends mail.", "parameters": {"required": ["to", "hours"]}}
PROPERTIES = {"to": "string", "hours": "float", "count": "integer", "urgent": "boolean"}
ANSWER = {"to": ["Ann Lee", "A. Lee"], "hours": [2], "count": ["", 3], "urgent": [True, ""]}


@pytest.fixture
def recipe(monkeypatch):
    """Imports a recipe's module."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield load
    for name in ("agent", "programs", "tools"):
        sys.modules.pop(name, None)


def problem(number, tool, answer, **kinds):
    schema = tool["parameters"] | {"properties": {name: {"type": kind} for name, kind in kinds.items()}}
    question = {"id": str(number), "question": [[{"role": "user", "content": f"Question {number}"}]]}
    solution = {"id": str(number), "ground_truth": [{tool["name"]: answer}]}
    return question | {"function": [tool | {"parameters": schema}]}, solution


def package(folder, pairs):
    """A package bfcl_eval that cannot be imported, with these problems and answers."""
    for name, column in (("BFCL_v4_simple_python.json", 0), ("possible_answer/BFCL_v4_simple_python.json", 1)):
        file = folder / "bfcl_eval" / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(pair[column]) + "\n" for pair in pairs))
    (folder / "bfcl_eval" / "__init__.py").write_text("raise ImportError")


def test_tools_read_the_package_without_importing_it(recipe, tmp_path, monkeypatch):
    tools = recipe("tools")
    monkeypatch.setattr(tools, "LONGEST", 4)
    long = {"name": "long", "description": "", "parameters": {"required": []}}
    package(
        tmp_path,
        [
            problem(0, EMAIL, ANSWER, **PROPERTIES),
            problem(1, EMAIL, ANSWER, **PROPERTIES),
            problem(2, long, {}, **dict.fromkeys("abcde", "string")),
            problem(3, long | {"name": "nested"}, {}, a="dict"),
        ],
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tools.training() == []
    rows = tools.held_out()
    assert [row["prompt"][-1]["content"].split("\n\n")[1] for row in rows] == ["Question 0", "Question 1"]
    head = "def mail.send(to: str, hours: float, count: int = None, urgent: bool = None):"
    assert rows[0]["prompt"][-1]["content"].startswith(head) and rows[0]["tool"] == "mail.send"
    good = ["mail.send(to='ann lee', hours=2)", "mail.send(hours=2.0, to='A Lee', count=3, urgent=True)"]
    for text in good:
        assert tools.right([], [text], [rows[0]["tool"]], [rows[0]["answer"]]) == [1.0], text


def test_tools_say_how_to_get_the_package(recipe, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps bfcl-eval"):
        recipe("tools").training()


@pytest.mark.parametrize(
    "text, named",
    [
        ("mail.send(to='Bob', hours=2.0)", True),  # another value
        ("mail.send(to='Ann Lee')", True),  # a value is missing
        ("mail.send(to='Ann Lee', hours='2')", True),  # another type
        ("mail.send(to='Ann Lee', hours=True)", True),
        ("mail.send(to='Ann Lee', hours=2, count=3.0)", True),
        ("mail.send(to='Ann Lee', hours=2, urgent=1)", True),
        ("mail.send(to='Ann Lee', hours=2, count='')", True),
        ("mail.send(to='Ann Lee', hours=2, more=1)", True),  # no such parameter
        ("mail.send(to=['Ann Lee'], hours=2)", True),
        ("mail.send(**{'to': 'Ann Lee', 'hours': 2})", True),
        ("mail.send('Ann Lee', 2)", False),  # without names
        ("send(to='Ann Lee', hours=2)", False),
        ("mail.send(to='Ann Lee', hours=1 + 1)", False),  # no plain value
        ("mail.send(to=f, hours=2)", False),
        ("Call mail.send(to='Ann Lee', hours=2)", False),
        ("mail.send", False),
        ("(" * 5000, False),
        ("mail.send(to='\0', hours=2)", False),
        ("", False),
    ],
)
def test_only_right_calls_count(recipe, text, named):
    tools = recipe("tools")
    answer = json.dumps(ANSWER | {"hours": [2.0]})
    assert tools.right([], [text], ["mail.send"], [answer]) == [0.0]
    assert tools.named([], [text], ["mail.send"]) == [float(named)]


def test_tests_of_programs_tell_all_tasks_apart(recipe):
    programs = recipe("programs")
    seen = {}
    for row, (text, *_) in zip(programs.rows(programs.tasks()), programs.tasks()):
        assert json.loads(json.dumps(row)) == row
        assert seen.setdefault(json.dumps(row["tests"]), text) == text
    assert len(seen) == len(programs.tasks())
    held_out = {row["prompt"] for row in programs.held_out()}
    assert len(held_out) == 48 and held_out.isdisjoint(row["prompt"] for row in programs.training())


def test_programs_are_graded(recipe):
    programs = recipe("programs")
    row = next(row for row in programs.rows(programs.tasks()) if "x times 3." in row["prompt"])
    grade = CodeReward(CodeConfig())
    assert grade("```python\ndef f(x):\n    return x * 3\n```\n", row) == 1
    assert grade("```python\ndef f(x):\n    return x + 6\n```\n", row) == 0  # right for x = 3


@pytest.mark.parametrize(
    "turns, rewards",
    [
        (["price(shell)", "4 x 7 = 28. Leo pays 28 dollars."], [0, 1]),
        ([" price(shell)\n", "28"], [0, 1]),
        (["price(shell)", "4 x 7 = 27."], [0, 0]),
        (["price(shell)", "price(shell)"], [0, 0]),
        (["price(coin)"], [0]),
        (["Leo pays 28 dollars."], [0]),  # a guess
        ([""], [0]),
    ],
)
def test_the_agent_asks_before_it_answers(recipe, turns, rewards):
    row = {"prompt": "How much?", "thing": "shell", "price": 7, "answer": "28"}

    async def episode():
        shop = recipe("agent").Shop(row)
        assert (await shop.start())[-1] == {"role": "user", "content": "How much?"}
        return [await shop.step({"role": "assistant", "content": turn}) for turn in turns]

    steps = asyncio.run(episode())
    assert [step.reward for step in steps] == rewards and [step.done for step in steps] == [False, True][-len(turns) :]
    if len(turns) == 2:
        assert steps[0].messages[0]["content"] == "A shell costs 7 dollars."


def test_answers_of_the_agents_rows_are_right_and_held_out_products_are_never_trained_on(recipe):
    agent = recipe("agent")
    products = {}
    for name, rows in (("training", agent.training()), ("held out", agent.held_out())):
        products[name] = {(int(row["answer"]) // row["price"], row["price"]) for row in rows}
        assert all(f"for {int(row['answer']) // row['price']} {row['thing']}s" in row["prompt"] for row in rows)
    assert len(products["held out"]) == 8 and not products["held out"] & products["training"]
