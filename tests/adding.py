"""What a CPU's threads add up or write as they come, so that a seeded run would depend on what else the machine does."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

INDEX_PUT = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class AsTheyCome(TorchDispatchMode):
    """Of all that runs in it: how many such sums there were, how many of them in any order, and how many writes of several
    values to one place, of which any may stay.
    """

    sums, loose, races = 0, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name in INDEX_PUT:
            if kwargs.get("accumulate", args[3] if len(args) > 3 else False):
                self.sums += args[0].is_floating_point()
                self.loose += args[0].is_floating_point() and not torch.are_deterministic_algorithms_enabled()
            else:
                self.races += _repeated(args[0], args[1]) and args[2].numel() > 1
        return function(*args, **kwargs)


def _repeated(x, indices):
    """Whether a place stands among the indices more than once."""
    grid = torch.arange(x.numel()).view(x.shape)[tuple(slice(None) if i is None else i.cpu() for i in indices)].flatten()
    return len(grid.unique()) < len(grid)
