"""What is compared: rows of the table of algorithms with a clip range, likelihoods and Routing Replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gspo.config.algorithm import resolve
from gspo.config.policy import ResolvedAlgorithm
from gspo.config.schema import Config
from gspo.learner.objective import PolicyObjective
from gspo.objective.algorithms import ALGORITHMS, Algorithm

YOURS = "yours"
YARDSTICKS = ("reinforce", "reinforce_is")  # nothing bounds their updates: shown, never recommended
BASE: tuple[tuple[str, dict[str, object]], ...] = (
    ("gspo", {}),
    ("gspo", {"epsilon": 3e-3, "epsilon_high": 4e-3}),
    ("gspo", {"epsilon": 3e-2, "epsilon_high": 4e-2}),
    ("gspo", {"epsilon": "auto"}),
    ("grpo", {}),
    ("grpo_dual", {}),
    ("sapo", {}),
    ("cispo", {}),
    ("dppo_tv", {}),
    ("reinforce", {}),
    ("reinforce_is", {}),
)
BY_TURN: tuple[tuple[str, dict[str, object]], ...] = tuple(
    (name, own) for name in ("gspo_token", "gspo_turn") for _, own in BASE[:4]
) + (("grpo", {}),)
REPLAYED = ("gspo auto", "grpo 0.2")


@dataclass(frozen=True)
class Candidate:
    """One of them. name: what the page calls it. algorithm: resolved. likelihoods: "sampler" or "recompute", where pi_old's
    come from. replay: "none", "R2" or "R3". offered: whether it may be recommended.
    """

    name: str
    algorithm: ResolvedAlgorithm
    likelihoods: str = "sampler"
    replay: str = "none"
    offered: bool = True

    @property
    def row(self) -> Algorithm:
        """Its row of the table."""
        return ALGORITHMS[self.algorithm.name]

    @property
    def scale(self) -> str:
        """What its advantages are divided by."""
        return self.algorithm.scale_rewards

    @property
    def family(self) -> str:
        """All with the same gradient on policy have the same."""
        return f"{'sum' if self.row.sums else 'mean'} {self.scale}"

    @property
    def view(self) -> str:
        """Which advantages and likelihoods it reads."""
        return f"{self.scale} {self.likelihoods}"

    def objective(self, max_completion_length: int) -> PolicyObjective:
        """Its equation."""
        return PolicyObjective(self.row, self.algorithm, max_completion_length)

    def settings(self) -> dict[str, object]:
        """The fields of [algorithm] that make a run this one."""
        own = self.algorithm
        fields: dict[str, object] = {"name": own.name}
        if own.epsilon is not None:
            fields["epsilon"] = own.epsilon
            if own.epsilon != "auto":
                fields["epsilon_high"] = own.epsilon_high
        if dict(own.constants) != dict(self.row.constants):
            fields["constants"] = dict(own.constants)
        if len(self.row.scale_rewards) > 1:
            fields["scale_rewards"] = self.scale
        # What "auto" comes out as is left to it: the run may have another precision.
        auto = own.old_logprobs == "auto" and self.likelihoods == "sampler"
        likelihoods = "auto" if auto else self.likelihoods
        return fields | {"old_logprobs": likelihoods, "router_replay": self.replay, "correction": "none"}


def named(algorithm: ResolvedAlgorithm) -> str:
    """What the page calls an algorithm with its clip range."""
    if algorithm.epsilon == "auto":
        return f"{algorithm.name} auto"
    return algorithm.name if algorithm.epsilon is None else f"{algorithm.name} {algorithm.epsilon:g}"


def candidates(
    config: Config, likelihoods: Sequence[str], replays: Sequence[str], decided: str = "sampler"
) -> list[Candidate]:
    """All that are compared, the user's own settings first. likelihoods, replays: those that can be told apart here.
    decided: what algorithm.old_logprobs is in the run, "auto" settled.
    """
    own = resolve(config.algorithm)[1]
    own_likelihoods = decided if decided in likelihoods else likelihoods[0]
    same = "R2" if own.router_replay == "R3" else own.router_replay  # where the sampler chooses as the policy does
    own_replay = next((kind for kind in (own.router_replay, same) if kind in replays), "none")
    yours = Candidate(YOURS, own, own_likelihoods, own_replay, own.name not in YARDSTICKS)
    found = []
    plain = dataclasses.replace(
        config.algorithm, epsilon=None, epsilon_high=None, epsilon_length=None, constants={}, correction="none",
        correction_ratio="mean", correction_low=None, correction_high=None,
    )  # fmt: skip
    for name, changes in BY_TURN if own.credit == "turn" else BASE:
        scale = own.scale_rewards if own.scale_rewards in ALGORITHMS[name].scale_rewards else None
        algorithm = resolve(dataclasses.replace(plain, name=name, scale_rewards=scale, **changes))[1]  # type: ignore[arg-type]
        title = named(algorithm)
        for which in likelihoods if "logp_old" in ALGORITHMS[name].likelihoods else likelihoods[:1]:
            shown = title if len(likelihoods) == 1 or which == "sampler" else f"{title}, recomputed"
            found.append(Candidate(shown, algorithm, which, "none", name not in YARDSTICKS))
        for replay in replays if title in REPLAYED else ():
            if replay != "none":
                found.append(Candidate(f"{title} + {replay}", algorithm, likelihoods[-1], replay))
    return [yours, *(candidate for candidate in found if candidate.settings() != yours.settings())]
