import pytest
import torch

from gspo.backends.hf.sampler import HFSampler
from gspo.types import Sampling
from tests.backends.hf.families import TOKENIZER, prompts, tiny


@pytest.mark.parametrize("stop", [("e",), ("bc", "ev"), ("a", "\n"), ("dd7", "x", "en"), ("od",)])
def test_stop_strings(stop):
    model, asked = tiny("qwen3_moe"), prompts(4, 11)
    free = HFSampler(model).generate(asked, 20, Sampling(max_new_tokens=25, seed=2))
    stopped = HFSampler(model).generate(asked, 20, Sampling(max_new_tokens=25, seed=2, stop=stop))
    assert any(r.stop == "stop" for r in stopped)
    for a, b in zip(free, stopped):
        start = len(a.prompt.tokens)
        texts = [TOKENIZER.decode(a.tokens[start : start + k], skip_special_tokens=True) for k in range(1, 26)]
        want = next((k for k, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
        assert b.stop == ("length" if want is None else "stop")
        assert b.tokens.tolist() == a.tokens[: start + (want or 25)].tolist()  # as sampled, up to there
        if want:
            assert any(b.text.endswith(s) for s in stop) and texts[want - 1].startswith(b.text)
            assert not any(s in b.text[:-1] for s in stop)


def test_stop_string_that_is_a_special_token():
    model, asked = tiny("qwen3_moe"), prompts(4, 11)
    by_id = HFSampler(model).generate(asked, 30, Sampling(max_new_tokens=25, stop_ids=(1,)))
    by_text = HFSampler(model).generate(asked, 30, Sampling(max_new_tokens=25, stop=("<eos>",)))
    assert any(r.stop == "eos" for r in by_id)
    for a, b in zip(by_id, by_text):
        assert torch.equal(a.tokens, b.tokens) and a.text == b.text
        assert (a.stop, b.stop) in {("eos", "stop"), ("length", "length")}


def test_stop_string_and_end_of_sequence_in_one_look():
    model = tiny("llama")
    free = HFSampler(model).generate(prompts(4), 40, Sampling(max_new_tokens=12, seed=4))
    both = HFSampler(model).generate(prompts(4), 40, Sampling(max_new_tokens=12, seed=4, stop=("o",), stop_ids=(2, 3, 4)))
    assert {r.stop for r in both} >= {"eos", "stop"}
    for a, b in zip(free, both):
        for k, token in enumerate(a.tokens[4:].tolist(), 1):
            text = TOKENIZER.decode([token], skip_special_tokens=True)
            reason = "eos" if token in (2, 3, 4) else "stop" if "o" in text else "length"
            if reason != "length" or k == 12:
                break
        assert (b.stop, int(b.sampled.sum())) == (reason, k)
