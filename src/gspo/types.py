"""The data types that flow through a run. They contain no logic.

Throughout, `t` indexes positions in a token row, and the value at `t` describes token `t`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

Metrics = dict[str, Any]  # name -> number or short list of numbers
Stats = dict[str, Tensor]  # detached statistics of an update, each [S] or [N, ...]


@dataclass(frozen=True)
class Prompt:
    """One query x.

    Attributes:
        messages: The data row's prompt: a string or a list of chat messages.
        tokens: The ids that the model reads, with the chat template applied.
        columns: The row's other columns, passed on to the rewards.
        opens_thinking: Whether the encoded prompt ends inside an open <think>.
    """

    id: str
    messages: str | list[dict[str, Any]]
    tokens: tuple[int, ...]
    columns: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    opens_thinking: bool = False


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        stop_ids: Token ids that end a completion; the stop token is part of it.
        seed: One seed for all completions, or one per prompt. It determines every completion.
        routes: Whether to record the experts that each token chose.
        keep_special_tokens: Whether the text of a completion has all its special tokens.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | tuple[int, ...] = 0
    routes: bool = False
    keep_special_tokens: bool = False


@dataclass(frozen=True)
class Rollout:
    """One sampled completion y_i, with everything recorded at sampling time.

    Attributes:
        tokens: [L] int64. Prompt and completion.
        sampled: [L] bool. True where the policy chose the token; |y| counts these.
        logp: [L] float32. Log-probability under the sampler itself (mu), 0 where not sampled.
        version: [L] int64. Version of the weights that sampled the token, -1 where not sampled.
        stop: "eos" | "stop" | "length", or "error" where nothing was sampled.
        reward: None until scored, or when every reward failed (then `error` says why).
        reward_weights: Weights of `reward_parts` in the reward, in their order; () if these are not parts of a weighted sum.
        routes: [L, layers, k] int16. The experts that the sampler chose for each token, -1 where the token was not read (the
            last one never is). None for a dense model, or if not requested.
        turn: Multi-turn only. [L] int64. Index of the policy's turn that sampled the token, -1 where none did.
        turn_rewards: Multi-turn only. Reward r of each turn, if turns are rewarded separately.
        parent: Multi-turn with edited history only. [L] int64. Index of the preceding token on each token's path, -1 at a
            root, with the tokens in depth-first order. None: each token follows the one before it.
        logp_teacher: [L] float32. Log-probability under a teacher behind an endpoint, 0 where not sampled.
        dialogue: Multi-turn only, for people who read the log. Messages, each with the `turn` that sampled it and its
            `reward`.
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
    reward_weights: tuple[float, ...] = ()
    error: str | None = None
    routes: Tensor | None = None
    turn: Tensor | None = None
    turn_rewards: tuple[float, ...] | None = None
    parent: Tensor | None = None
    logp_teacher: Tensor | None = None
    dialogue: tuple[dict[str, Any], ...] = ()

    @staticmethod
    def begun(prompt: Prompt) -> Rollout:
        """An empty rollout that contains only its prompt. Its `stop` is "" until it is done."""
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
    """Optional per-token values of the sampled tokens: [|y|] in a Completion, [N] in a Batch. A column that is added here
    reaches the objective by name (objective/algorithms.py:Algorithm.likelihoods).

    Attributes:
        logp_ref: float32. Log-probability under the reference.
        logp_teacher: float32. Log-probability under the teacher.
        values: float32. V of the old critic (PPO).
        returns: float32. Regression target of the critic (PPO).
        marked: bool. Whether algorithm.top_entropy or clip_cov take the token's gradient, or kl_cov penalises its change;
            None without these.
    """

    logp_ref: Tensor | None = None
    logp_teacher: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    marked: Tensor | None = None


@dataclass(frozen=True)
class Completion(TokenColumns):
    """A rollout prepared for the learner.

    Attributes:
        logp_mu: [|y|] float32. Log-probabilities of the sampled tokens under the sampler.
        logp_old: [|y|] float32. The same under pi_old.
        advantage: A_i, a number, or A_it as a tensor [|y|] (GSPO-token).
        routes: [L, layers, k] int16. The experts that pi_old chose for each token, -1 where unknown; None if all are
            unknown.
        reward: r_i.
        turn: [|y|] int64. Turn index of each sampled token; tokens of a turn are contiguous. None: a single turn.
        parent: [L]. As in Rollout.
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

    Token i may attend to token j exactly when `j <= i <= last[j]`: this is the attention mask of every layout.

    Attributes:
        tokens: [T] int64.
        last: [T]. Index of the token's last descendant (itself, for a leaf).
        parent: [T]. The preceding token on its path, -1 at a root.
        position: [T]. Number of tokens before it on its path.
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
    """Input of one forward pass, and the flat views that the equations use: N sampled tokens of S completions. Views that
    are not listed are [N].

    Attributes:
        path: Forest index of every token of every completion, completions concatenated.
        node: [N]. Forest index of each sampled token.
        completion: [N]. Index of the completion that each sampled token belongs to, ascending.
        turn: [N]. Turn within that completion, 0 if it has only one.
        length: [S]. |y_i|.
        turn_length: [turns]. Number of sampled tokens of each turn.
        advantage: [S] or [N].
        routes: [T, layers, k] int16. The experts that pi_old chose for each forest token.
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
    """Experts that the T forest tokens of a batch chose.

    Attributes:
        chosen: [T, layers, k] int16.
        own: [T, layers, k]. What the routers would have chosen, if they replayed; otherwise `chosen` itself.
        entropy: [T, layers]. Entropy of the router's softmax, in nats.
        experts: Number of experts that a router chooses from.
        logits: [T, layers, experts]. Router logits, with gradient; None unless the policy is configured to keep them.
    """

    chosen: Tensor
    own: Tensor
    entropy: Tensor
    experts: int
    logits: Tensor | None = None


class Outputs(NamedTuple):
    """A policy's outputs for the N sampled tokens of a batch.

    Attributes:
        logp: [N] float32. Log-probabilities.
        entropy: [N]. Entropy of each sampling distribution, in nats; None unless requested.
        routing: None for a dense model, or if not requested.
        values: [N] float32. The critic's V of the state before each token; None without a critic.
    """

    logp: Tensor
    entropy: Tensor | None = None
    routing: Routing | None = None
    values: Tensor | None = None


class Reading(NamedTuple):
    """A policy's outputs for one completion.

    Attributes:
        logp: [|y|]. Log-probabilities of the sampled tokens.
        routes: [L, layers, k] int16. The experts that its routers choose for each token; None for a dense model, or if not
            requested.
        values: [|y|]. The critic's values; None without a critic.
        entropy: [|y|]. Entropy of each sampling distribution, in nats; None unless requested.
    """

    logp: Tensor
    routes: Tensor | None = None
    values: Tensor | None = None
    entropy: Tensor | None = None


class Agreement(NamedTuple):
    """Mismatch between sampler and trainer at the same weights, and its effect on the ratio.

    Attributes:
        metrics: `mismatch/...`, and `moe/sampler_agreement` for a mixture of experts.
        noise: Standard deviation of the ratio.
        clipped: Share of the tokens whose gradient the clip removes because of this mismatch.
    """

    metrics: Metrics
    noise: float
    clipped: float


class Update(NamedTuple):
    """Metrics of an update and, for the first after `Learner.prepare` that reads any completion, the effect of numerics
    alone.
    """

    metrics: Metrics
    agreement: Agreement | None = None
