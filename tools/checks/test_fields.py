"""Each setting that works alone is read by the file that tests/config/test_unused.py names."""

import ast
from pathlib import Path

from tests.config.test_unused import used

SOURCE = Path(__file__).parents[2] / "src" / "gspo"


def test_a_field_that_is_accepted_alone_is_named_where_it_is_read():
    missing = []
    for key, file in used().items():
        tree = ast.parse((SOURCE / file).read_text())
        if key.split(".")[1] not in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}:
            missing.append((key, file))
    assert missing == []
