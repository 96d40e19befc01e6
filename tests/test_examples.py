"""The examples for other programs, run as their users run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(name, folder):
    path = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_trl(tmp_path):
    pytest.importorskip("trl")
    first, last = re.search(r"reward ([\d.]+) -> ([\d.]+); clipped tokens [\d.]+%", run("trl_gspo.py", tmp_path)).groups()
    assert float(last) > float(first) + 0.1


def test_trls_settings_without_effect_are_refused(tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    monkeypatch.syspath_prepend(ROOT / "examples")
    import trl_gspo
    from datasets import Dataset

    from tests.tiny_run import model

    tiny = model()
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], "num_generations": 2}
    rows = Dataset.from_list([{"prompt": "a"}] * 8)
    for settings, said in (
        ({"beta": 0.1}, "GRPOConfig.beta = 0.1: has no effect"),
        ({"loss_type": "grpo"}, "GRPOConfig.loss_type = 'grpo': has no effect"),
        ({"epsilon_high": 0.3}, "GRPOConfig.epsilon_high = 0.3: has no effect"),
        ({"use_vllm": True}, "set vllm_importance_sampling_correction=False"),
    ):
        config = trl.GRPOConfig(**common, **settings)
        with pytest.raises(ValueError, match=said):
            trl_gspo.GSPOTrainer(
                model=tiny.model, reward_funcs=len, args=config, train_dataset=rows, processing_class=tiny.tokenizer
            )


def test_verl(tmp_path):
    pytest.importorskip("verl")
    out = run("verl_gspo.py", tmp_path)
    assert re.search(r"^gspo-paper +loss [+-][\d.]+ +clipped [\d.]+%$", out, re.MULTILINE)
    assert float(re.search(r"difference of the gradients: ([\d.e+-]+)", out)[1]) < 1e-4
