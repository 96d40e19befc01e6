"""Naive float64 objectives in Python loops, straight from the papers, to hold the vectorised ones against."""

import math

import torch


def ratios(logp, old, lengths):
    """Per reply: the list of w_it, and s_i, as float64 tensors with gradient."""
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


def objective(name, logp, old, A, lengths, low, high, budget):
    """J of the whole batch: its outer mean included. A is a list of floats, or of lists (A_it)."""
    S = len(lengths)
    tokens = sum(lengths)
    total = logp.new_zeros(())
    start = 0
    for (w, s), a, n in zip(ratios(logp, old, lengths), A, lengths):
        if name == "gspo":
            total = total + torch.minimum(s * a, clip(s, low, high) * a) / S
        elif name == "gspo_token":
            for t in range(n):
                a_t = a[t] if isinstance(a, list) else a
                s_t = s.detach() * torch.exp(logp[start + t]) / torch.exp(logp[start + t]).detach()
                total = total + torch.minimum(s_t * a_t, clip(s_t, low, high) * a_t) / n / S
        else:
            divisor = {"grpo": n * S, "dr_grpo": S * budget, "dapo": tokens}[name]
            for w_t in w:
                total = total + torch.minimum(w_t * a, clip(w_t, low, high) * a) / divisor
        start += n
    return total
