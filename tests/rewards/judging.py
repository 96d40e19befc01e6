"""Judges that ask a server of ours."""

import asyncio

from gspo.rewards.judge import Judge
from tests.patience import PATIENCE
from tests.rewards.endpoint import material, score

KEY = "sk-very-secret-42"


def judge(endpoint, **fields):
    base = {"model": "m", "url": endpoint.url, "key_variable": "JUDGE_KEY", "rubric": "Short is good."}
    base |= {"retries": 0, "timeout": PATIENCE}
    return Judge(**base | fields)


def rewards(judge, completions, prompt="Why?", **columns):
    return asyncio.run(
        judge([prompt] * len(completions), completions, **{name: [x] * len(completions) for name, x in columns.items()})
    )


def by_length(body):
    """Ten minus the length."""
    return score(10 - len(material(body)["REPLY"]))
