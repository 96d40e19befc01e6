"""Engines at places that are given, and the way that is chosen for them."""

import json
from pathlib import Path

import torch

from gspo.backends.vllm.choose_transfer import choose_transfer
from gspo.config.rollout import SamplerConfig

CPU = torch.device("cpu")


class AtPlace:
    """An engine of whose workers only the places are asked. Not run on a GPU."""

    name, adapters, reads = "http://127.0.0.1:9", False, True

    def __init__(self, *gpus, nccl="2.27.5", sleeps=True):
        self.places = [
            {
                "rank": i,
                "workers": len(gpus),
                "device": "cuda" if gpu else "cpu",
                "gpu": gpu,
                "nccl": nccl if gpu else "",
                "sleeps": bool(gpu) and sleeps,
            }
            for i, gpu in enumerate(gpus)
        ]

    def workers(self, method, *arguments):
        if method == "gspo_place":
            return self.places
        head, size, path = json.loads(*arguments)
        said = Path(path).read_bytes() if head == 0 and self.reads else bytes(size)
        return [{"read": said.hex()}] * len(self.places)


def way(transfer="auto", device=CPU, engines=(), adapted=False, exchange=Path("/none"), **options):
    given = SamplerConfig(engine="vllm", weight_transfer=transfer, **options)
    return type(choose_transfer(given, device, engines, exchange, adapted))
