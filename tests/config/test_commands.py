"""What each command refuses, and that it does so before torch is imported."""

import subprocess
import sys

import pytest

from gspo.config.commands import check_command
from gspo.config.files import from_dict

BASE = {"model": {"path": "m"}, "task": {"source": "a.jsonl"}, "reward": {"functions": ["exact"]}}
WRONG = [
    ("train", {"algorithm": {"epsilon": 0.1}}, "set algorithm.epsilon_high too"),
    ("train", {"rollout": {"num_prompts": 7}}, "cannot be split into algorithm.mini_batches = 4"),
    ("train", {"algorithm": {"critic": "copy"}}, "has no use for one"),
    ("train", {"serve": {"port": 8001}}, "serve.port"),
    ("serve", {"eval": {"every": 5}}, "eval.every = 5"),
    ("sft", {"algorithm": {"beta": 0.5}}, "algorithm.beta"),
    ("eval", {"model": {"path": ""}}, "model.path is required"),
]


@pytest.mark.parametrize(("command", "sections", "error"), WRONG)
def test_what_a_command_cannot_use_is_refused(command, sections, error):
    task = {} if command == "serve" else BASE["task"]
    reward = BASE["reward"] if command in ("train", "eval") else {}
    base = BASE | {"task": task, "reward": reward}
    with pytest.raises(ValueError, match=error):
        check_command(from_dict(base | sections), command)


def test_a_wrong_value_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "run.toml").write_text('model.path = "m"\ntask.source = "a.jsonl"\nreward.functions = ["exact"]\n')
    script = "import sys; from gspo.cli.main import main; sys.exit(main(sys.argv[1:]) + 10 * ('torch' in sys.modules))"
    for words in ("--algorithm.epsilon=0.1", "--rollout.num_prompts=7", "--optimizer.lr=x", "--nothing=1"):
        ended = subprocess.run(
            [sys.executable, "-c", script, "train", "run.toml", words], cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 2 and "gspo: error: " in ended.stderr, (words, ended)
