import dataclasses
import math
import random
import weakref

import pytest
import torch

from gspo.learner import layout
from gspo.learner.imitation import Imitation
from gspo.objective.algorithms import ALGORITHMS
from gspo.types import Completion
from tests.adding import AsTheyCome
from tests.bigram import Bigram
from tests.learner.cases import LENGTHS, completions, objective_of, updater_of
from tests.objective.reference import objective


def without_reference(batch, **changes):
    return [dataclasses.replace(r, logp_ref=None, **changes) for r in batch]


def gradient_of(name, batch, max_tokens=10_000, beta=0.0):
    _, (gradient,), metrics = watched_update(name, batch, max_tokens, beta=beta)
    return metrics, gradient


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_whole_update_equals_the_naive_loop(name):
    batch, policy, row = without_reference(completions()), Bigram(), ALGORITHMS[name]
    metrics, gradient = gradient_of(name, batch)
    logp = torch.cat([policy.logp_of(r) for r in batch])
    # advantages pass through float32 in a batch
    A = [float(torch.tensor(r.advantage, dtype=torch.float32)) for r in batch]
    old = torch.cat([r.logp_old for r in batch])
    expected = -objective(name, logp, old, A, LENGTHS, row.epsilon, row.epsilon_high, 9, **row.constants)
    assert metrics["loss"] == pytest.approx(float(expected), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, policy.table)[0], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_micro_batches_and_order_change_no_gradient(name, beta):
    batch = completions()
    expected, whole = gradient_of(name, batch, beta=beta)
    expected.pop("no_signal/backward")  # of micro-batches that are clipped wholly
    for seed, budget in enumerate((1, 12, 30)):
        shuffled = random.Random(seed).sample(batch, len(batch))
        metrics, parts = gradient_of(name, shuffled, budget, beta)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-15)
        assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-9, nan_ok=True)


class Watched(Bigram):
    """Notes the completions of each forward pass, and whether its backward pass was run."""

    def __init__(self):
        super().__init__()
        self.read, self.passed = [], []

    def forward(self, batch, **asked):
        out = super().forward(batch, **asked)
        number = len(self.read)
        self.read.append(len(batch.length))
        if out.logp.requires_grad:
            out.logp.register_hook(lambda gradient: self.passed.append(number))
        return out


def watched_update(name, batch, max_tokens=10_000, steps=1, **config):
    """The policy after updates, their gradients, and the last one's metrics."""
    policy, kept = Watched(), []
    learner = updater_of(policy, max_tokens, lr=1e-3, max_grad_norm=1e9)
    adamw, step = learner.optimizer.adamw, learner.optimizer.adamw.step
    adamw.step = lambda: (kept.append(policy.table.grad.clone()), step())
    for some in batch if steps > 1 else [batch]:
        metrics, _ = learner.update(objective_of(name, **config), some)
        metrics |= learner.skipped
    return policy, kept, metrics


def full_gradient(name, batch, table=None, **config):
    """Of all completions in one pass, nothing left out."""
    policy = Bigram()
    if table is not None:
        policy.table = table.detach().clone().requires_grad_()
    objective, built = objective_of(name, **config), layout.build(batch)
    terms, _ = objective.terms(policy.forward(built, entropy=True), built)
    (terms.sum() / objective.denominator(batch)).backward()
    return policy.table.grad


def test_sums_are_added_up_in_one_order_and_the_callers_mode_is_kept():
    with AsTheyCome() as seen:
        gradient_of("gspo", completions())
    assert seen.sums and not seen.loose  # the gradient of Bigram's table[tokens]
    assert torch.get_deterministic_debug_mode() == 0 and torch.utils.deterministic.fill_uninitialized_memory
    with AsTheyCome() as seen:
        torch.zeros(2, requires_grad=True)[torch.tensor([0, 0])].sum().backward()
        torch.zeros(2)[torch.tensor([0, 0])] = 1.0
        assert not seen.races
        torch.zeros(2)[torch.tensor([0, 0])] = torch.tensor([1.0, 2.0])
    assert seen.loose == seen.races == 1


def some_idle(every=2):
    return [dataclasses.replace(r, advantage=0.0 if i % every else r.advantage) for i, r in enumerate(completions())]


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if not row.critic])
@pytest.mark.parametrize("max_tokens", [10_000, 1])
def test_what_has_zero_gradient_is_left_out_and_changes_nothing(name, max_tokens):
    batch = without_reference(some_idle())
    policy, (gradient,), metrics = watched_update(name, batch, max_tokens)
    assert sum(policy.read) == 3  # the others have A = 0
    torch.testing.assert_close(gradient, full_gradient(name, batch), rtol=1e-12, atol=0)
    tokens = [len(r.logp_old) for r in batch]
    assert metrics["no_signal/completions"] == pytest.approx(sum(tokens[1::2]) / sum(tokens))
    assert metrics["no_signal/backward"] == pytest.approx(
        sum(n for i, n in enumerate(sorted(tokens[::2])) if max_tokens == 1 and i not in policy.passed) / sum(tokens)
    )


def test_clipped_micro_batches_skip_their_backward_pass():
    batch = without_reference(completions())
    policy, (gradient,), metrics = watched_update("gspo", batch, 1)
    assert len(policy.read) == 6 and 0 < len(policy.passed) < 6
    assert 0 < metrics["no_signal/backward"] == pytest.approx(metrics["clip_ratio/tokens"])
    torch.testing.assert_close(gradient, full_gradient("gspo", batch), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("name", "sums"), [("gspo", False), ("grpo", False), ("dapo", True), ("dr_grpo", True)])
@pytest.mark.parametrize("max_tokens", [10_000, 1])
def test_the_entropy_bonus_is_that_of_a_naive_loop(name, sums, max_tokens):
    batch = without_reference(some_idle())
    policy, (gradient,), metrics = watched_update(name, batch, max_tokens, entropy_bonus=0.3)
    table = Bigram().table
    bonus = torch.zeros((), dtype=torch.float64)
    for completion in batch:
        rows = [table[completion.tokens[t - 1]] for t in range(len(completion.tokens)) if completion.sampled[t]]
        H = [-sum(p * p.log() for p in row.softmax(-1)) for row in rows]
        bonus = bonus + sum(H) / (1 if sums else len(H))
    objective = objective_of(name, entropy_bonus=0.3)
    (0.3 * bonus / objective.denominator(batch)).backward()
    torch.testing.assert_close(gradient, full_gradient(name, batch) - table.grad, rtol=1e-10, atol=1e-14)
    assert metrics["no_signal/completions"] == 0 and len(policy.passed) == (len(batch) if max_tokens == 1 else 1)


@pytest.mark.parametrize("name", ["gspo", "luspo", "gspo_token", "gspo_turn"])
@pytest.mark.parametrize("max_tokens", [10_000, 1])
def test_fspos_band_is_that_of_a_naive_loop(name, max_tokens):
    """log W = sum_t log w_t of a completion, or of a turn, is held within [-c_low sqrt(|y|), c_high sqrt(|y|)]."""
    batch = [dataclasses.replace(c, turn=torch.arange(len(c.logp_old)) // 3) for c in without_reference(completions())]
    c_low, c_high = -math.log(0.97) * 16**0.5, math.log(1.021) * 16**0.5
    policy, total, clipped = Bigram(), torch.zeros((), dtype=torch.float64), 0
    for c in batch:
        A, log_w = float(torch.tensor(c.advantage)), policy.logp_of(c) - c.logp_old
        parts = [log_w] if name != "gspo_turn" else [log_w[c.turn == turn] for turn in c.turn.unique()]
        for part in parts:
            log_W, n = part.sum(), len(part)
            low, high = -c_low * n**0.5, c_high * n**0.5
            term = torch.minimum((log_W / n).exp() * A, (log_W.clamp(low, high) / n).exp() * A)
            total = total - term * (n if name == "luspo" else n / len(log_w)) / len(batch)
            clipped += n * bool((log_W < low and A < 0) or (log_W > high and A > 0))
    (expected,) = torch.autograd.grad(total, policy.table)
    band = {"epsilon": 0.03, "epsilon_high": 0.021, "epsilon_length": 16}
    _, (gradient,), metrics = watched_update(name, batch, max_tokens, **band)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-12)
    assert metrics["clip_ratio/tokens"] == pytest.approx(clipped / sum(LENGTHS)) and 0 < clipped < sum(LENGTHS)
    _, (fixed,), _ = watched_update(name, batch, max_tokens, epsilon=0.03, epsilon_high=0.021)
    assert not torch.allclose(fixed, expected)


@pytest.mark.parametrize("config", [{"beta": 0.1}, {"aux_loss": 0.1}, {"entropy_bonus": 0.1}])
def test_nothing_is_left_out_where_another_term_has_a_gradient(config):
    batch = some_idle()
    assert not any(map(objective_of(**config).idle, batch))
    if "beta" in config:
        policy, (gradient,), metrics = watched_update("gspo", batch, 1, **config)
        assert len(policy.passed) == 6 and metrics["no_signal/completions"] == metrics["no_signal/backward"] == 0
        torch.testing.assert_close(gradient, full_gradient("gspo", batch, **config), rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [False, True])
def test_one_long_completion_that_does_not_fit_ends_the_halving(share):
    sizes, said = [], []

    class Small(Bigram):
        shares_prompts = share

        def forward(self, batch, **asked):
            sizes.append(len(batch.forest.tokens))
            if sizes[-1] > 800:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().forward(batch, **asked)

    def long(size):
        return Completion(torch.arange(size) % 12, torch.arange(size) >= size - 1, torch.zeros(1), torch.zeros(1), 1.0)

    learner = updater_of(Small(), 1500, said.append)
    with pytest.raises(RuntimeError, match="out of memory with one completion of 1000 tokens"):
        learner.update(Imitation(), [long(1000), long(10), long(11), long(300)])
    assert len(said) <= 3 and learner.micro_batches.max_tokens <= 1500 // 2 ** len(said)


def test_a_micro_batch_without_backward_pass_leaves_no_graph_behind():
    kept = []

    class Keeps(torch.autograd.Function):
        """Keeps something for its backward pass."""

        @staticmethod
        def forward(ctx, x):
            ctx.activations = x.clone()
            kept.append(weakref.ref(ctx.activations))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Counted(Watched):
        def forward(self, batch, **asked):
            assert not [ref for ref in kept if ref() is not None]
            out = super().forward(batch, **asked)
            return out._replace(logp=Keeps.apply(out.logp))

    clipped = [dataclasses.replace(r, advantage=1.0, logp_old=r.logp_old - 9) for r in completions()]
    policy = Counted()
    updater_of(policy, 9).update(objective_of(), clipped)
    assert len(kept) > 2 and not policy.passed


def test_advantages_by_token_are_idle_only_if_all_are_zero():
    objective, completion = objective_of("gspo_token"), completions()[0]
    assert objective.idle(dataclasses.replace(completion, advantage=torch.zeros(3)))
    assert not objective.idle(dataclasses.replace(completion, advantage=torch.tensor([0.0, 0.1, 0.0])))


def test_an_update_without_any_gradient_still_shows_the_optimizer_zeros():
    """Its momentum then moves the weights, as if all had been computed; of what is idle nothing is read."""
    first, nothing = without_reference(completions()), without_reference(completions(1), advantage=0.0)
    clipped = [dataclasses.replace(r, logp_old=r.logp_old - 9) for r in without_reference(completions(2), advantage=1.0)]
    for some, reads in ((nothing, 0), (clipped, len(LENGTHS))):
        batch = [first, some, some]
        for order in (batch, batch[::-1]):  # after a signal and before any
            policy, gradients, metrics = watched_update("gspo", order, 1, steps=3)
            moved = Bigram()
            adamw = torch.optim.AdamW([moved.table], lr=1e-3, weight_decay=0.0)
            for part in order:
                moved.table.grad = full_gradient("gspo", part, table=moved.table)
                adamw.step()
            torch.testing.assert_close(policy.table, moved.table, rtol=1e-12, atol=0)
            alone = watched_update("gspo", first, 1)[0]
            assert len(policy.read) == len(alone.read) + 2 * reads and len(gradients) == 3
            assert len(policy.passed) <= len(alone.read)
            if order is batch:
                assert metrics["no_signal/completions"] == (not reads) and metrics["no_signal/backward"] == bool(reads)
                assert metrics["loss"] == 0 if not reads else metrics["loss"] != 0
                assert metrics["grad_norm"] == 0 and metrics["clip_ratio/tokens"] == bool(reads)
                assert ("entropy" in metrics) == bool(reads)


def test_clip_fractions_count_idle_completions_too():
    batch = without_reference(some_idle(every=3))
    _, _, left_out = watched_update("gspo", batch)
    objective, built = objective_of(), layout.build(batch)
    _, stats = objective.terms(Bigram().forward(built, entropy=True), built)
    whole = objective.summary(stats)
    for name in ("low_mean", "high_mean", "region_mean", "tokens", "completions", "positive", "negative"):
        assert left_out[f"clip_ratio/{name}"] == pytest.approx(whole[f"clip_ratio/{name}"], nan_ok=True)


def test_advantages_by_token_train_gspo_token():
    plain = without_reference(completions())
    by_token = [dataclasses.replace(r, advantage=torch.full((len(r.logp_old),), r.advantage)) for r in plain]
    torch.testing.assert_close(gradient_of("gspo_token", by_token)[1], gradient_of("gspo", plain)[1])
