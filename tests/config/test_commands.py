"""Bad settings, and models that are not here, are told before torch is imported."""

import subprocess
import sys

import pytest

SCRIPT = "import sys; from gspo.cli.main import main; sys.exit(main(sys.argv[1:]) + 10 * ('torch' in sys.modules))"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("train run.toml --algorithm.epsilon=0.1", 2),
        ("train run.toml --rollout.num_prompts=7", 2),
        ("config --model.path nobody/has-it", 0),
    ],
)
def test_torch_is_not_imported_for_a_wrong_value_or_a_model_that_is_not_here(tmp_path, words, status):
    (tmp_path / "run.toml").write_text('model.path = "m"\ntask.source = "a.jsonl"\nreward.functions = ["exact"]\n')
    command = [sys.executable, "-c", SCRIPT, *words.split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == status and ("gspo: error: " in ended.stderr) == (status == 2), ended
