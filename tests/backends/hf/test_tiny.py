"""The longest-match tokenizer and the tiny models."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from tests.backends.hf.families import PIECES, TOKENIZER


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_round_trip_and_longest_match(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    ahead, want = text, []
    while ahead:
        want.append(max((p for p in PIECES if ahead.startswith(p)), key=len))
        ahead = ahead[len(want[-1]) :]
    assert TOKENIZER.convert_ids_to_tokens(ids) == want


def test_pieces_with_regular_expression_characters():
    tokenizer = longest_match_tokenizer(["a", "a+", "(", "[^", " ", "\\", "|"])
    text = "a a+(\\ [^|a"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_saves(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "even odd abc 42\n"
    assert again.encode(text) == TOKENIZER.encode(text) and again.decode(again.encode(text)) == text
    assert (again.pad_token_id, again.eos_token_id) == (0, 1)
    assert again.decode([5, 1, 0], skip_special_tokens=True) == PIECES[3]


def test_sizes_and_seed():
    def count(**size):
        return sum(p.numel() for p in build_tiny(tiny_qwen3_moe(**size), TOKENIZER).model.parameters())

    assert 0.45e6 < count() < 0.55e6
    assert 3.2e6 < count(hidden=128, layers=4, experts=16, expert_width=128) < 3.6e6
    before = torch.random.get_rng_state()
    a, b, c = (build_tiny(tiny_qwen3_moe(hidden=32), TOKENIZER, seed).model for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.model.layers[0].mlp.gate.weight, b.model.layers[0].mlp.gate.weight)
    assert not torch.equal(a.model.layers[0].mlp.gate.weight, c.model.layers[0].mlp.gate.weight)
