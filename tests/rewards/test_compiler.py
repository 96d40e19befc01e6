"""Rewards that run C++ on a machine without the compiler that the sandbox uses."""

import json
import subprocess
import sys

from tests.sandbox.boxes import box_of, without_compiler

ASKED = """
import json, logging
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.scorer import Rewards
from gspo.runs.log import recorded

def told(functions, **code):
    heard = []
    with recorded(heard.append):
        with Rewards(RewardConfig(functions=functions), TaskConfig(), code=CodeConfig(**code)) as rewards:
            try:
                rewards.wait()
            except ValueError as error:
                return f"refused: {error}"
    return "; ".join(one.getMessage() for one in heard)

of = "gspo.rewards.programs:"
print(json.dumps([
    told(["code"], language="cpp"), told([of + "codeforces"]), told(["code"]),
    told(["code", of + "livecodebench", of + "humaneval"], language="python"),
]))
"""


def test_each_reward_that_needs_the_compiler_says_so_before_the_run():
    box_of("landlock")
    made = subprocess.run([*without_compiler(), sys.executable, "-c", ASKED], check=True, capture_output=True, text=True)
    cpp, codeforces, auto, python = json.loads(made.stdout)
    need = "C++ programs need /usr/bin/g++: install the package g++ (apt-get install g++)"
    assert cpp == f'refused: code.language = "cpp": {need}'
    assert codeforces == f"refused: the reward codeforces: {need}"
    assert auto.startswith("programs run in the sandbox") and auto.endswith(
        f"a completion in C++ will have no reward: {need}"
    )
    assert python.startswith("programs run in the sandbox") and "C++" not in python
