"""The draw of a token, against a naive loop and the CDF in float64."""

import pytest
import torch

from gspo.backends.hf.draw import BLOCK, draw
from gspo.types import Sampling


def naive(logits, sampling):
    """The truncated distribution of one row, by sorting in plain Python."""
    probs = (logits.double() / sampling.temperature).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    mass, nucleus, total = 0.0, [], sum(probs[i] for i in order)
    for i in order:
        if mass < sampling.top_p:
            nucleus.append(i)
        mass += probs[i] / total
    total = sum(probs[i] for i in nucleus)
    return {i: probs[i] / total for i in nucleus}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.7), (9, 0.6), (1, 1.0), (0, 1e-9), (999, 1.0)])
def test_draw_follows_the_truncated_distribution(top_k, top_p):
    torch.manual_seed(0)
    sampling = Sampling(1, temperature=0.7, top_k=top_k, top_p=top_p)
    logits = torch.randn(3, 37) * 2
    uniforms = torch.cat([torch.linspace(0, 1, 997)[:-1], torch.tensor([1 - 2**-24])])  # 0 and the largest below 1
    for row in logits:
        want = naive(row, sampling)
        tokens, logp = draw(row.expand(len(uniforms), -1), uniforms, sampling)
        assert set(tokens.tolist()) <= set(want)
        assert torch.allclose(logp, torch.tensor([want[i] for i in tokens.tolist()]).log(), atol=1e-5)
        counts = torch.bincount(tokens, minlength=37) / len(uniforms)
        assert all(abs(counts[i] - want.get(i, 0.0)) < 3e-3 for i in range(37))


@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK, 2 * BLOCK + 41])
def test_draw_inverts_the_cdf_across_blocks_and_never_takes_an_impossible_token(size):
    torch.manual_seed(1)
    logits = torch.randn(size) * 4
    logits[:3] = logits[BLOCK - 9 : BLOCK] = logits[-40:] = -torch.inf
    uniforms = torch.cat([torch.rand(5000), torch.tensor([0.0, 2**-24, 1 - 2**-24])])
    tokens, logp = draw(logits.expand(len(uniforms), -1), uniforms, Sampling(1))
    probs = logits.double().softmax(-1)
    cdf, u = probs.cumsum(-1), uniforms.double()
    assert (probs[tokens] > 0).all()
    assert (cdf[tokens] > u - 1e-6).all() and (cdf[tokens] - probs[tokens] < u + 1e-6).all()
    assert torch.allclose(logp.double(), probs[tokens].log(), atol=1e-5)


def test_draw_gives_nan_where_the_logits_are_not_finite():
    logits = torch.zeros(3, 300)
    logits[0, 7], logits[1, 7] = torch.nan, torch.inf
    tokens, logp = draw(logits, torch.full((3,), 0.999), Sampling(1))
    assert logp.isnan().tolist() == [True, True, False]
    assert ((tokens >= 0) & (tokens < 300)).all()
