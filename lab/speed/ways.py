"""Two ways of new weights to a vLLM engine on the same machine: a folder, and broadcast (gloo).

    PYTHONPATH=. GSPO_VLLM_PYTHON=.venv-vllm/bin/python python lab/speed/ways.py [--rounds 7] [--layers 8]

One real server on a CPU, a dense model with random weights. Each round takes both in turn; the seconds are of what
is done before the engine has the weights, without the check that follows. The ratios are to the folder's time of
the round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer
from gspo.config.policy import ModelConfig
from gspo.learner.weights import PolicyWeights
from tests.backends.vllm.engine.servers import DENSE, ENGINE_ARGS, served
from tests.tiny_run import PIECES

CPU = torch.device("cpu")
MODEL = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536, "head_dim": 64}


def main() -> None:
    """Prints the medians."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--rounds", type=int, default=7)
    told.add_argument("--layers", type=int, default=8)
    options = told.parse_args()
    shape = DENSE | MODEL | {"num_hidden_layers": options.layers}
    policy = HFPolicy(build_tiny(shape, longest_match_tokenizer(PIECES), 0, ModelConfig(device="cpu")))
    seconds: dict[str, list[float]] = {}
    with served(policy, engine_args=ENGINE_ARGS) as sampler, tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        ways = {
            "folder": FolderTransfer(Path(scratch), False),
            "broadcast": BroadcastTransfer(CPU),
        }
        members = {member: member.generation for member in sampler.fleet.members}
        version = 0
        for _ in range(options.rounds):
            for name, way in ways.items():
                for again in (False, True):  # the first joins a group, of which an engine has one
                    version += 1
                    weights, begin = PolicyWeights(policy, version), time.perf_counter()
                    way.prepare(weights)
                    way.commit(weights)
                    for error in way.send(members, version).values():
                        raise error
                    if again:
                        seconds.setdefault(name, []).append(time.perf_counter() - begin)
                way.close()
        size = ways["broadcast"].counts()["sync/bytes"] / 2**20
    print(f"{size:.0f} MiB, {options.rounds} rounds; medians, and the range of the ratios to the folder")
    for name, each in seconds.items():
        ratios = [one / folder for one, folder in zip(each, seconds["folder"])]
        print(f"{name:10s} {statistics.median(each):.3f} s   {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
