"""Engines at places that are given, and the way that is chosen for them."""

from pathlib import Path
from types import SimpleNamespace

from gspo.backends.vllm.choose_transfer import choose_transfer
from gspo.config.rollout import SamplerConfig
from tests.backends.vllm.engines import CPU


class AtPlace:
    """An engine of whose workers only the places are asked. Not run on a GPU."""

    name, adapters = "http://127.0.0.1:9", False

    def __init__(self, *gpus, nccl="2.27.5", sleeps=True):
        on_gpu = {"device": "cuda", "nccl": nccl, "sleeps": sleeps}
        of_any = {"workers": len(gpus), "device": "cpu", "nccl": "", "sleeps": False}
        self.places = [of_any | (on_gpu if gpu else {}) | {"rank": i, "gpu": gpu} for i, gpu in enumerate(gpus)]

    def workers(self, method, *arguments):
        assert method == "gspo_place"
        return self.places


def way(transfer="auto", device=CPU, engines=(), adapted=False, **options):
    given = SamplerConfig(engine="vllm", weight_transfer=transfer, **options)
    policy = SimpleNamespace(device=device, model=SimpleNamespace(adapted=adapted))
    return type(choose_transfer(given, policy, engines, Path("/none")))
