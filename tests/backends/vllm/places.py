"""Engines at places that are given, and the way that is chosen for them."""

import os
from pathlib import Path

import torch

from gspo.backends.vllm.way import chosen
from gspo.config.rollout import SamplerConfig

CPU = torch.device("cpu")


class AtPlace:
    """An engine of whose workers only the places are asked. Not run on a GPU."""

    name, adapters = "http://127.0.0.1:9", False

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
        return self.places if method == "gspo_place" else [{"sees": os.path.exists(*arguments)}] * len(self.places)


def way(transfer="auto", device=CPU, engines=(), adapted=False, exchange=Path("/none"), **options):
    given = SamplerConfig(engine="vllm", weight_transfer=transfer, **options)
    return type(chosen(given, device, engines, exchange, adapted))
