"""gspo: train language models with Group Sequence Policy Optimization (arXiv 2507.18071).

`train`, `sft` and `evaluate` are whole runs. The parts stand alone: `gspo.objective` holds the equations.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gspo.api import Result as Result
    from gspo.api import evaluate as evaluate
    from gspo.api import sft as sft
    from gspo.api import train as train

__version__ = "0.1.0"
__all__ = ["Result", "evaluate", "sft", "train"]


def __getattr__(name: str) -> Any:
    # Late, so that the command line answers --help without importing torch.
    if name in __all__:
        from gspo import api

        return getattr(api, name)
    raise AttributeError(f"module 'gspo' has no attribute {name!r}")
