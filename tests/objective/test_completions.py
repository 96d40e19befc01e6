import torch

from gspo.objective.completions import Completions

X = torch.tensor([1.0, 2.0, 4.0, 8.0, 15.0])


def test_sums_and_means_by_hand():
    y = Completions.of(torch.tensor([2, 0, 3]))
    assert y.completion.tolist() == [0, 0, 2, 2, 2]
    assert y.sum(X).tolist() == [3, 0, 27]
    assert y.mean(X)[[0, 2]].tolist() == [1.5, 9]


def test_the_gradient_of_a_mean_is_one_over_the_length():
    y = Completions.of(torch.tensor([2, 3]))
    x = X.double().requires_grad_()
    y.mean(x).sum().backward()
    assert x.grad.tolist() == [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3]


def test_a_value_of_each_completion_at_each_token():
    y = Completions.of(torch.tensor([2, 3]))
    assert y.spread(torch.tensor([5.0, 7.0])).tolist() == [5, 5, 7, 7, 7]
    assert y.spread(X) is X
    ones = Completions.of(torch.tensor([1, 1]))  # a token each: either way the same
    assert ones.spread(X[:2]).tolist() == [1, 2]


def test_turns_by_hand():
    y = Completions.of(torch.tensor([3, 2]), turn=torch.tensor([0, 0, 1, 1, 3]))
    assert y.turns().completion.tolist() == [0, 0, 1, 2, 3]  # the next completion's turn 1 is another
    assert y.turns().length.tolist() == [2, 1, 1, 1]
    assert y.turns().sum(X).tolist() == [3, 4, 8, 15]


def test_without_turns_each_completion_is_one():
    y, none = Completions.of(torch.tensor([3, 2])), torch.tensor([], dtype=torch.long)
    assert y.turns() is y
    assert len(Completions.of(none, turn=none).turns().length) == 0
