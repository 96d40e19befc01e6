"""Policy objectives, one function per equation, in the papers' symbols.

Notation: x is a query and y_1..y_G its completions; pi_theta is the policy being trained and pi_old the one that sampled.

    logp      [N]  log pi_theta(y_it | x, y_i<t) of every sampled token
    logp_old  [N]  log pi_old(y_it | x, y_i<t)
    A         [S]  advantage A_i of each completion (GSPO-token also takes A_it, [N])
    y              the ragged view (completions.py): `y.mean` is 1/|y_i| sum_t, [N] -> [S]
    e_low, e_high  clip range: the ratio is clipped to [1 - e_low, 1 + e_high]; numbers, or tensors shaped as the ratio

Each function returns a `Surrogate`: the negative objective of each completion, before the mean over completions. The learner
supplies the denominator of that mean (algorithms.py says what it counts).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from gspo.objective.completions import Completions

MOST = 20.0  # cap on log r
Bound = Any  # a number, or a tensor shaped as the ratio


class Surrogate(NamedTuple):
    """An objective before its outer mean.

    Attributes:
        loss: Term of each completion [S], to be minimised.
        ratio: s_i [S] at sequence level, w_it [N] at token level, s_ik at each token [N] at turn level, 1 without a ratio.
        clipped_low: Where the clip removes the gradient at the lower bound; bool, shaped as ratio (GMPO's is always [N]).
        clipped_high: The same at the upper bound.
    """

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def clipped(ratio: Tensor, A: Tensor, e_low: Bound, e_high: Bound) -> tuple[Tensor, Tensor, Tensor]:
    """min(r A, clip(r, 1 - e_low, 1 + e_high) A), and where the clip is active below and above. All shaped as `ratio`."""
    term = (ratio * A).minimum(ratio.clamp(1 - e_low, 1 + e_high) * A)
    return term, (ratio < 1 - e_low) & (A < 0), (ratio > 1 + e_high) & (A > 0)


def bounded(log_ratio: Tensor) -> Tensor:
    """log r capped at 20 (r = 5e8), with the gradient of log r. Smaller values are unchanged, bit for bit.

    No clip range extends that far. Without the cap, r overflows float32 where log r > 88, and where the clip has removed the
    gradient, 0 times infinity is not 0.
    """
    return log_ratio - (log_ratio - MOST).clamp(min=0).detach()


def sequence_ratio(logp: Tensor, logp_old: Tensor, y: Completions) -> Tensor:
    """s_i = (pi_theta(y_i|x) / pi_old(y_i|x))^(1/|y_i|), [S] (GSPO, Eq. 7)."""
    return bounded(y.mean(logp - logp_old)).exp()


def level_ratio(level: str, logp: Tensor, logp_old: Tensor, y: Completions) -> Tensor:
    """The ratio at an algorithm's level: "sequence" s_i [S], "turn" s_ik [turns], "token" w_it [N]."""
    if level == "token":
        return bounded(logp - logp_old).exp()
    return sequence_ratio(logp, logp_old, y if level == "sequence" else y.turns())


def gspo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: Bound, e_high: Bound) -> Surrogate:
    """GSPO, Eq. 5: J = E[ 1/G sum_i min( s_i A_i, clip(s_i) A_i ) ] (arXiv 2507.18071)."""
    s = sequence_ratio(logp, logp_old, y)  # [S]
    term, low, high = clipped(s, A, e_low, e_high)
    return Surrogate(-term, s, low, high)


def gspo_token(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: Bound, e_high: Bound) -> Surrogate:
    """GSPO-token, Eq. 13-14: J = E[ 1/G sum_i 1/|y_i| sum_t min( s_it A_it, clip(s_it) A_it ) ],
    s_it = sg[s_i] pi_theta(y_it) / sg[pi_theta(y_it)] (arXiv 2507.18071).

    At every token, the ratio has the value s_i and the gradient of this token only. Tokens are clipped individually, since
    A_it may change sign within a completion.

    Args:
        A: Advantages [S], or [N] per token.
    """
    s = y.spread(sequence_ratio(logp, logp_old, y).detach()) * (logp - logp.detach()).exp()  # [N]
    term, low, high = clipped(s, y.spread(A), e_low, e_high)
    return Surrogate(-y.mean(term), s, low, high)


def gspo_turn(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: Bound, e_high: Bound) -> Surrogate:
    """GSPO-token with a ratio per turn k instead of per completion: s_ik = (pi_theta(y_ik) / pi_old(y_ik))^(1/|y_ik|).

    With one turn per completion, this is GSPO-token. Not from the paper: an option for conversations, whose turns are in
    effect separate completions of ever longer queries.

    Args:
        A: Advantages [S], or [N] per token.
    """
    turns = y.turns()
    s = turns.spread(sequence_ratio(logp, logp_old, turns).detach()) * (logp - logp.detach()).exp()  # [N]
    term, low, high = clipped(s, y.spread(A), e_low, e_high)
    return Surrogate(-y.mean(term), s, low, high)


def grpo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: float, e_high: float) -> Surrogate:
    """GRPO, Eq. 2: J = E[ 1/G sum_i 1/|y_i| sum_t min( w_it A_i, clip(w_it) A_i ) ] (arXiv 2402.03300)."""
    w = bounded(logp - logp_old).exp()  # [N]
    term, low, high = clipped(w, y.spread(A), e_low, e_high)
    return Surrogate(-y.mean(term), w, low, high)


def token_sum(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: float, e_high: float) -> Surrogate:
    """GRPO's token terms summed over the completion: sum_t min( w_it A_i, clip(w_it) A_i ).

    Dr.GRPO (arXiv 2503.20783) divides the sum over completions by a constant, DAPO (arXiv 2503.14476) by the number of
    tokens.
    """
    w = bounded(logp - logp_old).exp()  # [N]
    term, low, high = clipped(w, y.spread(A), e_low, e_high)
    return Surrogate(-y.sum(term), w, low, high)
