"""The configuration of a whole run: frozen dataclasses, with one docstring per field that gives its unit. Loads no torch.

config/files.py reads and writes it. An algorithm's own constants stay in its row (objective/algorithms.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from gspo.config.policy import AlgorithmConfig, LoraConfig, ModelConfig, OptimizerConfig, ResolvedAlgorithm, TeacherConfig
from gspo.config.rewards import CodeConfig, JudgeConfig, RewardConfig, RewardModelConfig
from gspo.config.rollout import RolloutConfig, SamplerConfig, TaskConfig
from gspo.config.scale import ScaleConfig
from gspo.config.stages import RefreshConfig, StageConfig
from gspo.config.training import EvalConfig, GuardConfig, LogConfig, ServeConfig, TrainConfig


@dataclass(frozen=True)
class Config:
    """The configuration of a whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    code: CodeConfig = field(default_factory=CodeConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    refresh: RefreshConfig = field(default_factory=RefreshConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    log: LogConfig = field(default_factory=LogConfig)
    stage: tuple[StageConfig, ...] = ()


@dataclass(frozen=True)
class RunConfig(Config):
    """A configuration whose [algorithm] is resolved: what the parts of a run are built from."""

    algorithm: ResolvedAlgorithm = field(default_factory=ResolvedAlgorithm)


STAGE = "stage"
"""The only section that may have several tables, in order."""
SECTIONS: dict[str, type] = {f.name: f.default_factory for f in dataclasses.fields(Config) if f.name != STAGE}  # type: ignore[misc]
