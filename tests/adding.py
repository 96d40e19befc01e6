"""Which sums a CPU's threads add up as they come, so that a seeded run would depend on what else the machine does."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

INDEX_PUT = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class AsTheyCome(TorchDispatchMode):
    """Of all that runs in it: how many such sums there were, and how many of them in any order."""

    sums, loose = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name in INDEX_PUT and args[0].is_floating_point():
            accumulates = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
            self.sums += accumulates
            self.loose += accumulates and not torch.are_deterministic_algorithms_enabled()
        return function(*args, **kwargs)
