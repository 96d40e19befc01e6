"""The examples for other programs, run as their users run them."""

import ast
import dataclasses
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def attributes(tree, owner):
    """The names x of `owner.x` in a piece of source."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in found if ast.unparse(node.value) == owner}


def read_by_trls_loss(trl):
    """The fields of GRPOConfig that TRL's loss and the methods that it calls read, and the inputs that it reads."""
    trainer, fields = trl.GRPOTrainer, {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    held = {}  # attributes and variables of __init__, and the fields that they come from
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(trainer.__init__)))):
        if isinstance(node, ast.Assign):
            origin = attributes(node.value, "args") | attributes(node.value, "self.args")
            for name in ast.walk(node.value):
                origin |= held.get(ast.unparse(name), set()) if isinstance(name, (ast.Name, ast.Attribute)) else set()
            for target in node.targets:
                held.setdefault(ast.unparse(target), set()).update(origin)
    todo, seen, read, inputs = ["_compute_loss"], set(), set(), set()
    while todo:
        name = todo.pop()
        if name in seen or name not in vars(trainer) or name == "log":
            continue
        seen.add(name)
        tree = ast.parse(textwrap.dedent(inspect.getsource(vars(trainer)[name])))
        own = attributes(tree, "self")
        todo += own
        read |= attributes(tree, "self.args") | {field for attr in own for field in held.get(f"self.{attr}", ())}
        if name == "_compute_loss":
            inputs = set(re.findall(r"""inputs(?:\.get\(|\[)["'](\w+)""", ast.unparse(tree)))
    return read & fields, inputs


# What the loss reads and the example's has an effect of: in what it inherits, or in the terms that it adds.
EFFECTIVE = {
    "temperature", "steps_per_generation", "router_aux_loss_coef", "max_completion_length", "per_device_train_batch_size",
    "use_vllm", "vllm_importance_sampling_correction",
}  # fmt: skip
INPUTS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "advantages"}
# Only there for settings that are refused, or as a count that only other losses divide by.
OF_SETTINGS = {"ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio", "num_items_in_batch"}


def test_what_trls_loss_reads_has_an_effect_or_is_refused(monkeypatch):
    trl = pytest.importorskip("trl")
    monkeypatch.syspath_prepend(ROOT / "examples")
    import trl_gspo

    read, inputs = read_by_trls_loss(trl)
    assert {"beta", "vespo_k_pos", "router_aux_loss_coef", "use_adaptive_entropy", "epsilon"} <= read
    assert read - set(trl_gspo.REPLACED) - EFFECTIVE == set()
    assert inputs - INPUTS - OF_SETTINGS == set(trl_gspo.IMAGES)
    for name in trl_gspo.IMAGES:
        with pytest.raises(ValueError, match=f"{name}: this loss reads text alone"):
            trl_gspo.GSPOTrainer._compute_loss(None, None, {name: 1})


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
    for name in trl_gspo.REPLACED:
        config = trl.GRPOConfig(**common)
        value = getattr(config, name)
        setattr(config, name, not value if isinstance(value, bool) else "other" if isinstance(value, str) else 7.5)
        with pytest.raises(ValueError, match=f"GRPOConfig.{name} = .*: has no effect"):
            trl_gspo.GSPOTrainer(model=None, reward_funcs=len, args=config)


def test_verl(tmp_path):
    pytest.importorskip("verl")
    out = run("verl_gspo.py", tmp_path)
    assert re.search(r"^gspo-paper +loss [+-][\d.]+ +clipped [\d.]+%$", out, re.MULTILINE)
    assert float(re.search(r"difference of the gradients: ([\d.e+-]+)", out)[1]) < 1e-4


def test_what_verls_losses_read_is_refused(monkeypatch):
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    monkeypatch.syspath_prepend(ROOT / "examples")
    import verl_gspo
    from verl.workers.config import ActorConfig, PolicyLossConfig

    read = set()
    for name, function in core.POLICY_LOSS_REGISTRY.items():
        if function.__module__ == core.__name__ and name != "bypass_mode":  # it is of rollout_correction
            source = inspect.getsource(function)
            read |= set(re.findall(r"""\bconfig(?:\.policy_loss)?\.(?:get\(["'])?(\w+)""", source))
            read |= set(re.findall(r"""policy_loss_config\.(\w+)""", source))
    fields = {field.name: field for usual in (ActorConfig, PolicyLossConfig) for field in dataclasses.fields(usual)}
    read &= set(fields)
    assert {"clip_ratio", "tau_neg", "clip_cov_ratio"} <= read
    replaced = {*verl_gspo.REPLACED, *verl_gspo.REPLACED_LOSS}
    assert read - replaced - {"policy_loss", "global_batch_info"} == set()
    common = {"strategy": "fsdp", "ppo_micro_batch_size_per_gpu": 1, "rollout_n": 1}
    for name in replaced:
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
