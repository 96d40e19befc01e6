"""Engines at places that are given, and the way that is chosen for them."""

import torch

from gspo.backends.vllm.transfer import chosen
from gspo.config.rollout import SamplerConfig

CPU = torch.device("cpu")


class AtPlace:
    """An engine of whose workers only the places are asked. Not run on a GPU."""

    name, adapters = "http://127.0.0.1:9", False

    def __init__(self, *gpus, nccl="2.27.5"):
        self.places = [
            {"rank": i, "workers": len(gpus), "device": "cuda" if gpu else "cpu", "gpu": gpu, "nccl": nccl if gpu else ""}
            for i, gpu in enumerate(gpus)
        ]

    def workers(self, method):
        return self.places


def way(transfer="auto", device=CPU, engines=(), adapted=False, **options):
    given = SamplerConfig(engine="vllm", weight_transfer=transfer, **options)
    return type(chosen(given, device, engines, "/none", adapted))
