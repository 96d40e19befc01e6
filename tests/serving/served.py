"""A tiny served model, and ways to ask it."""

import threading
from urllib.parse import urlsplit

import httpx

import gspo
from gspo.backends.hf.tiny import build_tiny, tiny_qwen3_moe
from gspo.serving.connections import EndpointServer
from tests.agents.talking import tokenizer
from tests.patience import PATIENCE

ASK = [{"role": "user", "content": "what is in the box"}]
GOOD = {"model": "policy", "messages": ASK}  # nothing is wrong with this request


def tiny(template="chatml", **options):
    """A model that says anything, with a chat template."""
    shape = {"hidden": 32, "layers": 2, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 512}
    return build_tiny(tiny_qwen3_moe(**shape | options), tokenizer(template))


def serving(folder, template="chatml", hf=None, given=True, **sections):
    """A context with a ServedModel; further sections of the configuration change it. given: a loaded model, not a path."""
    base = {
        "rollout": {"max_completion_length": 12}, "optimizer": {"lr": 1e-2},
        "algorithm": {"mini_batches": 1}, "log": {"dir": str(folder)},
    }  # fmt: skip
    for name, table in sections.items():
        base[name] = base.get(name, {}) | table
    if not given:
        return gspo.serve(config=base)
    hf = hf or tiny(template)
    return gspo.serve(hf.model, tokenizer=hf.tokenizer, **base)


def server_of(model):
    """Its server, which runs in a thread of its own."""
    every = [getattr(getattr(thread, "_target", None), "__self__", None) for thread in threading.enumerate()]
    servers = [one for one in every if isinstance(one, EndpointServer)]
    return next(one for one in servers if urlsplit(model.base_url).port == one.listening.getsockname()[1])


def post(model, path, body=None, key=None, method="POST", **options):
    """A request with this body, as JSON unless `options` say otherwise."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {model.api_key if key is None else key}"}
    options = {"json": body, "timeout": PATIENCE, "verify": False} | options
    return httpx.request(method, f"{model.base_url}{path}", headers=headers, **options)
