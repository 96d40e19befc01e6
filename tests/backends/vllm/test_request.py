import dataclasses

import pytest
import torch

from gspo.backends.vllm.errors import EngineError
from gspo.types import Rollout, Sampling
from tests.backends.vllm.tools import PROMPTS, choice, part, sampler_of


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("gspo.backends.vllm.fleet.PAUSE", 0.0)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"out of memory", "status 500: out of memory"),
        (200, b"<html>", "cannot be read"),
        (200, {"choices": []}, "cannot be read"),
        (200, {"choices": [choice() | {"logprobs": None}]}, "3 tokens with 0 log-probabilities"),
        (200, {"choices": [choice(tokens=(), logp=())]}, "0 tokens"),
        (200, {"choices": [choice(logp=(-0.5, -1.0))]}, "3 tokens with 2 log-probabilities"),
        (200, {"choices": [choice(tokens=(5, 6, 99999))]}, "tokens outside of 0 to"),
        (200, {"choices": [choice(logp=(-0.5, float("nan"), -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(logp=(-0.5, 0.7, -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(reason="error")]}, "finish reason 'error'"),
        (200, {"choices": [choice(version="2")]}, r"version \['2'\] of the weights where 3 was loaded"),
        (200, {"choices": [choice(version="³")]}, r"version \['³'\] of the weights where 3 was loaded"),
        (200, {"choices": [choice(version="03")]}, r"version \['03'\] of the weights"),
        (200, {"choices": [choice(version="9" * 5000)]}, r"version \['9+ of the weights"),
        (200, {"choices": [choice(version=None)]}, r"version \['None'\] of the weights"),
        (200, {"choices": [choice(tokens=(5, 6, float("inf")))]}, "cannot be read"),
        (200, {"choices": [choice(tokens=(5, 6, 1.5))]}, "cannot be read"),
        (200, {"choices": [choice(tokens=(5, 6, "1"))]}, "cannot be read"),
        (200, {"choices": [choice(tokens=(5, 6, True))]}, "cannot be read"),
        (200, {"choices": [choice(tokens=(5, 6, 10**30))]}, "tokens outside of 0 to"),
        (200, {"choices": [choice(logp=(-0.5, -(10**400), -1.0))]}, "cannot be read"),
        (200, {"choices": [choice(logp=(-0.5, {}, -1.0))]}, "cannot be read"),
        (200, {"choices": [choice(tokens=[5] * 9, logp=[-1.0] * 9)]}, "9 tokens, more than it was asked for"),
        (200, {"choices": [choice(reason=["stop"])]}, "finish reason"),
        (200, {"choices": {}}, "cannot be read"),
        (200, {"choices": None}, "cannot be read"),
        (200, {"choices": ["text"]}, "cannot be read"),
        (200, None, "cannot be read"),
        (200, [], "cannot be read"),
        (200, "text", "cannot be read"),
        (200, b"", "cannot be read"),
        (200, b'{"choices": [', "cannot be read"),
        (200, b"[" * 100_000, "cannot be read"),
        (200, b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_garbage_is_never_trained_on(engine, tmp_path, status, body, said):
    engine.completions.append((status, body))
    with pytest.raises(EngineError, match=said):
        sampler_of(engine, tmp_path).generate(PROMPTS, 1, Sampling(8))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 3), (2, 0)], [(3, 0), (0, 6)], [(0, -3)], [(0, 2)], [(0, 4)], [(1, 3)], [(0, 1), (2, 3)], [(0, 2), (1, 3)],
        [(-1, 2)], [(0, 3.0)], [(0, "3")], [(False, 3)], [(0, 10**12)], [(0, None)],
    ],
)  # fmt: skip
def test_versions_that_do_not_cover_the_tokens_once_are_refused(engine, tmp_path, spans):
    """Each token has one version: negative lengths, gaps and overlaps add up to the right number too."""
    versions = [{"version": "3", "start": start, "end": end} for start, end in spans]
    engine.completions.append((200, {"choices": [choice() | {"weight_versions": versions}]}))
    with pytest.raises(EngineError, match=r"and versions|cannot be read"):
        sampler_of(engine, tmp_path).generate(PROMPTS, 1, Sampling(8))


def test_an_interrupted_completion_goes_on(engine, tmp_path):
    """Each token keeps its version, the rest is asked for with what came, and with another seed."""
    sampler = sampler_of(engine, tmp_path)
    engine.completions += [(*part(5, 6), lambda: setattr(sampler, "version", 4)), part(version="4")]
    engine.completions += [part(7, version="4"), part(8, 1, reason="stop", version="4")]
    found = sampler.begin(Rollout.begun(PROMPTS[0]), 11, Sampling(8, stop_ids=(1,))).result()
    assert found.tokens.tolist() == [2, 3, 4, 5, 6, 7, 8, 1] and found.stop == "eos"
    assert found.version.tolist() == [-1, -1, -1, 3, 3, 4, 4, 4]
    bodies = [body for _, body in engine.asked]
    assert [body["token_ids"] for body in bodies] == [[2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]]
    sent = [body["sampling_params"] for body in bodies]
    assert [one["max_tokens"] for one in sent] == [8, 6, 6, 5]
    assert len({one["seed"] for one in sent}) == 3


def test_a_completion_that_ended_as_it_was_interrupted(engine, tmp_path):
    engine.completions += [part(5, 6, 7), part(9, 9)]
    sampler = sampler_of(engine, tmp_path)
    assert sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(3)).result().stop == "length"
    engine.completions[:] = [part(5, 1), part(9, 9)]
    assert sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(8, stop_ids=(1,))).result().stop == "eos"


def test_a_stop_string_that_two_parts_share(engine, tmp_path):
    a, b = sampler_of(engine, tmp_path).model.tokenizer("a b")["input_ids"][::2]
    engine.completions += [part(a, a), part(b, a, a, reason="length")]
    found = sampler_of(engine, tmp_path).begin(Rollout.begun(PROMPTS[0]), 1, Sampling(5, stop=("ab",))).result()
    assert (found.text, found.stop, found.tokens[found.sampled].tolist()) == ("aab", "stop", [a, a, b])


def test_a_saved_completion_goes_on(engine, tmp_path):
    engine.completions.append(part(8, 1, reason="stop"))
    sampler = sampler_of(engine, tmp_path)
    known = dataclasses.replace(
        Rollout.begun(PROMPTS[1]), tokens=torch.tensor([7, 8, 5]), sampled=torch.tensor([False, False, True]),
        logp=torch.tensor([0.0, 0.0, -0.5]), version=torch.tensor([-1, -1, 2]),
    )  # fmt: skip
    found = sampler.begin(known, 1, Sampling(8, stop_ids=(1,))).result()
    assert found.tokens.tolist() == [7, 8, 5, 8, 1] and found.version.tolist() == [-1, -1, 2, 3, 3]
    whole = sampler.begin(found, 1, Sampling(8, stop_ids=(1,))).result()
    assert whole is found and len(engine.asked) == 1
