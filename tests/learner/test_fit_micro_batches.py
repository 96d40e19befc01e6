"""Whether micro-batches have room: the arithmetic, and trial passes of real ranks."""

import pytest
import torch

from gspo.distributed.ranks import OneRank
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

    answer = fitting(measure, most, lambda: room / (1 - SPARE), ranks or OneRank())
    assert max(asked) <= max(2, most // 4)  # a trial must not fail itself
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


@pytest.mark.parametrize("share, tokens", [(0.5, range(140, 181, 20)), (1.01, [330]), (0.02, range(3, 20))])
def test_ranks_agree_on_micro_batches_that_all_have_room_for(tmp_path, share, tokens):
    for found, said, same in together(trial, 2, model_in(tmp_path / "model"), share):
        assert found in tokens and same  # the trial has changed nothing
        if found == 330:
            assert not said
        else:
            assert said[0].startswith("rank 1 has room for ") and said[0].endswith(f"have at most {found} tokens")


def test_a_trial_that_does_not_fit_ends_this_life(tmp_path):
    learner, said = learner_of(load(model_in(tmp_path / "model")), Case()), []
    parts = MicroBatches(160, said.append)

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

    with pytest.raises(RuntimeError, match="out of memory with one completion of 3 tokens"):
        trial(Full(1e9, 0))
    parts.max_tokens = 640
    with pytest.raises(OutOfMemory, match="rank 0 was out of memory with a micro-batch of 80 tokens") as caught:
        trial(Full(1e9, 2))
    assert caught.value.tokens == 40
    parts.max_tokens = 39
    trial(Full(1e9, 2))  # one and two parts of a completion alone say that it fits: that is all
    assert parts.max_tokens == 39 and not said


@pytest.mark.parametrize("most", [39, 640])
def test_a_completion_that_would_not_fit_ends_nothing_before_it_is_there(tmp_path, most):
    learner, said = learner_of(load(model_in(tmp_path / "model")), Case()), []
    parts = MicroBatches(most, said.append)
    half = update_peak(learner.policy, learner.optimizer, Kept(0), drawn(1, 12, 19))
    make_room(learner.policy, learner.optimizer, parts, Kept(half), 20, 19)
    assert parts.max_tokens == 12
    (text,) = said
    assert "one completion of 20 tokens needs" in text and text.endswith("Micro-batches have at most 12 tokens")
