"""The examples for other programs, run as their users run them."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]


def run(name, folder):
    path = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {"cwd": folder, "env": os.environ | {"PYTHONPATH": os.pathsep.join(path)}, "timeout": PATIENCE}
    done = subprocess.run([sys.executable, ROOT / "examples" / name], capture_output=True, text=True, **options)
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
    for steps, processes in ((2, 1), (1, 2)):
        config = trl.GRPOConfig(**common, gradient_accumulation_steps=steps)
        with monkeypatch.context() as patch, pytest.raises(ValueError, match="dapo divides by the tokens of the whole"):
            patch.setattr(trl_gspo.GSPOTrainer, "algorithm", "dapo")
            patch.setattr(trl.GRPOConfig, "world_size", processes)
            trl_gspo.GSPOTrainer(model=None, reward_funcs=len, args=config)
    for name in trl_gspo.REPLACED:
        config = trl.GRPOConfig(**common)
        value = getattr(config, name)
        setattr(config, name, not value if isinstance(value, bool) else "other" if isinstance(value, str) else 7.5)
        with pytest.raises(ValueError, match=f"GRPOConfig.{name} = .*: has no effect"):
            trl_gspo.GSPOTrainer(model=None, reward_funcs=len, args=config)
    for name in trl_gspo.IMAGES:
        with pytest.raises(ValueError, match=f"{name}: this loss reads text alone"):
            trl_gspo.GSPOTrainer._compute_loss(None, None, {name: 1})


def test_verl(tmp_path):
    pytest.importorskip("verl")
    out = run("verl_gspo.py", tmp_path)
    assert re.search(r"^gspo-paper +loss [+-][\d.]+ +clipped [\d.]+%$", out, re.MULTILINE)
    assert float(re.search(r"difference of the gradients: ([\d.e+-]+)", out)[1]) < 1e-4


def test_the_micro_batches_of_verl_add_up_to_the_whole(monkeypatch):
    """For each count that an algorithm divides by. verl's registry is a stand-in: verl itself adds losses up as here."""
    losses = {}
    core = SimpleNamespace(POLICY_LOSS_REGISTRY=losses, register_policy_loss=lambda n: lambda f: losses.setdefault(n, f))
    nothing = dataclasses.make_dataclass("Nothing", [("global_batch_info", dict, dataclasses.field(default_factory=dict))])
    config = SimpleNamespace(ActorConfig=nothing, PolicyLossConfig=nothing)
    packages = "verl", "verl.trainer", "verl.trainer.ppo", "verl.workers"
    modules = {name: ModuleType(name) for name in packages}
    for name, module in (modules | {"verl.trainer.ppo.core_algos": core, "verl.workers.config": config}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "verl_gspo", None)  # so that what follows is undone
    del sys.modules["verl_gspo"]
    monkeypatch.syspath_prepend(ROOT / "examples")
    import verl_gspo

    g = torch.Generator().manual_seed(0)
    mask = (torch.arange(12) < torch.randint(2, 12, (8, 1), generator=g)).float()
    old, A = -torch.rand(8, 12, generator=g), torch.randn(8, 1, generator=g).expand(8, 12)
    batch = {"dp_size": 1, "global_batch_size": 8, "batch_num_tokens": int(mask.sum())}

    def gradient(name, size):
        logp = (old + 1e-3 * A).requires_grad_()
        for part in torch.arange(8).split(size):
            losses[name](old[part], logp[part], A[part], mask[part], "token-mean", nothing(dict(batch)))[0].backward()
        return logp.grad

    for algorithm, settings in (("gspo", {}), ("grpo", {}), ("dapo", {}), ("dr_grpo", {"max_completion_length": 12})):
        verl_gspo.register(f"{algorithm}-here", algorithm, **settings)
        whole = gradient(f"{algorithm}-here", 8)
        assert whole.abs().max() > 0 and torch.allclose(gradient(f"{algorithm}-here", 1), whole), algorithm
    with pytest.raises(ValueError, match=r"algorithm.name = 'gsop'"):
        verl_gspo.register("wrong", "gsop")
    verl_gspo.register("endless", "dr_grpo")
    with pytest.raises(ValueError, match="pass max_completion_length"):
        gradient("endless", 8)


def test_verls_settings_without_effect_are_refused(monkeypatch):
    pytest.importorskip("verl")
    monkeypatch.syspath_prepend(ROOT / "examples")
    import verl_gspo
    from verl.workers.config import ActorConfig, PolicyLossConfig

    common = {"strategy": "fsdp", "ppo_micro_batch_size_per_gpu": 1, "rollout_n": 1}
    for name in {*verl_gspo.REPLACED, *verl_gspo.REPLACED_LOSS}:
        changed = {name: 7.5}
        config = ActorConfig(
            **common, **(changed if name in verl_gspo.REPLACED else {"policy_loss": PolicyLossConfig(**changed)})
        )
        with pytest.raises(ValueError, match=f"{name} = 7.5: has no effect"):
            verl_gspo.check("gspo-paper", "gspo", config, "token-mean")
    for mode in ("token-sum", "seq-mean-token-sum"):
        with pytest.raises(ValueError, match="loss_agg_mode"):
            verl_gspo.check("gspo-paper", "gspo", ActorConfig(**common), mode)
    verl_gspo.check("gspo-paper", "gspo", ActorConfig(**common), "seq-mean-token-mean")


def test_the_loop_learns():
    sys.path.append(str(ROOT / "examples"))
    import loop

    rewards = loop.train(loop.tiny(), 8, 1e-2)
    assert rewards[-1] > rewards[0] + 0.3
    assert len((ROOT / "examples" / "loop.py").read_text().splitlines()) <= 120
