import re

import pytest

from gspo.demo.word_sums import held_out, last_number, right, training


def test_answers_are_right_and_held_out_sums_are_never_trained_on():
    sums = {}
    for name, rows in (("training", training()), ("held out", held_out())):
        sums[name] = set()
        for row in rows:
            a, b = map(int, re.findall(r"\d+", row["prompt"]))
            sign = 1 if "gets" in row["prompt"] else -1
            assert row["answer"] == str(a + sign * b) and a + sign * b > 0
            sums[name].add((a, sign, b))
        assert len({row["prompt"] for row in rows}) == len(rows)
    assert len(sums["held out"]) > 40 and not sums["held out"] & sums["training"]
    assert training(seed=1) != training() and training(10) == training(10)


@pytest.mark.parametrize(
    "text, number",
    [
        ("Ben has 2 + 3 = 5 shells now.", "5"),
        (" 5 shells. ", "5"),
        ("Ben has 2 + 3 = 5 shells now", None),
        ("Ben has 5 shells. Well done.", None),
        ("Ben has 5 shells.\nOr 6.", None),
        ("Five.", None),
        ("2 of Ben's 5.", "5"),
    ],
)
def test_only_one_sentence_counts(text, number):
    assert last_number(text) == number
    assert right([""], [text], answer=["5"]) == [float(number == "5")]
