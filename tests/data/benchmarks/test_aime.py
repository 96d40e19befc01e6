from decimal import Decimal

import numpy as np
import pytest

from gspo.data.benchmarks.aime import ASK, aime_row, answer_row

SCHEMAS = {
    "2024-I-1": {"ID": "2024-I-1", "Problem": "What is 1 + 1?", "Solution": "2 of course", "Answer": 2},
    "60": {"id": 60, "problem": "What is 1 + 1?", "solution": "", "answer": "002", "url": "https://", "year": "2024"},
    "7": {"problem": "What is 1 + 1?", "solution": "First $\\boxed{3}$, no: $\\boxed{2}$."},
}


def test_three_schemas_give_the_same_problem():
    for name, row in SCHEMAS.items():
        assert aime_row(row, 7) == {"prompt": f"What is 1 + 1?\n\n{ASK}", "answer": "2", "id": name}


def test_what_is_no_problem_of_aime_is_refused(subtests):
    for row, why in (
        ({"text": "1 + 1"}, "there is no column problem, question or prompt with text; it has text"),
        ({"problem": " ", "answer": 2}, "there is no column problem"),
        ({"problem": "1 + 1", "answer": "two"}, "the answer is 'two'; AIME's are whole numbers from 0 to 999"),
        ({"problem": "1 + 1", "answer": 1000}, "the answer is '1000'"),
        ({"problem": "1 + 1", "answer": None, "solution": "two"}, "there is no answer"),
        ({"problem": "1 + 1", "answer": ["2"]}, "there is no answer: expected text or a number in answer"),
        ({"problem": "1 + 1", "answer": {"value": 2}}, "there is no answer"),
        ({"problem": "1 + 1", "answer": True}, "there is no answer"),
        ({"problem": [{"role": "user", "content": "1 + 1"}], "answer": 2}, "there is no column problem"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            aime_row(row, 0)


def test_other_answers_are_read_as_they_are():
    assert answer_row({"question": "?", "answer": "\\frac{1}{2}"}, 3)["answer"] == "\\frac{1}{2}"
    assert answer_row({"problem": "?", "solution": "so \\boxed{\\frac{1}{2}}"}, 3)["answer"] == "\\frac{1}{2}"
    for number in (np.int64(2), np.str_("2"), Decimal(2), 2):  # a function, pandas and Parquet give numbers of their own
        assert answer_row({"problem": "?", "answer": number}, 3)["answer"] == "2"
