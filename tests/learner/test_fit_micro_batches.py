"""Whether micro-batches have room: the arithmetic, and trial passes of real ranks."""

from unittest import mock

import pytest
import torch

from gspo.distributed.ranks import OneRank
from gspo.learner import fit_micro_batches
from gspo.learner.fit_micro_batches import SPARE, Found, drawn, fitting, make_room, update_peak
from gspo.learner.memory import MicroBatches, OutOfMemory
from tests.backends.hf.folders import load, model_in
from tests.backends.hf.test_sharded import Case, completions, learner_of
from tests.learner.test_leader_follower import sharded
from tests.together import together

MOMENTS = "exp_avg", "exp_avg_sq"


class Others(OneRank):
    """This process, and what other ranks have found."""

    def __init__(self, *others):
        self.others = others

    def gathered(self, mine):
        return [mine, *self.others]


def found(base, each, most, room, ranks=None):
    asked = []

    def measure(count):
        asked.append(count)
        return base + each * count

    few = max(1, most // 8)
    answer = fitting(measure, few, most, lambda: room / (1 - SPARE), ranks or OneRank())
    assert asked == [few, 2 * few]
    return answer


def test_the_largest_count_that_fits():
    assert found(100, 10, 64, 740).fits == 64 and found(100, 10, 64, 739).fits == 63
    assert found(100, 10, 64, 740).need == 740
    assert found(100, 10, 64, 500).fits == 40
    assert found(100, 10, 64, 50).fits == 1 and found(100, 10, 2, 110).fits == 1
    assert found(100, 0, 64, 99).fits == 1 and found(100, 0, 64, 100).fits == 64
    assert found(100, 10, 2, 120).fits == 2


def test_the_rank_with_the_least_room_decides():
    assert found(100, 10, 64, 500, ranks=Others(Found(12, 3, 1.0, 2.0), Found(64, 4, 9.0, 2.0))) == (12, 3, 1.0, 2.0)
    assert found(100, 10, 64, 500, ranks=Others(Found(41, 1, 1.0, 2.0))).rank == 0


class Kept:
    """Meter of what autograd keeps for backward passes: a CPU's allocator counts nothing."""

    def __init__(self, room):
        self.free = room

    def room(self):
        return self.free / (1 - SPARE)

    def peak(self, work):
        kept = 0

        def keep(x):
            nonlocal kept
            kept += x.nbytes
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            work()
        return kept


def trial(ranks, path, share):
    """rank 1 has room for `share` of the largest micro-batch."""
    one, other, said = sharded(ranks, path), sharded(ranks, path), []
    size = one.policy.model.config.vocab_size
    whole = update_peak(one.policy, one.optimizer, Kept(0), drawn(16, 20, size))
    one.micro_batches.max_tokens, one.micro_batches.warn = 330, said.append
    one.meter = Kept(whole * (share if ranks.number else 2))
    state = torch.get_rng_state()
    one.fit(20, size)
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in one.optimizer.parameters)
    made = {name: sum(state[name].to_local().nbytes for state in one.optimizer.adamw.state.values()) for name in MOMENTS}
    assert set(made.values()) == {sum(p.to_local().nbytes for p in one.optimizer.parameters)}  # they stood beside the passes
    found, one.micro_batches.max_tokens = one.micro_batches.max_tokens, other.micro_batches.max_tokens
    for each in (one, other):
        each.prepare([completions(0)], recompute=True)
        each.update(0)
    same = all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(one.policy.parameters(), other.policy.parameters()))
    return found, said, same


@pytest.mark.parametrize("share, tokens", [(0.5, range(140, 181)), (1.2, [330]), (0.02, range(1, 20))])
def test_ranks_agree_on_micro_batches_that_all_have_room_for(tmp_path, share, tokens):
    for found, said, same in together(trial, 2, model_in(tmp_path / "model"), share):
        assert found in tokens and same  # the trial has changed nothing
        if found == 330:
            assert not said
        else:
            risk = ", and the run may end where one completion is longer" if found < 20 else ""
            assert said[0].startswith("rank 1 has room for ") and said[0].endswith(f"have at most {found} tokens{risk}")


def test_a_trial_that_does_not_fit_ends_this_life(tmp_path):
    learner, said, kept = learner_of(load(model_in(tmp_path / "model")), Case()), [], []
    parts = MicroBatches(640, said.append, keep=kept.append)

    class Full(Kept):
        def __init__(self, room, good):
            super().__init__(room)
            self.good = good  # passes before memory does not suffice

        def peak(self, work):
            self.good -= 1
            if self.good < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().peak(work)

    def trial(meter):
        make_room(learner.policy, learner.optimizer, parts, meter, 20, 19)

    for tokens, read in ((640, 80), (160, 20)):  # four completions, and one alone
        parts.max_tokens = tokens
        with pytest.raises(OutOfMemory, match=f"rank 0 was out of memory with a micro-batch of {read} tokens") as caught:
            trial(Full(1e9, 0))
        assert kept.pop() is caught.value and caught.value.tokens == read // 2
    parts.max_tokens = 8
    with pytest.raises(RuntimeError, match="out of memory with one completion of 2 tokens"):
        trial(Full(1e9, 0))
    parts.max_tokens = 640
    trial(Full(1e9, 2))
    assert parts.max_tokens == 640 and not said


@pytest.mark.parametrize("longest", [2, 300, 1500, 4096, 8192, 9216, 16384, 40_000])
def test_a_whole_micro_batch_is_judged_from_a_quarter_of_it(monkeypatch, longest):
    """It may lie between one completion and two: 3 bytes a token, and 8,000 for whatever there are."""
    tried, said, parts = [], [], MicroBatches(16384)
    parts.warn = said.append

    def peak(policy, optimizer, meter, completions):
        assert all(len(completion.tokens) <= longest for completion in completions)
        tried.append(sum(len(completion.tokens) for completion in completions))
        return 8000.0 + 3 * tried[-1]

    monkeypatch.setattr(fit_micro_batches, "update_peak", peak)
    for room, fits in ((8000 + 3 * 50_000, 16384), (8000 + 3 * 10_000, 10_000)):
        make_room(None, mock.Mock(), parts, Kept(room), longest, 19)
        assert fits / 1.02 < parts.max_tokens <= fits and len(tried) == 2
        assert max(tried) <= 16384 / 4 * 1.02
        tried.clear()
    (text,) = said
    assert text.endswith("where one completion is longer") == (longest > 10_000)


@pytest.mark.parametrize("longest, room", [(4100, 3500), (32_768, 3000), (300, 3500)])
def test_a_trial_that_has_no_room_leads_to_one_that_has(monkeypatch, longest, room):
    """Though no single completion of the first trial's size would fit, none may ever be that long."""
    said, parts = [], MicroBatches(16384)
    parts.warn = said.append

    def peak(policy, optimizer, meter, completions):
        tokens = sum(len(completion.tokens) for completion in completions)
        if tokens > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    monkeypatch.setattr(fit_micro_batches, "update_peak", peak)
    with pytest.raises(OutOfMemory) as caught:
        make_room(None, mock.Mock(), parts, Kept(room), longest, 19)
    parts.max_tokens = caught.value.tokens
    make_room(None, mock.Mock(), parts, Kept(room), longest, 19)
    assert parts.max_tokens == caught.value.tokens >= 2048
    assert [text.endswith("where one completion is longer") for text in said] == [True] * (longest > room)


@pytest.mark.parametrize("most", [39, 640])
def test_a_completion_that_would_not_fit_ends_nothing_before_it_is_there(tmp_path, most):
    learner, said = learner_of(load(model_in(tmp_path / "model")), Case()), []
    parts = MicroBatches(most, said.append)
    half = update_peak(learner.policy, learner.optimizer, Kept(0), drawn(1, 12, 19))
    make_room(learner.policy, learner.optimizer, parts, Kept(half), 20, 19)
    assert 10 <= parts.max_tokens <= 14
    (text,) = said
    assert f"have at most {parts.max_tokens} tokens, and the run may end where one completion is longer" in text
