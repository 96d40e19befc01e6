"""Each setting that works alone is read somewhere, not only checked."""

import ast
from pathlib import Path

from tests.config.test_unused import used

SOURCE = Path(__file__).parents[2] / "src" / "gspo"
CONFIG = SOURCE / "config"


def test_a_field_that_is_accepted_alone_is_read():
    files = [path for path in SOURCE.rglob("*.py") if CONFIG not in path.parents or path.name == "algorithm.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert [key for key in used() if key.split(".")[1] not in read] == []
