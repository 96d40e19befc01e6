import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import graders
from gspo.rewards.answers import boxed, final, integer, normal, same, tagged


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{12} no wait \boxed{33}", "33"), (r"\boxed{33} \boxed{3", ""), ("33", None), (r"\boxed{33", ""),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{\{1, 2\}} }", r"\{1, 2\}"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"), (r"\boxed{\boxed{7}}", "7"), (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"), (r"\boxed 7 or 8", "7"), (r"\boxed", ""), (r"\boxed{}", ""), (r"\boxed{ 7 }", "7"),
        (r"\boxedin{3}", None), (r"\boxed{7}\unboxed{9}", "7"), (r"\boxed{a\}", ""),
    ],
)  # fmt: skip
def test_the_last_box_wins(text, box):
    assert boxed(text) == box


@settings(deadline=None)
@given(st.text("a{}\\b ", max_size=30))
def test_a_box_around_balanced_text_gives_it_back(text):
    depth = 0
    for before, c in zip(" " + text, text):
        depth += (c == "{") - (c == "}") if before != "\\" else 0
        if depth < 0:
            return
    if depth == 0 and "\\\\" not in text and not text.endswith("\\"):
        assert boxed(rf"so \boxed{{{text}}} is it") == text.strip()


def test_a_long_completion_of_boxes_and_braces_is_read_quickly():
    begin = time.process_time()
    assert boxed(r"\boxed{" * 200_000) == ""
    assert boxed("\\boxed{" + "{" * 500_000) == ""
    assert time.process_time() - begin < 10


def test_tags_come_before_boxes_and_may_hold_one():
    assert tagged("<answer>1</answer> <answer> 2 </answer>") == "2"
    assert final(r"\boxed{1} <answer>2</answer> \boxed{3}") == "2"
    assert final(r"<answer>it is \boxed{4}</answer>") == "4"
    assert final(r"I think \boxed{5}") == "5"
    assert final("I think 5") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("033", 33), ("+33", 33), ("-33", -33), ("1,234", 1234), ("1{,}234", 1234), (r"1\,234", 1234), (r"\text{33}", 33),
        ("$33$", 33), ("33.", 33), ("33.0", 33), (r"\mathbf{\text{33}}", 33), ("33.5", None), (r"33\%", None),
        ("1,23", None), ("x", None), ("", None), ("٣", None), ("1" * 5000, None), ("33 34", None), (" 33 ", 33),
    ],
)  # fmt: skip
def test_integers_as_people_write_them(text, number):
    assert integer(text) == number


def test_equal_integers_vote_alike():
    assert normal("033") == normal(r"\text{33}") == "33"
    assert normal(r"\frac{1}{2} ") == r"\frac{1}{2}"


@pytest.mark.parametrize(
    ("answer", "right", "is_right"),
    [
        ("33", "033", 1), ("034", "33", 0), (r"33\%", "33", 0), ("33%", "33", 0), (r"33\%", "0.33", 1),
        (r"33\%", r"33\%", 1), ("33", r"33\%", 1), (r"\frac{66}{2}", "33", 1), ("33.0", "33", 1), (r"\$33", "33", 1),
        (r"\$1,234.50", "1234.5", 1), (r"\$1,234.50", "1234.6", 0), ("$33", r"\$33", 1), ("$1234.5", r"\$1,234.50", 1),
        (r"33 \text{ miles}", "33", 1), ("x = 33", "33", 1), (r"33^\circ", "33", 1), (r"\text{Evelyn}", "Evelyn", 1),
        (r"\text{ Evelyn }", r"\text{Evelyn}", 1), ("Eve", "Evelyn", 0), (r"\{2, 1\}", r"\{1, 2\}", 1),
        (r"\frac12", "0.5", 1), (r"\sqrt{12}", r"2\sqrt{3}", 1), ("", "33", 0), ("(1, 2)", "(1,2)", 1),
        ("99999999999999999999", "99999999999999999998", 0), ("3" * 4500, "33", 0),
    ],
)  # fmt: skip
def test_the_same_answer_in_another_form(answer, right, is_right):
    assert same(answer, right) == is_right


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        (r"\boxed{12} no wait \boxed{33}", 1), (r"\boxed{33} no wait \boxed{12}", 0), (r"\boxed{33\%}", 0),
        ("It is 33%.", 0), (r"It is $33\%$.", 0), ("It is 33.", 1), (r"\boxed{\$33}", 1), (r"\boxed{\$34}", 0),
        (r"\boxed{\$33.00}", 1), (r"\boxed{\$\frac{66}{2}}", 1), (r"\boxed{33} and so \boxed{3", 0), (r"\boxed{33", 0),
        (r"\boxed{033}", 1), (r"\boxed{\text{33}}", 1), (r"\boxed{\frac{330}{10}}", 1),
        (r"<think>\boxed{33}</think> \boxed{12}", 0), ("", 0), (r"<think>\boxed{33}", 0),
    ],
)  # fmt: skip
def test_the_reward_math_reads_the_last_box(completion, right):
    score = graders.load("math", RewardConfig(functions=["math"]), TaskConfig()).score
    assert score(graders.RewardInput("?", completion, "", {"answer": "33"})) == right


def test_the_right_answer_is_read_from_a_box_or_refused():
    score = graders.load("math", RewardConfig(functions=["math"]), TaskConfig()).score
    assert score(graders.RewardInput("?", r"\boxed{33}", "", {"answer": r"So it is $\boxed{033}$."})) == 1
    with pytest.raises(ValueError, match="math-verify cannot read the right answer"):
        score(graders.RewardInput("?", r"\boxed{33}", "", {"answer": r"$$"}))
