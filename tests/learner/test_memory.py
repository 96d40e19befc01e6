"""Memory that does not suffice, for real: a process whose address space is capped."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

BEGIN = """
import resource, sys
import torch
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.learner.fit_micro_batches import drawn, make_room
from gspo.types import Completion
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.learner.cases import objective_of, updater_of
from tests.learner.test_fit_micro_batches import Kept

torch.set_num_threads(1)
objective = objective_of("grpo")


def cap(room):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


"""
SCRIPT = """
count, room = int(sys.argv[1]), int(sys.argv[2])
shape = FAMILIES["qwen3"] | {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
shape |= {"max_position_embeddings": 4096}


def learner(max_tokens):
    return updater_of(HFPolicy(build_tiny(shape, TOKENIZER)), max_tokens, print, lr=1e-3, eps=1e-3)


length = 6000 // count
draw = torch.Generator().manual_seed(0)
completions = [
    Completion(torch.randint(2, 28, (length,), generator=draw), torch.arange(length) >= 5, torch.full((length - 5,), -3.0),
          torch.full((length - 5,), -3.0), float(i % 2) - 0.5)
    for i in range(count)
]
idle = Completion(torch.zeros(5000, dtype=torch.int64), torch.arange(5000) >= 5, torch.zeros(4995), torch.zeros(4995), 0.0)
completions.append(idle)  # never read, so its size does not matter
small, large = learner(1000), learner(10**6)
expected, _ = small.update(objective, completions)
cap(room)
found, _ = large.update(objective, completions)
assert found["loss"] == expected["loss"] or abs(found["loss"] / expected["loss"] - 1) < 1e-4, (found, expected)
for one, other in zip(small.policy.parameters(), large.policy.parameters()):
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
print(large.micro_batches.max_tokens)
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run(script, *arguments):
    command = [sys.executable, "-c", BEGIN + script, *map(str, arguments)]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE)


def test_the_update_is_made_again_with_smaller_micro_batches():
    done = run(SCRIPT, 60, 200 << 20)
    assert done.returncode == 0, done.stderr
    said, tokens = done.stdout.splitlines()[-2:]
    assert said.startswith("out of memory: micro-batches have at most")
    assert 100 <= int(tokens) < 5_000


def test_one_completion_that_does_not_fit_is_an_error_with_a_remedy():
    done = run(SCRIPT, 4, 10 << 20)
    assert done.returncode == 1
    assert "out of memory with one completion of 1500 tokens" in done.stderr
    assert "train.gradient_checkpointing" in done.stderr


MOMENTS = """
shape = FAMILIES["qwen3"] | {"hidden_size": 256, "intermediate_size": 8192, "num_hidden_layers": 4}
policy = HFPolicy(build_tiny(shape, TOKENIZER))
updater = updater_of(policy, 100, print, lr=1e-3)
cap(int(float(sys.argv[2]) * sum(p.nbytes for p in policy.parameters())))
if sys.argv[1] == "trial":
    make_room(policy, updater.optimizer, updater.micro_batches, Kept(1e9), 10, 20)
else:
    updater.update(objective, drawn(2, 10, 20))
print("it fits")
"""


@pytest.mark.parametrize(
    "when, room, said",
    [("trial", 1.5, "where AdamW's moments were made"), ("update", 2.2, "in AdamW's step"), ("update", 6.0, "")],
)
def test_moments_that_do_not_fit_end_the_run_with_a_remedy(when, room, said):
    """A gradient has the size of the weights, moments twice that. Nothing is tried again with smaller micro-batches."""
    done = run(MOMENTS, when, room)
    assert done.stdout == ("" if said else "it fits\n"), done.stderr
    error = f"out of memory on rank 0 {said}, where smaller micro-batches change nothing"
    assert (error in done.stderr) == ("scale.ranks" in done.stderr) == bool(said)
