"""The learner that a driver asks: a batch is handed over once, and its mini-batches are then named by their numbers."""

import copy
from dataclasses import replace
from itertools import chain

import pytest
import torch

from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from tests.bigram import Bigram
from tests.learner.cases import completions, objective_of, optimizer_of


class Saved(Bigram):
    """A bigram that can be saved."""

    def save(self, folder, *, merged=False):
        torch.save(self.table, folder)

    def load(self, folder):
        with torch.no_grad():
            self.table.copy_(torch.load(folder, weights_only=False))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def learner(frozen=None, **algorithm):
    policy, objective = Saved(), objective_of(**algorithm)
    return PolicyLearner(policy, optimizer_of(policy, lr=0.05), objective, MicroBatches(40), frozen=frozen or {})


def parts(seed=0, shift=0.2):
    batch = completions(seed, shift)
    return [batch[:3], batch[3:]]


def step(made, batch, recompute=False):
    """The losses of both updates of a batch."""
    made.prepare(batch, recompute)
    losses = [made.update(number).metrics["loss"] for number in (0, 1)]
    made.finish()
    return losses


def test_a_pass_gives_pi_old_the_policys_own_likelihoods():
    made = learner()
    made.prepare(parts(), recompute=True)
    for completion in [one for part in made.mini_batches for one in part]:
        assert torch.equal(completion.logp_old, made.policy.logp_of(completion))
        assert not torch.equal(completion.logp_mu, completion.logp_old)


def test_completions_that_no_update_reads_take_no_pass():
    batch = parts()
    idle = copy.copy(batch[0][1])
    object.__setattr__(idle, "advantage", 0.0)
    batch[0][1] = idle
    made = learner()
    made.prepare(batch, recompute=True)
    assert made.mini_batches[0][1] is idle
    made.prepare([part[:2] for part in idle_parts(parts(), 1)], recompute=True)
    assert made.at == [(0, 0), (0, 1)]


def idle_parts(batch, *idle):
    """The batch, with no advantage in the mini-batches `idle`."""
    for part in idle:
        batch[part] = [replace(one, advantage=0.0) for one in batch[part]]
    return batch


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("stale", [False, True])
def test_a_batch_without_any_advantage_takes_no_pass_at_all(recompute, stale):
    made, passes = learner(epsilon="auto"), []
    step(made, parts())  # AdamW's moments are not zero afterwards
    forward, clip, before = made.policy.forward, made.clip, made.policy.table.detach().clone()
    made.policy.forward = lambda *batch, **asked: passes.append(1) or forward(*batch, **asked)
    made.prepare(idle_parts(parts(1), 0, 1), recompute, completions(3) if stale else ())
    first, second = made.update(0), made.update(1)
    assert not passes and made.finish() is False and made.clip == clip
    assert first.agreement is None and second.agreement is None and made.optimizer.updates == 4
    assert first.metrics["no_signal/completions"] == 1 and not torch.equal(made.policy.table, before)
    known = {"loss", "grad_norm", "lr", "updates/skipped", "no_signal/completions", "no_signal/backward"}
    assert {name for name in first.metrics if not name.startswith("clip_ratio/")} == known


@pytest.mark.parametrize("mode", ["sampler", "recompute", "R2", "stale"])
def test_numerics_show_without_the_momentum_of_updates_that_read_nothing(mode):
    """The first update reads nothing, but moves the weights. What sampled the batch differs by 1e-4 from the policy."""
    made = learner(router_replay="R2" if mode == "R2" else "none")
    step(made, parts(2))
    shifted = near(made.policy)
    recompute, fresh = mode == "recompute", shifted[3:] if mode == "stale" else ()
    given = parts(4) if mode == "stale" else [shifted[:3], shifted[3:]]
    made.prepare(idle_parts(given, 0), recompute, fresh)
    first, second = made.update(0), made.update(1)
    assert first.agreement is None and second.metrics["ratio/std"] > 1e-3  # momentum
    found = second.agreement
    assert 1e-10 < found.metrics["mismatch/kl"] < 1e-7 and found.noise < 1e-3 and (found.noise == 0) == recompute
    made.finish()


def near(policy):
    """Completions that a sampler drew whose log-probabilities are almost the policy's."""
    return [
        replace(one, logp_mu=logp, logp_old=logp, logp_ref=None)
        for one in completions(5)
        for logp in [policy.logp_of(one).detach() + 1e-4 * torch.linspace(-1, 1, len(one.logp_mu) + 1)[1:]]
    ]


def test_the_reference_says_what_it_says():
    reference = Bigram(seed=1)
    reference.on_device = torch.no_grad
    made = learner({"logp_ref": reference}, beta=0.1)
    made.prepare(parts(), recompute=False)
    for completion in [one for part in made.mini_batches for one in part]:
        assert torch.equal(completion.logp_ref, reference.logp_of(completion))


def test_only_the_first_update_of_a_batch_tells_what_numerics_do():
    made = learner()
    for seed in (0, 1):
        made.prepare(parts(seed, shift=1e-4), recompute=False)
        first, second = made.update(0), made.update(1)
        assert first.agreement is not None and second.agreement is None
        assert first.agreement.noise == pytest.approx(first.metrics["ratio/std"])
        assert first.agreement.clipped == first.metrics["clip_ratio/tokens"]
        assert first.agreement.metrics["mismatch/kl"] > 0


def test_numerics_of_a_stale_batch_show_on_fresh_completions():
    made = learner()
    fresh = completions(3, shift=0.0)  # of the present weights: nothing differs
    made.prepare(parts(shift=0.5), recompute=False, fresh=fresh)
    agreement = made.update(0).agreement
    assert agreement.clipped == 0 and agreement.noise < 1e-6 and agreement.metrics["mismatch/kl"] < 1e-9
    # Each sign of A counts one half, and clips on one side alone.
    assert learner().compare(fresh).clipped == 0 and learner().compare(completions(shift=0.5)).clipped == pytest.approx(0.5)


def four_times_as_long(completion):
    tokens = torch.cat([completion.tokens[:2], completion.tokens[2:].repeat(4)])
    columns = {name: getattr(completion, name).repeat(4) for name in ("logp_mu", "logp_old", "logp_ref")}
    return replace(completion, tokens=tokens, sampled=torch.arange(len(tokens)) >= 2, **columns)


def test_noise_of_short_probes_is_told_at_the_length_of_the_batch():
    """Rounding spreads ratios as 1 / sqrt(length): four times as long, half as wide."""
    fresh, batch = completions(3, shift=1e-3), parts(shift=0.5)
    longer = [[four_times_as_long(completion) for completion in part] for part in batch]
    noise = []
    for given in (batch, longer):
        made = learner()
        made.prepare(given, recompute=False, fresh=fresh)
        noise.append((made.update(0).agreement.noise, learner().compare(fresh, [*given[0], *given[1]]).noise))
    assert noise[0] == pytest.approx([2 * value for value in noise[1]], rel=0.01) and min(noise[1]) > 0


def test_noise_of_short_probes_meets_the_range_of_their_own_length():
    """With `epsilon_length` the clip range is wider for them by what their ratios spread more."""
    fresh, batch = completions(3, shift=1e-3), [*chain(*parts(shift=0.5))]
    longer = [four_times_as_long(completion) for completion in batch]
    made = learner(epsilon=1e-4, epsilon_high=1e-4, epsilon_length=1)
    assert made.compare(fresh, longer).clipped == made.compare(fresh, batch).clipped > 0


def test_a_saved_learner_goes_on_bit_for_bit(tmp_path):
    made = learner(epsilon="auto")
    for seed in (0, 1):
        step(made, parts(seed))
    made.save(tmp_path)
    again = learner(epsilon="auto")
    again.policy.load(tmp_path / "model")
    again.resume(tmp_path)
    assert again.clip == made.clip and again.optimizer.updates == 4
    for one in (made, again):
        step(one, parts(2), recompute=True)
    assert torch.equal(made.policy.table, again.policy.table) and again.clip == made.clip


def test_a_rewind_takes_the_weights_and_lowers_the_rate_and_counts_on(tmp_path):
    made = learner()
    made.prepare(parts(), recompute=False)
    made.update(0)
    made.save(tmp_path)
    kept = made.policy.table.detach().clone()
    made.update(1)
    made.rewind(tmp_path, 0.5)
    assert torch.equal(made.policy.table, kept) and made.optimizer.scale == 0.5 and made.optimizer.updates == 2
    made.rewind(tmp_path, 0.5)
    assert made.optimizer.scale == 0.25


def test_ratios_of_turns_and_tokens_begin_with_ranges_of_their_own():
    by_turn = [[replace(c, turn=torch.arange(len(c.logp_old))) for c in part] for part in parts()]
    made = learner(name="gspo_turn", epsilon="auto")
    made.prepare(by_turn, recompute=False)
    assert made.clip[0] == pytest.approx(0.058)  # turns of one token
    made = learner(name="grpo", epsilon="auto")
    made.prepare(parts(), recompute=False)
    assert made.clip == pytest.approx((0.2, 0.27))


def test_the_range_that_is_told_is_that_of_the_mean_length():
    by_turn = [[replace(c, turn=torch.arange(len(c.logp_old))) for c in part] for part in parts()]
    lengths = [len(c.logp_old) for part in by_turn for c in part]
    for name, length in (("gspo", sum(lengths) / len(lengths)), ("gspo_turn", 1)):
        made = learner(name=name, epsilon=0.19, epsilon_high=0.21, epsilon_length=9)
        assert made.clip == pytest.approx((0.19, 0.21))  # before any batch
        made.prepare(by_turn, recompute=False)
        k = 3 / length**0.5
        assert made.clip == pytest.approx((1 - 0.81**k, 1.21**k - 1))


def test_an_override_of_the_rate_is_in_no_checkpoint(tmp_path):
    made, again = learner(), learner()
    made.override_lr(0.25)
    made.prepare(parts(), recompute=False)
    assert made.update(0).metrics["lr"] == 0.25
    made.save(tmp_path)
    again.policy.load(tmp_path / "model")
    again.resume(tmp_path)
    made.override_lr(None)
    for one in (made, again):
        one.prepare(parts(1), recompute=False)
    assert made.update(0).metrics["lr"] == again.update(0).metrics["lr"] == made.optimizer.config.lr
    made.override_lr(0.25)
    made.rewind(tmp_path, 0.5)
    made.prepare(parts(2), recompute=False)
    assert made.update(0).metrics["lr"] == 0.25  # it was asked for, whatever rewinds have made of the run's own
    made.override_lr(None)
    assert made.update(1).metrics["lr"] == 0.5 * made.optimizer.config.lr


def test_published_weights_are_the_policys_of_now():
    made = learner()
    made.prepare(parts(), recompute=False)
    weights = made.publish(7)
    made.update(0)
    assert weights.version == 7 and dict(weights.tensors())["table"] is made.policy.table
    rows = completions()
    for logp, reading, completion in zip(made.read(rows), weights.read(rows), rows):
        assert torch.equal(logp, reading.logp) and torch.equal(logp, made.policy.logp_of(completion))
