"""Scores from n replies per problem: avg@n, pass@k, maj@k, and two intervals that answer different questions.

"Over these problems" asks what other replies of the same model to the same problems would score: only sampling varies. "Over
problems like these" asks what the model would score on other problems of the kind: the problems vary too
(intervals.accuracy_interval).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from gspo.statistics.intervals import Interval, student, wilson


def passes(n: int, c: int, k: int) -> float:
    """pass@k: the probability that at least one of k replies is correct, drawn from n >= k replies of which c are correct
    (arXiv 2107.03374, equation 1).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(votes: Sequence[Hashable | None], right: Sequence[bool], k: int) -> float:
    """maj@k: the probability that the most frequent answer among k of these replies is correct, over all choices of k.

    All correct replies count as the same answer, however they write it. A reply without an answer, None, does not vote,
    correct or not. Ties are broken at random.
    """
    n = len(votes)
    correct = sum(good for vote, good in zip(votes, right) if vote is not None)
    wrong = Counter(vote for vote, good in zip(votes, right) if not good and vote is not None)
    silent = n - correct - sum(wrong.values())
    total = 0.0
    for most in range(1, min(correct, k) + 1):
        rest = k - most
        for (voted, ties), ways in _ways(list(wrong.values()), most, rest).items():
            total += math.comb(correct, most) * ways * math.comb(silent, rest - voted) / (ties + 1)
    return total / math.comb(n, k)


def _ways(counts: Sequence[int], most: int, size: int) -> dict[tuple[int, int], int]:
    """The number of ways to choose replies with wrong answers, by (replies chosen, answers with `most` votes). At most
    `size` replies are chosen, and no answer gets more than `most`. `counts`: replies per wrong answer.
    """
    ways = Counter({(0, 0): 1})
    for count in counts:
        grown = Counter[tuple[int, int]]()
        for (voted, ties), number in ways.items():
            for taken in range(min(count, most, size - voted) + 1):
                grown[voted + taken, ties + (taken == most)] += number * math.comb(count, taken)
        ways = grown
    return ways


def over_these(correct: Sequence[int], n: int) -> Interval:
    """avg@n and its interval over these problems: what n other replies to each would score.

    `correct`: correct replies per problem. Wilson's interval, for the number of independent replies with the same variance;
    the variance is that within problems. The ends are NaN for n = 1, which does not show it.
    """
    mean = sum(correct) / (n * len(correct)) if correct else math.nan
    if n < 2 or not correct:
        return Interval(mean, math.nan, math.nan, len(correct))
    variance = sum(c * (n - c) for c in correct) / (n * n * (n - 1)) / len(correct) ** 2
    return Interval(mean, *wilson(mean, variance, n * len(correct), student((n - 1) * len(correct))), len(correct))


def ladder(n: int) -> list[int]:
    """The values of k for which pass@k and maj@k are reported: powers of two, and n."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
