"""Rewards that run C++ on a machine without the compiler that the sandbox uses."""

import json
import subprocess
import sys

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
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


SETTINGS = {
    "task.eval_source": "rows.jsonl", "reward.functions": '["code"]', "code.language": "cpp", "model.device": "cpu",
    "model.path": "model", "rollout.max_completion_length": "8",
}  # fmt: skip
COMMANDS = """
import json, sys
from gspo.cli.main import main

words = [word for key, value in json.loads(sys.argv[1]).items() for word in (f"--{key}", value)]
print(main(["train", "run.toml", "--log.dir", "run", *words]))
print(main(["eval", "run.toml", *words]))
"""


def test_no_run_begins_without_the_compiler(tmp_path):
    box_of("landlock")
    made = build_tiny(tiny_qwen3_moe(hidden=32, expert_width=32, context=32), longest_match_tokenizer(["0", "1", "?"]), 0)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")  # to load it would fail
    tests = [{"input": "1", "output": "1"}]
    for name, numbers in (("train.jsonl", range(32)), ("rows.jsonl", range(32, 48))):
        rows = [{"prompt": f"{i:06b}?", "tests": tests} for i in numbers]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "run.toml").write_text('[task]\nsource = "train.jsonl"\n')
    words = [*without_compiler(), sys.executable, "-c", COMMANDS, json.dumps(SETTINGS)]
    ended = subprocess.run(words, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert ended.stdout.split() == ["2", "2"], ended.stderr
    assert ended.stderr.count('code.language = "cpp": C++ programs need /usr/bin/g++') == 2, ended.stderr
    assert not (tmp_path / "run").exists()
