import dataclasses

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gspo.backends.hf.stopping import Ends
from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.request import Request
from gspo.types import Prompt, Rollout, Sampling
from tests.backends.vllm.tools import PROMPTS, choice, part, sampler_of


def spanning(*spans):
    """A completion of three tokens whose versions cover these spans."""
    return choice() | {"weight_versions": [{"version": "3", "start": start, "end": end} for start, end in spans]}


def test_garbage_is_never_trained_on(subtests):
    """Each token has one version: negative lengths, gaps and overlaps add up to the right number too."""
    for body, said in (
        (None, "cannot be read"),
        ({"choices": []}, "cannot be read"),
        ({"choices": [choice(tokens=(5, 6, 1.5))]}, "cannot be read"),
        ({"choices": [choice() | {"logprobs": None}]}, "3 tokens with 0 log-probabilities"),
        ({"choices": [spanning((0, 3), (2, 0))]}, "and versions"),
        ({"choices": [spanning((0, 2))]}, "and versions"),
        ({"choices": [spanning((0, 1), (2, 3))]}, "and versions"),
        ({"choices": [spanning((0, 2), (1, 3))]}, "and versions"),
        ({"choices": [choice(tokens=(), logp=())]}, "0 tokens"),
        ({"choices": [choice(tokens=[5] * 9, logp=[-1.0] * 9)]}, "9 tokens, more than it was asked for"),
        ({"choices": [choice(tokens=(5, 6, 99999))]}, "tokens outside of 0 to"),
        ({"choices": [choice(logp=(-0.5, float("nan"), -1.0))]}, "no numbers up to 0"),
        ({"choices": [choice(logp=(-0.5, 0.7, -1.0))]}, "no numbers up to 0"),
        ({"choices": [choice(reason="error")]}, "finish reason 'error'"),
        ({"choices": [choice(version="2")]}, r"version \['2'\] of the weights where 3 was loaded"),
    ):
        with subtests.test(body):
            request = Request(Rollout.begun(PROMPTS[0]), 0, Sampling(8), TOKENIZER, len(TOKENIZER))
            with pytest.raises(EngineError, match=said):
                request.add(body, 3, 3)
            assert request.sampled == 0


def test_an_interrupted_completion_goes_on(engine, tmp_path):
    """Each token keeps its version, the rest is asked for with what came, and with another seed."""
    sampler = sampler_of(engine, tmp_path)
    (member,) = sampler.fleet.members

    def update(version):
        sampler.fleet.pause_all()
        sampler.version = version
        sampler.fleet.admit(member, member.generation)

    engine.completions += [(*part(5, 6), lambda: update(4)), (*part(version="4"), lambda: update(4))]
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


def test_the_first_stop_string_counts_where_two_parts_share_it(engine, tmp_path):
    """The engine sees at most the second."""
    sampler = sampler_of(engine, tmp_path)
    a, b = sampler.model.tokenizer("a b")["input_ids"][::2]
    for rest in (part(b, a, a, reason="length"), part(b, a, b, reason="stop")):
        engine.completions[:] = [part(a, a), rest]
        found = sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(5, stop=("ab",))).result()
        assert (found.text, found.stop, found.tokens[found.sampled].tolist()) == ("aab", "stop", [a, a, b])


TOKENIZER = longest_match_tokenizer([*"ab ", "ba"])
TOKENIZER.add_special_tokens({"additional_special_tokens": ["<end>", "<other>"]})
EOS, A, B, END, OTHER = TOKENIZER.convert_tokens_to_ids(["<eos>", "a", "b", "<end>", "<other>"])
STOPS = [("<end>",), ("<end>", "ab"), ("ab",), ("<eos>",), ("<end>", "<other>", "bb"), ()]


def served(request, ids, sizes):
    """The completion if the engine would sample `ids`, in parts of these sizes, and knows of no text."""
    while not request.so_far.stop:
        asked, past = request.request()["sampling_params"], request.sampled
        size = next(sizes, asked["max_tokens"])
        tokens = ids[past : past + min(size, asked["max_tokens"])]
        end = next((at for at, token in enumerate(tokens, 1) if token in asked["stop_token_ids"]), None)
        left = asked["max_tokens"] - len(tokens)
        reason = "stop" if end else "abort" if left else "length"
        request.add(part(*tokens[:end], reason=reason, version="0")[1], 0, 0)
    return request.so_far


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=6, max_size=6), st.sampled_from(STOPS),
    st.sampled_from([(EOS,), (EOS, END), (EOS, B)]), st.lists(st.integers(1, 4), max_size=6),
)  # fmt: skip
@example([A, A, END, A, A, A], ("<end>",), (EOS,), [])
@example([A, A, END, A, A, A], ("<end>",), (EOS,), [3])
@example([A, END, A, B, A, A], ("<end>", "ab"), (EOS,), [])
@example([A, A, A, A, A, EOS], ("<eos>",), (EOS,), [])
@example([A, B, A, A, A, A], ("ab",), (EOS, B), [])
def test_the_same_tokens_end_where_they_do_with_the_embedded_sampler(ids, stop, stop_ids, sizes):
    """However the engine cuts them into parts."""
    sampling = Sampling(len(ids), stop=stop, stop_ids=stop_ids)
    ends = Ends(TOKENIZER, sampling, 1, torch.device("cpu"))
    for t in range(len(ids)):
        ends.look(torch.tensor(ids)[:, None], t)
    found = served(Request(Rollout.begun(Prompt("p", "", (A,))), 0, sampling, TOKENIZER, len(TOKENIZER)), ids, iter(sizes))
    assert (int(found.sampled.sum()), found.stop) == (ends.length[0], ends.stop[0])
    assert found.tokens[found.sampled].tolist() == ids[: ends.length[0]]


def test_vllm_is_asked_to_stop_at_the_ids_of_special_tokens():
    """In its text there are none; and it makes no text that nobody looks at."""

    def asked(*stop):
        sampling = Sampling(8, stop=stop, stop_ids=(EOS,))
        request = Request(Rollout.begun(Prompt("p", "", (A,))), 0, sampling, TOKENIZER, len(TOKENIZER))
        return [request.request()["sampling_params"][name] for name in ("stop_token_ids", "stop", "detokenize")]

    assert asked("<end>") == [[EOS, END], [], False]
    assert asked("<end>", "ab", "<eos>") == [[EOS, END], ["ab"], True]


def test_a_special_token_beside_text_is_refused(engine, tmp_path):
    """Before anything is asked: the text of an engine would never have it."""
    with pytest.raises(ValueError, match=r"rollout\.stop.*'<eos>a' has the special token '<eos>'.*stop at '<eos>' alone"):
        sampler_of(engine, tmp_path).generate(PROMPTS, 1, Sampling(8, stop=("<eos>a",)))
    assert not engine.asked


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
