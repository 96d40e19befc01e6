"""What two ranks really send (tests/plan/test_meta_sharding.py): a process of each counts its collectives."""

from collections import Counter

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sharded import load_sharded
from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from gspo.learner import layout
from gspo.types import Completion

RANKS, ROWS, LENGTH = 2, 4, 16
CASES = {
    "fsdp": ("moe", 1, 1, False, "none"),
    "fsdp, checkpointing": ("moe", 1, 1, True, "none"),
    "experts": ("moe", 2, 1, False, "none"),
    "experts, checkpointing": ("moe", 2, 1, True, "none"),
    "tied": ("tied", 1, 1, False, "none"),
    "replicas": ("moe", 1, 2, False, "none"),
    "uneven": ("uneven", 1, 1, False, "none"),
    "bfloat16": ("moe", 1, 1, False, "bfloat16"),
    "bfloat16, tied, checkpointing": ("tied", 1, 1, True, "bfloat16"),
    "bfloat16, experts": ("moe", 2, 1, False, "bfloat16"),
    "bfloat16, replicas": ("moe", 1, 2, False, "bfloat16"),
    "bfloat16, uneven": ("uneven", 1, 1, False, "bfloat16"),
}


def size(x):
    return x.numel() * x.element_size()


class Counting(TorchDispatchMode):
    """Bytes that leave this rank, by collective: n - 1 of n parts, of rows to experts all."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **(kwargs or {})), func._schema.name
        if name == "c10d::_allgather_base_":
            self.bytes["gather"] += size(args[0]) - size(args[1])
        elif name == "_c10d_functional::all_gather_into_tensor":
            self.bytes["gather"] += size(args[0]) * (args[1] - 1)
        elif name == "c10d::_reduce_scatter_base_":
            self.bytes["reduce"] += size(args[1]) - size(args[0])
        elif name == "c10d::allreduce_":
            self.bytes["copies"] += sum(map(size, args[0])) * 2 * (RANKS - 1) / RANKS
        elif name in ("_c10d_functional::all_to_all_single", "c10d::alltoall_base_"):
            self.bytes["rows"] += size(args[1] if name.startswith("c10d::") else args[0])
        elif name.startswith(("c10d::", "_c10d_functional::")):
            # The last gathers words alone: what ranks tell one another.
            assert name.rpartition("::")[2] in ("wait_tensor", "_wrap_tensor_autograd", "barrier", "allgather_"), name
        return out


class Casts(TorchDispatchMode):
    """Copies in bfloat16 of weights, as long as they live."""

    def __init__(self, shapes):
        super().__init__()
        self.shapes, self.made = shapes, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::_to_copy" and out.dtype == torch.bfloat16 and out.shape in self.shapes:
            self.made.append((StorageWeakRef(out.untyped_storage()), size(out)))
        return out

    def alive(self):
        return sum(count for storage, count in self.made if not storage.expired())


def batch():
    sampled = torch.arange(LENGTH) >= LENGTH // 4
    logp = torch.zeros(int(sampled.sum()))
    return layout.build([Completion(torch.randint(2, 20, (LENGTH,)), sampled, logp, logp, 1.0) for _ in range(ROWS)])


def count(folder, model, experts, replicas, checkpointing, autocast):
    """Bytes of a forward pass, of its backward pass, and of the weights for an engine."""
    scale = ScaleConfig(ranks=RANKS, expert_parallel=experts, data_parallel_replicas=replicas)
    loaded = load_sharded(ModelConfig(path=str(folder / model), device="cpu", autocast=autocast), scale, RANKS)
    policy, read = HFPolicy(loaded, layout="padded", gradient_checkpointing=checkpointing), batch()
    policy.forward(read).logp.sum().backward()
    with Counting() as forward:
        logp = policy.forward(read).logp
    with Counting() as backward:
        logp.sum().backward()
    with Counting() as published:
        loaded.save(folder / f"{model} {experts} {replicas} {checkpointing} {autocast}")
    held = sum(p.to_local().numel() for _, p in loaded.named_parameters())
    return {"forward": forward.bytes, "backward": backward.bytes, "published": published.bytes, "held": held}


def casts(loaded, checkpointing):
    """Bytes of weights in bfloat16 that autocast has made and that live at the end of the body, in a pass with gradient and
    in one without.
    """
    policy, alive = HFPolicy(loaded, layout="padded", gradient_checkpointing=checkpointing), []
    mode = Casts({p.shape for name, p in loaded.named_parameters() if p.ndim > 1 and ".layers." in name})
    hook = loaded.body.norm.register_forward_hook(lambda *_: alive.append(mode.alive()))
    for grad in (True, False):
        mode.made.clear()
        with torch.set_grad_enabled(grad), mode:
            policy.forward(batch())
    hook.remove()
    return alive


def counts(ranks, folder):
    """What a rank counts with the models in a folder: in each case, and with autocast."""
    torch.manual_seed(ranks.number)
    found = {name: count(folder, *case) for name, case in CASES.items()}
    loaded = load_sharded(ModelConfig(path=str(folder / "moe"), device="cpu", autocast="bfloat16"), ScaleConfig(), RANKS)
    return found | {"casts": [casts(loaded, checkpointing) for checkpointing in (False, True)]}
