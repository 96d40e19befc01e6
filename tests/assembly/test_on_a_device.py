"""What a user starts, on a GPU that is not there (tests/fake_device.py), says what it says on the CPU."""

import pytest

import gspo
from gspo.config.files import from_dict
from tests.fake_device import fake_gpu
from tests.rewards.classifiers import reward_model, saved, scores
from tests.tiny_run import ROWS, dials, likes_a, model
from tests.training.whole import lines

NEAR = {"rel": 2e-3, "abs": 1e-6}  # experts have another kernel there


def config_of(folder, device, eval=(("every", 0), ("num_prompts", 0)), **changes):
    """Of a run of one step with two updates."""
    made = {
        "model": {"path": str(folder / "model"), "device": device, "autocast": "none"},
        "rollout": {"num_prompts": 4, "num_generations": 3, "max_completion_length": 5},
        "optimizer": {"lr": 3e-3}, "train": {"steps": 1, "seed": 1}, "eval": dict(eval), "algorithm": {"mini_batches": 2},
        "log": {"dir": str(folder / f"runs-{device}")},
    }  # fmt: skip
    return from_dict(made | {name: made.get(name, {}) | table for name, table in changes.items()})


def metrics(run):
    return lines(run.folder / "metrics.jsonl")


def trained(folder, device, **changes):
    found = metrics(gspo.train(None, ROWS, likes_a, config=config_of(folder, device, **changes)))
    return [line[name] for line in found for name in ("loss", "grad_norm", "entropy", "reward")]


def resumed(folder, device):
    first = {"steps": 1, "save_every": 1}
    gspo.train(None, ROWS, likes_a, config=config_of(folder, device, train=first))
    more = config_of(folder, device, train=first | {"steps": 2})
    return metrics(gspo.train(None, ROWS, likes_a, config=more, resume=True))[-1]["grad_norm"]


def imitated(folder, device):
    rows = [{"prompt": row["prompt"], "completion": "ab"} for row in ROWS]
    given = {"path": str(folder / "model"), "device": device, "autocast": "none"}
    config = {"model": given, "train": {"steps": 1}, "log": {"dir": str(folder / f"runs-{device}")}}
    return [line["loss"] for line in metrics(gspo.sft(None, rows, config=from_dict(config)))]


def evaluated(folder, device):
    return gspo.evaluate(None, ROWS[:8], likes_a, config=config_of(folder, device, eval=()))[0]["eval/reward"]


def judged(folder, device):
    return scores(reward_model(saved(folder / f"classifier-{device}"), device=device))


FLOWS = {
    "a critic": lambda *where: trained(*where, algorithm={"name": "ppo"}),
    "adapters": lambda *where: trained(*where, lora={"rank": 4}),
    "adapters on nf4": lambda *where: trained(*where, lora={"rank": 4}, model={"quantize": "nf4"}),
    "moments of 8 bits": lambda *where: trained(*where, optimizer={"name": "adamw_8bit"}),
    "Routing Replay": lambda *where: trained(*where, algorithm={"router_replay": "R3"}),
    "a coarse sampler": lambda *where: trained(*where, sampler=dials(kind="int8")),
    "everything offloaded": lambda folder, device: trained(
        folder, device, algorithm={"beta": 0.01},
        train=dict.fromkeys(("offload_optimizer", "offload_reference"), device != "cpu"),
    ),
    "resume": resumed,
    "sft": imitated,
    "evaluate": evaluated,
    "a reward model": judged,
}  # fmt: skip
SLOW = {"adapters on nf4", "moments of 8 bits", "Routing Replay", "a coarse sampler", "everything offloaded"}


@pytest.mark.parametrize("flow", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FLOWS])
def test_there_is_as_here(flow, tmp_path):
    model().save(tmp_path / "model")
    expected = FLOWS[flow](tmp_path, "cpu")
    with fake_gpu():
        found = FLOWS[flow](tmp_path, "cuda")
    assert found == pytest.approx(expected, **NEAR)
