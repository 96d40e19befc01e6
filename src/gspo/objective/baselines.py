"""Other objectives to compare GSPO with. Notation and interface are those of losses.py.

Some use other log-probabilities or have constants; algorithms.py lists the values.

    logp_mu   [N]  log mu(y_it | x, y_i<t), the sampler's
    sg[.]          stop-gradient
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.objective.completions import Completions
from gspo.objective.losses import Bound, Surrogate, bounded, clipped, gspo, sequence_ratio


def nothing(ratio: Tensor) -> Tensor:
    """An all-False mask shaped as `ratio`: no ratio is clipped."""
    return torch.zeros_like(ratio, dtype=torch.bool)


def grpo_dual(
    logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: float, e_high: float, clip_c: float
) -> Surrogate:
    """GRPO with the dual clip: J = E[ 1/G sum_i 1/|y_i| sum_t m_it ], m_it = min( w_it A_i, clip(w_it) A_i ), and
    m_it >= clip_c A_i where A_i < 0 (arXiv 1912.09729).

    Where A_i < 0, the ordinary clip does not bound the ratio from above. Beyond clip_c such a token has no gradient here,
    and clipped_high marks it.

    Args:
        A: Advantages [S], or [N] per token.
    """
    w, A = bounded(logp - logp_old).exp(), y.spread(A)  # [N]
    term, low, high = clipped(w, A, e_low, e_high)
    term = torch.where(A < 0, term.maximum(clip_c * A), term)
    return Surrogate(-y.mean(term), w, low, high | ((w > clip_c) & (A < 0)))


def reinforce(logp: Tensor, A: Tensor, y: Completions) -> Surrogate:
    """REINFORCE: J = E[ 1/G sum_i 1/|y_i| sum_t A_i log pi_theta(y_it) ] (Williams 1992, doi 10.1007/BF00992696), with
    GRPO's mean and advantage.

    No ratio and no clip: nothing bounds an update. The reported ratio is 1.

    Args:
        A: Advantages [S], or [N] per token.
    """
    one = torch.ones_like(logp)  # [N]
    return Surrogate(-y.mean(y.spread(A) * logp), one, nothing(one), nothing(one))


def reinforce_is(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, w_max: float) -> Surrogate:
    """REINFORCE with truncated importance sampling of whole completions (Ionides 2008, doi 10.1198/106186008X320456):
    J = E[ 1/G sum_i sg[min(W_i, w_max)] A_i 1/|y_i| sum_t log pi_theta(y_it) ], W_i = pi_theta(y_i|x) / pi_old(y_i|x) =
    prod_t w_it.

    The ratio is s_i = W_i^(1/|y_i|); clipped_high marks where W_i is capped. The cap reduces gradients but removes none.
    """
    weight = bounded(y.sum(logp - logp_old)).exp().detach()  # [S]
    loss = -weight.clamp(max=w_max) * A * y.mean(logp)
    return Surrogate(loss, sequence_ratio(logp, logp_old, y), nothing(weight), (weight > w_max) & (A != 0))


def gepo(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions) -> Surrogate:
    """GEPO: J = E[ 1/G sum_i p_i / E_q[q] A_i ], p_i = pi_theta(y_i|x)^(1/|y_i|), q_i = mu(y_i|x)^(1/|y_i|), E_q[q] =
    sum_j q_j^2 / sum_j q_j over the group (arXiv 2508.17850, Eq. 1 to 3). The roots are those of the authors' code, which
    also clips p_i / E_q[q]; the equations do not, and neither does this.

    The group's expectation does not depend on theta, so p_i / E_q[q] is the ratio s_i to mu, times q_i / E_q[q].

    Args:
        A: A_i times q_i / E_q[q], [S] (advantages.py:expectation_weights).
    """
    s = sequence_ratio(logp, logp_mu, y)
    return Surrogate(-s * A, s, nothing(s), nothing(s))


def vespo(
    logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, c1_pos: float, c2_pos: float, c1_neg: float, c2_neg: float
) -> Surrogate:
    """VESPO: J = E[ sum_i sg[phi(W_i)] A_i sum_t log pi_theta(y_it) ], phi(W) = W^c1 exp(c2 (1 - W)), W_i = prod_t
    pi_theta(y_it)/mu(y_it) (arXiv 2602.10693, Eq. 20), with constants of their own for A < 0.

    phi is 1 at W = 1 and has its maximum at W = c1/c2. The ratio is s_i; the weight decays smoothly, so nothing is clipped.
    """
    log_W, down = bounded(y.sum(logp - logp_mu)).detach(), A < 0  # [S]
    c1, c2 = (torch.where(down, A.new_tensor(neg), A.new_tensor(pos)) for pos, neg in ((c1_pos, c1_neg), (c2_pos, c2_neg)))
    weight = (c1 * log_W + c2 * (1 - log_W.exp())).exp()
    return Surrogate(-weight * A * y.sum(logp), sequence_ratio(logp, logp_mu, y), nothing(weight), nothing(weight))


def luspo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: Bound, e_high: Bound) -> Surrogate:
    """LUSPO: J = E[ 1/G sum_i |y_i| min( s_i A_i, clip(s_i) A_i ) ] (arXiv 2602.05261): GSPO times the completion length."""
    term = gspo(logp, logp_old, A, y, e_low, e_high)
    return term._replace(loss=term.loss * y.length)


def gmpo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, delta: float) -> Surrogate:
    """GMPO: J = E[ 1/G sum_i A_i prod_t c_it^(1/|y_i|) ] (arXiv 2507.20673), c_it = min(w_it, e^delta) where A_i > 0 and
    max(w_it, e^-delta) where A_i < 0: each token is clipped, then the geometric mean is taken.

    The ratio is s_i, unclipped; clipped_low and clipped_high are per token, [N].
    """
    log_w, sign = logp - logp_old, y.spread(A)  # [N]
    low, high = (log_w < -delta) & (sign < 0), (log_w > delta) & (sign > 0)
    cut = torch.where(low | high, log_w.clamp(-delta, delta), log_w)
    return Surrogate(-bounded(y.mean(cut)).exp() * A, sequence_ratio(logp, logp_old, y), low, high)


def cispo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, w_max: float) -> Surrogate:
    """CISPO: J = E[ 1/sum_i |y_i| sum_i sum_t sg[min(w_it, w_max)] A_i log pi_theta(y_it) ] (arXiv 2506.13585).

    The cap reduces gradients but removes none; clipped_high marks where the weight is capped.
    """
    w = bounded(logp - logp_old).exp()  # [N]
    loss = -y.sum(w.clamp(max=w_max).detach() * y.spread(A) * logp)
    return Surrogate(loss, w, nothing(w), (w > w_max) & (y.spread(A) != 0))


def sapo(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, tau_pos: float, tau_neg: float) -> Surrogate:
    """SAPO: J = E[ 1/G sum_i 1/|y_i| sum_t f(w_it) A_i ], f(w) = 4/tau sigmoid(tau (w - 1)) (arXiv 2511.20347).

    tau is tau_pos where A > 0, else tau_neg. The gate decays smoothly, so nothing is clipped.
    """
    w, A = bounded(logp - logp_old).exp(), y.spread(A)  # [N]
    tau = torch.where(A > 0, A.new_tensor(tau_pos), A.new_tensor(tau_neg))
    gate = 4 / tau * torch.sigmoid(tau * (w - 1))
    return Surrogate(-y.mean(gate * A), w, nothing(w), nothing(w))


def dppo_tv(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, delta: float, w_max: float) -> Surrogate:
    """DPPO with binary total variation: J = E[ sum_i sum_t M_it sg[min(r_it, w_max)] A_i log pi_theta(y_it) ],
    r = pi_theta/mu (arXiv 2602.04879).

    M_it = 0 where the update moves away from mu and |pi_theta(y_it) - mu(y_it)| > delta.
    """
    return _dppo(logp, logp_mu, A, y, (logp.exp() - logp_mu.exp()).abs() > delta, w_max)


def dppo_kl(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, delta: float, w_max: float) -> Surrogate:
    """DPPO with binary KL: `dppo_tv` with the bound on KL(mu || pi_theta) of the event "this token or any other"."""
    p, mu = logp.exp(), logp_mu.exp()
    of_others = (torch.log1p(-mu.clamp(max=1 - 1e-7)) - torch.log1p(-p.clamp(max=1 - 1e-7))) * (1 - mu)
    return _dppo(logp, logp_mu, A, y, mu * (logp_mu - logp) + of_others > delta, w_max)


def _dppo(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, far: Tensor, w_max: float) -> Surrogate:
    r, A = bounded(logp - logp_mu).exp(), y.spread(A)  # [N]
    low, high = far & (r < 1) & (A < 0), far & (r > 1) & (A > 0)
    weight = torch.where(low | high, 0.0, r.clamp(max=w_max)).detach()
    return Surrogate(-y.sum(weight * A * logp), r, low, high)


def minirl(
    logp: Tensor, logp_old: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, e_low: float, e_high: float
) -> Surrogate:
    """MiniRL: J = E[ sum_t M_it sg[pi_theta(y_it) / mu(y_it)] A_i log pi_theta(y_it) ] (arXiv 2512.01374).

    This is REINFORCE weighted by the full ratio to the sampler and masked by PPO's rule on w_it = pi_theta/pi_old. A_i is
    not divided by a standard deviation.
    """
    w, A = bounded(logp - logp_old).exp(), y.spread(A)  # [N]
    low, high = (w < 1 - e_low) & (A < 0), (w > 1 + e_high) & (A > 0)
    weight = torch.where(low | high, 0.0, bounded(logp - logp_mu).exp()).detach()
    return Surrogate(-y.sum(weight * A * logp), w, low, high)
