"""What each command refuses, and that it does so before torch is imported."""

import subprocess
import sys

from gspo.config.commands import check_command
from gspo.config.files import from_dict

BASE = {"model": {"path": "m"}}
ROWS = BASE | {"task": {"source": "a.jsonl"}}
GRADED = ROWS | {"reward": {"functions": ["exact"]}}
WRONG = [
    ("set algorithm.epsilon_high too", ("train", GRADED | {"algorithm": {"epsilon": 0.1}})),
    ("cannot be split into algorithm.mini_batches = 4", ("train", GRADED | {"rollout": {"num_prompts": 7}})),
    ("serve.port", ("train", GRADED | {"serve": {"port": 8001}})),
    ("eval.every = 5", ("serve", BASE | {"eval": {"every": 5}})),
    ("algorithm.beta", ("sft", ROWS | {"algorithm": {"beta": 0.5}})),
    ("model.path is required", ("eval", GRADED | {"model": {"path": ""}})),
]


def test_what_a_command_cannot_use_is_refused(refuses):
    refuses(lambda pair: check_command(from_dict(pair[1]), pair[0]), WRONG)


def test_a_wrong_value_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "run.toml").write_text('model.path = "m"\ntask.source = "a.jsonl"\nreward.functions = ["exact"]\n')
    script = "import sys; from gspo.cli.main import main; sys.exit(main(sys.argv[1:]) + 10 * ('torch' in sys.modules))"
    for words in ("--algorithm.epsilon=0.1", "--rollout.num_prompts=7", "--nothing=1"):
        command = [sys.executable, "-c", script, "train", "run.toml", words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 2 and "gspo: error: " in ended.stderr, (words, ended)
