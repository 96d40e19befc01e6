"""Naive float64 objectives in Python loops, straight from the papers, to hold the vectorised ones against."""

import math
import statistics

import torch


def ratios(logp, old, lengths):
    """Per completion: the list of w_it, and s_i, as float64 tensors with gradient."""
    out, start = [], 0
    for n in lengths:
        pairs = list(zip(logp[start : start + n], old[start : start + n]))
        w = [torch.exp(a - b) for a, b in pairs]
        product = math.prod([1.0] + w)
        out.append((w, product ** (1.0 / n)))
        start += n
    return out


def clip(r, low, high):
    return torch.clamp(r, 1 - low, 1 + high)


def objective(name, logp, old, A, lengths, low, high, budget, mu=None, **constants):
    """J of the whole batch: its outer mean included. A is a list of floats, or of lists (A_it). mu: None is old."""
    S = len(lengths)
    tokens = sum(lengths)
    total = logp.new_zeros(())
    start = 0
    for (w, s), a, n in zip(ratios(logp, old, lengths), A, lengths):
        if name == "gspo":
            total = total + torch.minimum(s * a, clip(s, low, high) * a) / S
        elif name in ("gspo_token", "gspo_turn"):  # the same where each completion is one turn
            for t in range(n):
                a_t = a[t] if isinstance(a, list) else a
                s_t = s.detach() * torch.exp(logp[start + t]) / torch.exp(logp[start + t]).detach()
                total = total + torch.minimum(s_t * a_t, clip(s_t, low, high) * a_t) / n / S
        elif name in ("grpo", "dr_grpo", "dapo", "ppo"):
            divisor = {"grpo": n * S, "dr_grpo": S * budget, "dapo": tokens, "ppo": tokens}[name]
            for t, w_t in enumerate(w):
                a_t = a[t] if isinstance(a, list) else a
                total = total + torch.minimum(w_t * a_t, clip(w_t, low, high) * a_t) / divisor
        elif name == "grpo_dual":
            for t, w_t in enumerate(w):
                a_t = a[t] if isinstance(a, list) else a
                term = torch.minimum(w_t * a_t, clip(w_t, low, high) * a_t)
                total = total + (max(term, constants["clip_c"] * a_t) if a_t < 0 else term) / n / S
        elif name == "reinforce_is":
            weight = min(math.prod(w_t.item() for w_t in w), constants["w_max"])
            total = total + sum(weight * a * p_t for p_t in logp[start : start + n]) / n / S
        elif name == "gepo":  # A comes weighed: tests/training/test_likelihoods.py has the group
            here = slice(start, start + n)
            q = math.prod(math.exp(q) for q in (old if mu is None else mu)[here].tolist())
            total = total + (math.prod([1.0, *logp[here].exp()]) / q) ** (1.0 / n) * a / S
        elif name == "vespo":
            here = slice(start, start + n)
            W = math.prod(math.exp(p - q) for p, q in zip(logp[here].tolist(), (old if mu is None else mu)[here].tolist()))
            c1, c2 = (constants[f"c{i}_{'neg' if a < 0 else 'pos'}"] for i in (1, 2))
            total = total + sum(W**c1 * math.exp(c2 * (1 - W)) * a * p_t for p_t in logp[here]) / tokens
        elif name == "luspo":
            total = total + n * torch.minimum(s * a, clip(s, low, high) * a) / S
        elif name == "gmpo":
            e = math.exp(constants["delta"])
            clipped = [torch.clamp(w_t, max=e) if a > 0 else torch.clamp(w_t, min=1 / e) for w_t in w]
            total = total + a * math.prod([1.0] + clipped) ** (1.0 / n) / S
        else:
            here = slice(start, start + n)
            terms = zip(w, logp[here], (old if mu is None else mu)[here], a if isinstance(a, list) else [a] * n)
            divisor = {"sapo": n * S, "reinforce": n * S, "minirl": S * budget}.get(name, tokens)
            for w_t, p_t, mu_t, a_t in terms:
                total = total + token(name, w_t, p_t, mu_t, a_t, n, low, high, constants) / divisor
        start += n
    return total


def token(name, w, logp, logp_mu, a, n, low, high, constants):
    """The term of one token."""
    if name == "sapo":
        tau = constants["tau_pos"] if a > 0 else constants["tau_neg"]
        return 4 / tau / (1 + torch.exp(-tau * (w - 1))) * a
    if name == "reinforce":
        return a * logp
    if name == "cispo":
        return min(w.item(), constants["w_max"]) * a * logp
    p, mu = math.exp(logp.item()), math.exp(logp_mu.item())
    if name == "minirl":
        away = (a > 0 and w > 1 + high) or (a < 0 and w < 1 - low)
        return (0.0 if away else p / mu) * a * logp
    far = {
        "dppo_tv": abs(p - mu),
        "dppo_kl": mu * math.log(mu / p) + (1 - mu) * math.log((1 - mu) / (1 - p)),
    }[name] > constants["delta"]
    away = far and ((a > 0 and p > mu) or (a < 0 and p < mu))
    return (0.0 if away else min(p / mu, constants["w_max"])) * a * logp


def correction(name, over, old, mu, lengths, low, high):
    """Weights of pi_old/mu: one per token if `over` is "token", else one per completion, of the mean or the product."""
    weights, start = [], 0
    for n in lengths:
        r = [math.exp(old[t].item()) / math.exp(mu[t].item()) for t in range(start, start + n)]
        product = math.prod(r)
        whole = {"token": r, "mean": [product ** (1.0 / n)], "product": [product]}[over]
        if name == "tis":
            weights += [min(high, x if low is None else max(low, x)) for x in whole]
        else:
            weights += [x if x <= high and (low is None or x >= low) else 0.0 for x in whole]
        start += n
    return weights


def off_policy(logp, mu, A, lengths, delta):
    """Whether each token's term is masked. A is a list of floats, or of lists (A_it)."""
    masked, start = [], 0
    for a, n in zip(A, lengths):
        here = range(start, start + n)
        far = sum(math.log(math.exp(mu[t].item()) / math.exp(logp[t].item())) for t in here) / n > delta
        masked += [far and (a[t - start] if isinstance(a, list) else a) < 0 for t in here]
        start += n
    return masked


def gdpo(rewards, weights, groups):
    """A of each completion from its rewards r_ik (None: not scored), w_k, and the group of each."""
    total = [0.0] * len(rewards)
    for k, weight in enumerate(weights):
        for g in set(groups):
            members = [i for i in range(len(rewards)) if groups[i] == g and rewards[i][k] is not None]
            values = [rewards[i][k] for i in members]
            if len(values) > 1 and len(set(values)) > 1:
                mean, std = statistics.mean(values), statistics.stdev(values)
                for i in members:
                    total[i] += weight * (rewards[i][k] - mean) / std
    total = [a if abs(a) > 1e-9 else 0.0 for a in total]
    spread = statistics.stdev(total) if len(total) > 1 else 0.0
    mean = statistics.mean(total) if total else 0.0
    return [(a - mean) / spread if spread else 0.0 for a in total]
