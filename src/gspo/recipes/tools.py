"""Calls of tools: the simple problems in Python of the Berkeley Function Calling Leaderboard, from the package bfcl-eval."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import re
from pathlib import Path
from typing import Any

FILE = "BFCL_v4_simple_python.json"
TYPES = {"integer": int, "float": float, "string": str, "boolean": bool}
EXAMPLE = [
    {"role": "user", "content": 'def add(a: int, b: int):\n    """Adds two numbers."""\n\nWhat is 3 plus 4?'},
    {"role": "assistant", "content": "add(a=3, b=4)"},
]
"""Without an example this model never writes a call: 0 of 64."""
LONGEST = 3
"""Most parameters of a function, so that prompts and calls stay short."""
HELD_OUT = 60
"""Number of functions that training never shows."""


def training() -> list[dict[str, Any]]:
    """Rows to train on."""
    return rows(functions()[HELD_OUT:])


def held_out() -> list[dict[str, Any]]:
    """Rows to evaluate on, with functions that are in no row of `training`."""
    return rows(functions()[:HELD_OUT])


def data() -> Path:
    """The folder of the package's problems. The package is found but not imported: it would need a dozen others."""
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise ValueError("the problems are in the package bfcl-eval: pip install --no-deps bfcl-eval")
    return Path(found.submodule_search_locations[0]) / "data"


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def functions() -> list[list[dict[str, Any]]]:
    """The problems with short functions, those of one function together, in one random order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for problem, solution in zip(read(data() / FILE), read(data() / "possible_answer" / FILE), strict=True):
        tool = problem["function"][0]
        kinds = [p["type"] for p in tool["parameters"]["properties"].values()]
        if len(kinds) <= LONGEST and set(kinds) <= set(TYPES):
            found.setdefault(tool["name"], []).append(problem | solution)
    return random.Random(0).sample(list(found.values()), len(found))


def rows(problems: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each problem. Its answer is JSON: the right values of each parameter, "" where it may be left out."""
    made = []
    for problem in (problem for one in problems for problem in one):
        tool, question = problem["function"][0], problem["question"][0][0]["content"]
        prompt = [*EXAMPLE, {"role": "user", "content": f"{signature(tool)}\n\n{question}"}]
        schema, answer = tool["parameters"]["properties"], problem["ground_truth"][0][tool["name"]]
        for name, values in answer.items():
            if schema[name]["type"] == "float":
                answer[name] = [float(value) if type(value) is int else value for value in values]
        made.append({"prompt": prompt, "tool": tool["name"], "answer": json.dumps(answer)})
    return made


def signature(tool: dict[str, Any]) -> str:
    """A function as Python writes it: its head, and a docstring with what it and its parameters mean."""
    schema = tool["parameters"]
    names = [
        f"{name}: {TYPES[p['type']].__name__}{'' if name in schema['required'] else ' = None'}"
        for name, p in schema["properties"].items()
    ]
    return f'def {tool["name"]}({", ".join(names)}):\n    """{tool["description"]}"""'


def right(prompts: list[str], completions: list[str], tool: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 for a call of the function with right values of the right types, else 0."""
    return [float(is_right(text, name, json.loads(a))) for text, name, a in zip(completions, tool, answer)]


def named(prompts: list[str], completions: list[str], tool: list[str], **columns: Any) -> list[float]:
    """1 for a call of the function with any arguments, else 0."""
    return [float((called := call(text)) is not None and called[0] == name) for text, name in zip(completions, tool)]


def call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of a call written in Python; None for any other text."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and not tree.args:
            return ast.unparse(tree.func), {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    return None


def is_right(text: str, name: str, answer: dict[str, list[Any]]) -> bool:
    """Whether a text is the call. As in BFCL, texts are compared without case and marks."""
    called = call(text)
    if called is None or called[0] != name or called[1].keys() - answer:
        return False
    return all(
        any(same(called[1][key], value) for value in values if value != "") if key in called[1] else "" in values
        for key, values in answer.items()
    )


def same(value: Any, expected: Any) -> bool:
    """Whether two values are equal and of one type; an integer may stand for a float."""
    if isinstance(value, str) and isinstance(expected, str):
        return plain(value) == plain(expected)
    return bool(value == expected) and (type(value) is type(expected) or (type(value), type(expected)) == (int, float))


def plain(text: str) -> str:
    """A text as BFCL compares it."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
