"""One vocabulary: identifiers use the field's words, and a file name means the same in every package."""

import ast
import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gspo"
TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
}

# Words that may not be part of an identifier, and what to use instead.
INSTEAD = {
    "alongside": "companion, base",
    "beginner": "novice",
    "borrow borrowed lend lends lent": "share, lease",
    "bunch heap pile": "batch, list, group",
    "come": "claim, arrive",
    "credited": "advantages",
    "crew": "ranks, leader, follower",
    "deals": "split, partition",
    "demand": "required",
    "door": "pool, listener, port",
    "everybody everyone somebody someone anybody anyone nobody whoever": "the role: rank, client, engine, user",
    "foretell foretold": "predict, predicted",
    "friend guest neighbour neighbours stranger strangers": "client, peer",
    "game player": "episode, agent",
    "gentle mercy strict": "timeout, limit",
    "gave going went": "the state: closed, finished",
    "hears": "receive, listen",
    "house household furniture cupboard kitchen": "package",
    "keeping": "retain",
    "learnable": "batch, has_signal",
    "lives living born dies dying": "generation, start, exit",
    "merit": "score, quality",
    "owe owes": "pending",
    "picked": "selected",
    "price cheap dear": "cost",
    "rich poor": "size, count",
    "slim": "small",
    "song story tale chapter": "log, record",
    "speak speaks": "complete, stream",
    "strike": "failures",
    "stuff thing things": "the noun for what it is",
    "teach teaches": "has_signal",
    "tell tells telling told say says said": "report, warn, send, describe",
    "tired": "expired",
    "today yesterday tomorrow": "current, previous, next",
    "tolerated": "tolerance, allclose",
    "twin cousin": "copy, replica",
    "unfit": "invalid, unusable",
    "whence whither hence thus": "source, reason",
    "woke woken": "resumed",
    "wish wishes hopes": "request",
    "woven weave": "merge",
}
FORBIDDEN = {word: instead for words, instead in INSTEAD.items() for word in words.split()}

# File names that several packages may use, and the one thing that each means.
SHARED_NAMES = {
    "arguments.py": "arguments of a command, or of a function",
    "commands.py": "the commands of gspo",
    "compare.py": "gspo compare",
    "endpoint.py": "an OpenAI-compatible endpoint",
    "evaluation.py": "evaluation on held-out prompts",
    "export.py": "gspo export",
    "files.py": "reads and writes files",
    "interfaces.py": "interfaces of a package",
    "metrics.py": "metrics of a step",
    "model.py": "a causal language model",
    "open.py": "checks the settings and opens the resource",
    "page.py": "writes an HTML page",
    "plan.py": "gspo plan",
    "policy.py": "the policy",
    "processes.py": "child processes",
    "programs.py": "programs that a model writes",
    "recipes.py": "the recipes by name",
    "routing.py": "which experts a token visits",
    "sampler.py": "a Sampler",
    "schema.py": "the schema of an input",
    "threads.py": "threads",
    "types.py": "plain data",
    # One word for two things: rename one of them when you work on it.
    "calls.py": "tool calls in agents/, HTTP calls in backends/vllm/",
    "environment.py": "what an agent acts in; environment variables in distributed/",
    "load_balance.py": "completions on ranks; tokens on experts in objective/",
    "memory.py": "the micro-batch limit in learner/; a prediction in plan/",
    "watch.py": "gspo watch; limits of a running program in sandbox/",
    "stages.py": "[[stage]] of a run; parts of the demo in demo/",
}


def identifiers(tree):
    """What a file names: functions, classes, parameters, variables and attributes that it assigns."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(name):
    """The words of snake_case, CamelCase and CONSTANT_CASE, in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def findings(trees):
    """{file:identifier: what to use instead} of each identifier with a forbidden word."""
    return {
        f"{file}:{name}": FORBIDDEN[word]
        for file, tree in trees.items()
        for name in identifiers(tree)
        for word in words(name) & FORBIDDEN.keys()
    }


def test_identifiers_use_the_words_of_the_field():
    assert findings(TREES) == {}


def test_every_kind_of_identifier_is_seen():
    tree = ast.parse(
        "class WovenTurns:\n    def __init__(self, teaches):\n        self.crew_size = 0\n"
        "FORETOLD = 1\nfor picked in []: pass\ndef f(): return owes\n"
    )
    found = {name.partition(":")[2] for name in findings({"x.py": tree})}
    assert found == {"WovenTurns", "teaches", "crew_size", "FORETOLD", "picked"}  # not `owes`, which is only read


def test_a_file_name_means_one_thing():
    folders = defaultdict(set)
    for file in TREES:
        folder, _, name = file.rpartition("/")
        folders[name].add(folder)
    repeated = {name for name, found in folders.items() if len(found) > 1} - {"__init__.py"}
    assert repeated - SHARED_NAMES.keys() == set()
