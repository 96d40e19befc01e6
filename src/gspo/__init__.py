"""gspo: train language models with Group Sequence Policy Optimization (arXiv 2507.18071).

`train`, `sft` and `evaluate` are complete runs. `serve` puts the model behind an endpoint and trains it on what agents hand
back. `gspo.objective` holds the equations and can be used alone.
"""

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gspo.agents.gather import gather as gather
    from gspo.agents.trajectories import History as History
    from gspo.agents.trajectories import TrainCall as TrainCall
    from gspo.agents.trajectories import Trajectory as Trajectory
    from gspo.agents.trajectories import TrajectoryGroup as TrajectoryGroup
    from gspo.api import Result as Result
    from gspo.api import evaluate as evaluate
    from gspo.api import sft as sft
    from gspo.api import train as train
    from gspo.demo.smollm2 import fetch_smollm2 as fetch_smollm2
    from gspo.rewards.graders import by_group as by_group
    from gspo.rewards.judge import Judge as Judge
    from gspo.rewards.reward_model import RewardModel as RewardModel
    from gspo.serving.art_backend import ArtBackend as ArtBackend
    from gspo.serving.start import serve as serve

__version__ = "0.1.0"
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    # GNU OpenMP reads this when torch is loaded. By default threads that wait for each other spin for milliseconds, and on a
    # busy machine they take the core of the thread that they wait for: docs/performance.md has the seconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
warnings.filterwarnings("ignore", "IProgress not found")  # of tqdm in a notebook without ipywidgets: it prints bars as text
WHERE = {
    **dict.fromkeys(("Result", "evaluate", "sft", "train"), "gspo.api"),
    **dict.fromkeys(("History", "TrainCall", "Trajectory", "TrajectoryGroup"), "gspo.agents.trajectories"),
    "ArtBackend": "gspo.serving.art_backend",
    "by_group": "gspo.rewards.graders",
    "Judge": "gspo.rewards.judge",
    "RewardModel": "gspo.rewards.reward_model",
    "fetch_smollm2": "gspo.demo.smollm2",
    "gather": "gspo.agents.gather",
    "serve": "gspo.serving.start",
}
__all__ = sorted(WHERE)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    # Lazy imports, so that `gspo --help` does not import torch.
    if name in WHERE:
        return getattr(importlib.import_module(WHERE[name]), name)
    raise AttributeError(f"module 'gspo' has no attribute {name!r}")
