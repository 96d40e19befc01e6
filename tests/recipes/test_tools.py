"""Calls of tools, on problems made here."""

import importlib.util
import json

import pytest

from gspo.recipes import tools

EMAIL = {"name": "mail.send", "description": "Sends mail.", "parameters": {"required": ["to", "hours"]}}
PROPERTIES = {"to": "string", "hours": "float", "count": "integer", "urgent": "boolean"}
ANSWER = {"to": ["Ann Lee", "A. Lee"], "hours": [2], "count": ["", 3], "urgent": [True, ""]}


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


def test_tools_read_the_package_without_importing_it(tmp_path, monkeypatch):
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


def test_tools_say_how_to_get_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps bfcl-eval"):
        tools.training()


@pytest.mark.parametrize(
    "text, named",
    [
        ("mail.send(to='Bob', hours=2.0)", True),  # another value
        ("mail.send(to='Ann Lee')", True),  # a value is missing
        ("mail.send(to='Ann Lee', hours='2')", True),  # another type
        ("mail.send(to='Ann Lee', hours=2, count=3.0)", True),
        ("mail.send(to='Ann Lee', hours=2, count='')", True),
        ("mail.send(to='Ann Lee', hours=2, more=1)", True),  # no such parameter
        ("mail.send(**{'to': 'Ann Lee', 'hours': 2})", True),
        ("mail.send('Ann Lee', 2)", False),  # without names
        ("send(to='Ann Lee', hours=2)", False),
        ("mail.send(to='Ann Lee', hours=1 + 1)", False),  # no plain value
        ("Call mail.send(to='Ann Lee', hours=2)", False),
        ("mail.send", False),
        ("(" * 5000, False),
    ],
)
def test_only_right_calls_count(text, named):
    answer = json.dumps(ANSWER | {"hours": [2.0]})
    assert tools.right([], [text], ["mail.send"], [answer]) == [0.0]
    assert tools.named([], [text], ["mail.send"]) == [float(named)]
