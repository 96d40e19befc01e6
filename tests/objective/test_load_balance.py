"""The load-balancing loss against its naive loop and transformers' own."""

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from gspo.objective.completions import Completions
from gspo.objective.load_balance import balance

LENGTHS = (3, 1, 5)


def batch(layers=2, experts=6, k=2, lengths=LENGTHS):
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(sum(lengths), layers, experts, generator=g, dtype=torch.float64)
    return logits, logits.topk(k, -1).indices.to(torch.int16), Completions.of(torch.tensor(lengths))


def test_against_a_naive_loop():
    logits, chosen, y = batch()
    actual = balance(logits, chosen, y)
    begin = 0
    for i, length in enumerate(LENGTHS):
        tokens, total = range(begin, begin + length), 0.0
        for layer in range(2):
            for e in range(6):
                f = sum(e in chosen[t, layer].tolist() for t in tokens) / length * 6 / 2
                P = sum(float(logits[t, layer].softmax(-1)[e]) for t in tokens) / length
                total += f * P / 2
        assert float(actual[i]) == pytest.approx(total, rel=1e-6)
        begin += length


def test_one_completion_of_one_layer_is_transformers_own_over_k():
    logits, chosen, y = batch(layers=1, lengths=(12,))
    theirs = load_balancing_loss_func((logits[:, 0].float(),), num_experts=6, top_k=2)
    torch.testing.assert_close(balance(logits.float(), chosen, y)[0], theirs / 2)


def test_an_even_load_is_1_and_the_worst_is_e_over_k():
    y = Completions.of(torch.tensor([4]))
    even = torch.arange(4)[:, None, None]  # each token takes another one of 4 experts
    assert float(balance(torch.zeros(4, 1, 4), even, y)) == pytest.approx(1.0)
    same = torch.tensor([50.0, 0, 0, 0]).expand(4, 1, 4)
    assert float(balance(same, same.topk(1, -1).indices, y)) == pytest.approx(4.0)


def test_it_pushes_the_busy_expert_down():
    logits, _, y = batch(layers=1, lengths=(9,))
    logits[:, :, 0] += 3.0
    logits.requires_grad_()
    balance(logits, logits.detach().topk(2, -1).indices, y).sum().backward()
    assert float(logits.grad[:, 0, 0].sum()) > 0 > float(logits.grad[:, 0, 1:].sum())
