"""Sums of two steps."""

from gspo.recipes import arithmetic


def test_worked_answers_are_right_and_held_out_sums_are_never_trained_on():
    sums = {}
    for rows in (arithmetic.cold_start, arithmetic.training, arithmetic.held_out):
        sums[rows] = set()
        for row in rows():
            steps = row["completion"].split(". ")
            for step in steps[:2]:
                left, result = step.split(" = ")
                assert eval(left) == int(result)
            sums[rows].add(tuple(steps[:2]))
            assert arithmetic.right([], [row["completion"], steps[1]], [row["answer"]] * 2) == [1, 0]
            assert arithmetic.right([], [row["completion"]], ["1" + row["answer"]]) == [0]
    assert all(sums.values()) and not sums[arithmetic.held_out] & (sums[arithmetic.cold_start] | sums[arithmetic.training])
