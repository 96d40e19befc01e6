"""Gradients of groups by many objectives at once: against one update each, and through the sketch."""

import pytest
import torch
from probe.gradients import Sketch, coefficients, of_group
from torch import nn

from gspo.objective.algorithms import ALGORITHMS
from tests.bigram import Bigram
from tests.learner.cases import completions, objective_of
from tests.learner.test_update import gradient_of

ROWS = [name for name, row in ALGORITHMS.items() if not row.critic]


@pytest.mark.parametrize("max_tokens", [10_000, 9])
def test_they_are_those_of_an_update(max_tokens):
    policy, batch = Bigram(), completions()
    sketch = Sketch(policy.parameters())
    wanted = {name: ("one", coefficients(objective_of(name))) for name in ROWS}
    found = of_group(policy, {"one": batch}, wanted, sketch, max_tokens)
    for name in ROWS:
        _, gradient = gradient_of(name, batch)
        expected = -gradient.flatten() * objective_of(name).denominator(batch)
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ROWS)
def test_on_policy_all_of_a_family_are_one(name):
    """Mean over tokens of A grad log pi, or their sum, whatever the stale likelihoods say."""
    policy, batch = Bigram(), completions(shift=0.5)
    like = "dapo" if ALGORITHMS[name].sums else "reinforce"
    wanted = {each: ("one", coefficients(objective_of(each), on_policy=True)) for each in (name, like)}
    found = of_group(policy, {"one": batch}, wanted, Sketch(policy.parameters()), 100)
    torch.testing.assert_close(found[name], found[like], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("block", [1 << 22, 1 << 12], ids=["kept places", "drawn again"])
def test_a_sketch_keeps_products(monkeypatch, block):
    monkeypatch.setattr("probe.gradients.BLOCK", block)
    g = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(300, 700)), nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(90_001))]
    sketch = Sketch(parameters, size=4096)
    assert not sketch.exact
    a, b = ([torch.randn(p.shape, generator=g) for p in parameters] for _ in range(2))
    c = [x + 0.5 * z for x, z in zip(a, b)]
    flat = [torch.cat([x.flatten() for x in each]) for each in (a, b, c)]
    kept = [sketch.of(each) for each in (a, b, c)]
    torch.testing.assert_close(kept[2], kept[0] + 0.5 * kept[1], rtol=1e-4, atol=1e-4)
    for i in range(3):
        for j in range(3):
            error = abs(float(kept[i] @ kept[j] - flat[i] @ flat[j])) / float(flat[i].norm() * flat[j].norm())
            assert error < 5 / 4096**0.5
    column = torch.zeros(300, 700)
    column[:, 3] = torch.randn(300, generator=g)  # one input is large: a gradient of few columns
    d, e = [column, None, None], [column.roll(1, 0), None, None]
    error = abs(float(sketch.of(d) @ sketch.of(e) - (d[0] * e[0]).sum())) / float(column.norm() ** 2)
    assert error < 5 / 4096**0.5
    assert torch.equal(sketch.of([a[0], None, a[2]]), sketch.of([a[0], torch.zeros(50), a[2]]))
    assert torch.equal(sketch.of([None, None, None]), torch.zeros(4096))
