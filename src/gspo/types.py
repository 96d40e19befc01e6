"""The data that flows through a run. No logic lives here.

Throughout, `t` counts positions of a token row and the value at `t` describes token `t`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

Metrics = dict[str, Any]  # numbers, or short lists of them, by name
Stats = dict[str, Tensor]  # detached statistics of an update, each [S] or [N, ...]


@dataclass(frozen=True)
class Prompt:
    """One query x.

    `messages` is what the data row held: a string or a list of chat messages. `tokens` are the ids that the
    model reads, chat template applied. `columns` are the row's other columns, passed on to the rewards.
    opens_thinking: the encoded prompt ends inside an open <think>.
    """

    id: str
    messages: str | list[dict[str, Any]]
    tokens: tuple[int, ...]
    columns: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    opens_thinking: bool = False


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled. `seed` fixes every completion, or is one for each prompt; `stop_ids` end one (and are
    part of it). routes: record which experts each token chose.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | tuple[int, ...] = 0
    routes: bool = False


@dataclass(frozen=True)
class Rollout:
    """One sampled completion y_i with all that was known when it was sampled.

    tokens [L] int64: prompt and completion. sampled [L] bool: True where the policy chose the token; |y| counts these. logp
    [L] float32: log-probability under the sampler itself (mu), 0 where not sampled. version [L] int64: the version of the
    weights that sampled the token, -1 where not sampled. stop: "eos" | "stop" | "length", or "error" where nothing was
    sampled. reward: None until scored, or when every reward failed (then `error` says why). routes [L, layers, k] int16: the
    experts that the sampler chose for each token, -1 where the token was not read (the last one never is); None for a dense
    model, or where nobody asked.

    A conversation has more: turn [L] int64, which turn of the policy sampled the token, -1 where none did; turn_rewards, r
    of each turn, where turns are rewarded apart; and where its history was edited, parent [L] int64: the place of the token
    before each on its path, -1 at a beginning, with the tokens in depth-first order (None: each follows the one before it).
    dialogue: what was said, for those who read the log: messages with the `turn` that sampled them, and its `reward`.
    """

    prompt: Prompt
    tokens: Tensor
    sampled: Tensor
    logp: Tensor
    version: Tensor
    stop: str
    text: str = ""
    reward: float | None = None
    reward_parts: dict[str, float | None] = field(default_factory=dict)
    error: str | None = None
    routes: Tensor | None = None
    turn: Tensor | None = None
    turn_rewards: tuple[float, ...] | None = None
    parent: Tensor | None = None
    dialogue: tuple[dict[str, Any], ...] = ()

    @staticmethod
    def begun(prompt: Prompt) -> Rollout:
        """One of which nothing is known but its prompt; its `stop` is "" until it is done."""
        size = len(prompt.tokens)
        nothing = torch.zeros(size)
        return Rollout(prompt, torch.tensor(prompt.tokens), nothing.bool(), nothing, torch.full((size,), -1), "")


@dataclass(frozen=True)
class Group:
    """The G rollouts of one prompt."""

    prompt: Prompt
    rollouts: list[Rollout]


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """What may be known of each sampled token: [|y|] in a Completion, [N] in a Batch. A column that is added here reaches
    the objective by its name (objective/algorithms.py:Algorithm.likelihoods).

    logp_ref float32: its log-probability under the reference. values, returns float32: the old critic's V, and what the
    critic learns (PPO).
    """

    logp_ref: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None


@dataclass(frozen=True)
class Completion(TokenColumns):
    """A rollout made ready for the learner.

    logp_mu, logp_old [|y|] float32: the log-probabilities of the sampled tokens under the sampler and pi_old. advantage:
    A_i, a number, or A_it as a tensor [|y|] (GSPO-token). routes [L, layers, k] int16: the experts that pi_old chose for
    each token, -1 unknown; None where they are not known. reward: r_i. turn [|y|] int64: the number of the turn that each
    sampled token belongs to, those of a turn together; None: there is one. parent [L]: as in Rollout.
    """

    tokens: Tensor
    sampled: Tensor
    logp_mu: Tensor
    logp_old: Tensor
    advantage: float | Tensor
    routes: Tensor | None = None
    reward: float = 0.0
    turn: Tensor | None = None
    parent: Tensor | None = None


@dataclass(frozen=True)
class Forest:
    """T tokens of a forest of token trees, numbered in depth-first order.

    Token i may look at token j exactly when `j <= i <= last[j]`: this is the attention mask of every layout.
    tokens [T] int64. last [T]: the index of the token's last descendant (itself, for a leaf).
    parent [T]: the token before it on its path, -1 at a root. position [T]: the number of tokens before it on its path.
    """

    tokens: Tensor
    last: Tensor
    parent: Tensor
    position: Tensor

    def to(self, device: torch.device | str) -> Forest:
        """The same forest on `device`."""
        return Forest(**{name: value.to(device, non_blocking=True) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Batch(TokenColumns):
    """What one forward pass reads, and the flat views that the equations read: N sampled tokens of S completions.

    path: the forest token that each token of each completion is, one completion after the other. node [N]: those of the
    sampled tokens. completion [N]: the completion each belongs to, ascending. turn [N]: the turn of that completion, 0
    where it has one alone. length [S]: |y_i|. turn_length [turns]: the same of each turn. advantage [S] or [N]. The
    other views are [N]. routes [T, layers, k] int16: the experts that pi_old chose for each forest token.
    """

    forest: Forest
    path: Tensor
    node: Tensor
    completion: Tensor
    length: Tensor
    logp_mu: Tensor
    logp_old: Tensor
    advantage: Tensor
    routes: Tensor | None = None
    turn: Tensor | None = None
    turn_length: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with every tensor on `device`."""

        def move(value: Any) -> Any:
            return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

        views = {name: move(value) for name, value in vars(self).items() if name != "forest"}
        return Batch(forest=self.forest.to(device), **views)


class Routing(NamedTuple):
    """Which experts the T forest tokens of a batch chose.

    chosen [T, layers, k] int16. own [T, layers, k]: what the routers would have chosen, where they replayed; else `chosen`
    itself. entropy [T, layers]: of the routers' softmax, in nats. experts: how many a router chooses from. logits [T,
    layers, experts]: the routers', with gradient; None unless the policy was made to keep them.
    """

    chosen: Tensor
    own: Tensor
    entropy: Tensor
    experts: int
    logits: Tensor | None = None


class Outputs(NamedTuple):
    """What a policy says of the N sampled tokens of a batch.

    logp [N] float32: their log-probabilities. entropy [N]: of the distributions that they were drawn from, in nats,
    without gradient; None unless asked for. routing: None unless asked for, and for a dense model. values [N] float32: the
    critic's V of the state before each token; None without a critic.
    """

    logp: Tensor
    entropy: Tensor | None = None
    routing: Routing | None = None
    values: Tensor | None = None


class Reading(NamedTuple):
    """What a policy says of one completion.

    logp [|y|]: the log-probabilities of its sampled tokens. routes [L, layers, k] int16: the experts that its routers
    choose for each token; None for a dense model, or where nobody asked. values [|y|]: its critic's; None without one.
    """

    logp: Tensor
    routes: Tensor | None = None
    values: Tensor | None = None


class Agreement(NamedTuple):
    """How far the sampler and the trainer disagree at the same weights, and what that alone does to the ratio.

    metrics: `mismatch/...`, and `moe/sampler_agreement` for a mixture of experts. noise: standard deviation of the ratio.
    clipped: share of the tokens that the clip then takes the gradient from.
    """

    metrics: Metrics
    noise: float
    clipped: float


class Update(NamedTuple):
    """What an update tells: its metrics and, for the first one after `Learner.prepare`, what numerics alone do."""

    metrics: Metrics
    agreement: Agreement | None = None
