"""Memory of tensors, counted as they come and go."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Around work: `peak`, the most bytes of tensors made within it that were there at the same time."""

    def __init__(self):
        super().__init__()
        self.sizes, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in before:
                self._comes(x.untyped_storage())
        return out

    def _comes(self, storage):
        name = storage._cdata
        if name not in self.sizes:
            self.sizes[name] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._goes, name)

    def _goes(self, name):
        self.now -= self.sizes.pop(name, 0)
