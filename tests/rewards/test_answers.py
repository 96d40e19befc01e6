import string
import time
from pathlib import Path

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import graders
from gspo.rewards.answers import boxed, final, found, integer, normal, same, tagged


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
        ("1,23", None), ("x", None), ("", None), ("٣", 3), ("0 123", None), ("0,123", None), ("x₁", None),
        ("１２", 12), ("1 000", 1000), ("1 00", None), ("−5", -5),
        ("1" * 5000, None), ("33 34", None), (" 33 ", 33), ("120, 240", None), ("120,\n240", None), (r"120,\ 240", None),
        (r"1,\!000", 1000), (r"\text{120, }240", None),
    ],
)  # fmt: skip
def test_integers_as_people_write_them(text, number):
    assert integer(text) == number


def test_equal_integers_vote_alike():
    assert normal("033") == normal(r"\text{33}") == "33"
    assert normal(r"\frac{1}{2} ") == r"\frac{1}{2}"
    assert normal("10,100") == "10100" != normal("10, 100")
    assert normal("(B) 72") == normal(r"\textbf{(B) }72\text{ clips}") == normal("B") == "B" != normal("(B) or (C)")


PAIRS = [line.split(" ;; ") for line in Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").splitlines()]


def test_answers_are_right_exactly_if_they_are_equal():
    """Each line of pairs.txt is an answer and a right one, equal (=) or not (!)."""
    assert [*map(len, PAIRS)] == [3] * len(PAIRS) and sum(sign == "!" for sign, *_ in PAIRS) >= 150
    assert [pair for pair in PAIRS if same(*pair[1:]) != (pair[0] == "=")] == []


def test_equality_has_two_sides():
    """What is not right for one is not right for the other, and each answer is right for itself."""
    assert [pair for pair in PAIRS if pair[0] == "!" and not {*"%％"} & {*"".join(pair)} and same(*pair[:0:-1])] == []
    assert [text for pair in PAIRS for text in pair[1:] if not same(text, text)] == []


def test_an_equation_for_a_right_answer_is_more_than_its_right_side():
    assert same("x+y=5", "5") and not same("5", "x+y=5")


def test_a_value_and_its_amount_differ_whatever_the_letter():
    for letter in string.ascii_letters:
        if letter not in "ei":
            assert not same(f"|{letter}|", letter) and not same(rf"\sqrt{{{letter}^2}}", letter), letter
            assert same(rf"\ln(-x{letter})", rf"\ln(-{letter}x)") and same(f"|{letter}x|", f"|x{letter}|"), letter


HOSTILE = (
    "10^{10^{10}}", "2^{2^{2^{2^{2^{2}}}}}", "(9^{9^{9}})!", "5000!!!", "1e99999999", "\\tan(10^{900})",
    "x^{100000}+y^{99999}",
    "\\lfloor 10^{900}\\pi \\rfloor", "1.0000000001^{10000000000}", "2^{99999}/3^{60000}", "\\binom{100000}{50000}",
    "(" * 900,
    "-" * 900 + "1",
    "5" + "!" * 900, "5" + "%" * 900, "5" + " abcd" * 180, "|x" * 200, "9" * 4500, ",".join(["\\sqrt{2}"] * 100),
    "+".join(["\\frac{1}{4000!}"] * 50), "+".join(["e^{100x}"] * 100), "\\sqrt{" * 40 + "2" + "}" * 40, "<".join("x" * 400),
    "\\text{" * 100, "5 \\text{" + "a/" * 300 + "}", "1" + "\\pm1" * 8, "3!" * 99, "x" + "\\approx1" * 90, "x'" * 99,
    "5" + "\\mathrm{i}" * 90,
)  # fmt: skip


def test_no_text_without_a_box_takes_long():
    for part in (r"\( ", "\\[\n", r"\( \\ ", "answer: ", "5五"):
        begin = time.process_time()
        assert not found(part * 16_000, "72")
        assert time.process_time() - begin < 5, part


def test_no_answer_takes_long():
    for text in HOSTILE:
        begin = time.process_time()
        assert not same(text, "7") and not same(text, f"{text}+1") and not same(f"\\sqrt{{2}}+{text}", f"\\sqrt{{3}}+{text}")
        assert not found(f"so {text}", "7")
        assert time.process_time() - begin < 5, text


def test_a_result_without_a_box_is_the_last_one_or_the_one_that_is_called_the_answer():
    for text, right, is_right in (
        ("It is $\\frac{1}{2}$.", "0.5", 1), ("It is \\(x^2\\), so 7", "7", 1), ("3 apples, then \\[4\\]", "4", 1),
        ("The answer is 5, as 3 < 4.", "5", 1), ("The answer is 5, as 3 < 4.", "4", 0), ("x^2+1", "1+x^2", 1), ("12", "2",
        0),
        ("between 1/3 and 1/2", "1/2", 1), ("it costs 1,234.50 in all", "1234.5", 1), ("Answer: $x = 3$ and so 4", "3", 1),
        ("The answer is Paris.", "Paris", 1), ("So the answer is: **B**\nBye.", "B", 1), ("the answer is B", "A", 0),
        ("The answer is \\frac{1}{2}.", "0.5", 1), ("The answer is \\frac{1}{2}.", "1", 0),
        ("The answer is \\sqrt{3}, about 1.7", "3", 0), ("The answer is 2\\sqrt{3}", "2", 0),
        ("The answer is x^2+1.", "x^2+1", 1), ("The answer is x^2+1.", "1", 0), ("The answer is 3 + 4 = 7", "7", 1),
        ("the answer is 5\\text{ cm}.", "5", 1), ("it costs 5/day", "5", 1), ("so 7+5=12", "12", 1),
        ("it is 5 m", "m", 0), ("it is -3", "3", 0), ("about 1e-3", "0.001", 1), ("v2 is x1", "1", 0),
        ("So it is 3 / 4.", "3/4", 1), ("So it is 3 / 4.", "4", 0), ("The answer is 3 / 4.", "3", 0), ("x / 4", "4", 0),
        ("it is 3/4x", "3", 0), ("it is 1.5/2.5", "0.6", 1), ("it is 1/1,000", "0.001", 1), ("it is 3 + 4", "4", 0),
        ("so 7 + 5 = 12", "12", 1), ("it is 5 / day", "5", 1), ("The answer is \\$18 every day at the market.", "18", 1),
        ("The final answer is:\n\n\\$36", "36", 1), ("It is 5\\text{ cm}", "5", 1), ("Answer:\nParis", "Paris", 1),
        ("The final answer is:\n\nB\n", "B", 1), ("The answer is option B.", "B", 1), ("The answer is option B.", "C", 0),
        ("The correct choice is (C) 72.", "C", 1), ("The answer is option A or B", "B", 0), ("Option (B)", "B", 1),
        ("The correct option is: C", "C", 1), ("The correct option is to multiply 3 by 4. That makes 12", "12", 1),
        ("To find the answer, we first compute 48/2 = 24 clips. She sold 48+24 = 72 clips.", "72", 1),
        ("To get the answer, multiply 5 * 3 = 15. Then 15 + 57 = 72.", "72", 1), ("answer = 72, not 7", "72", 1),
        ("The answer is 72. I hope this answer is helpful!", "72", 1), ("The answer is 5. The answer is not 6.", "5", 0),
        ("If the answer is 5, it is odd. So the answer is B.", "B", 1), ("The correct answer is (B) 72.", "B", 1),
        ("If the answer is B, it is odd. So the answer is C.", "B", 0), ("So \\[x = 1 \\\\[2pt]\\] and \\(7\\)", "7", 1),
        ("所以答案是72。", "72", 1), ("因此，一共卖了72个夹子。", "72", 1), ("答えは72です", "72", 1),
        ("정답은 72입니다.", "72", 1), ("So \\[x = 7 \\\\[2pt] \\]", "7", 1), ("一共卖了5万个", "5", 0),
        ("所以是3个半小时", "3", 0), ("答案是5的平方", "5", 0), ("it is 5.5x", "5", 0), ("A. 12", "A", 1),
        ("A. 12 is it\nor not", "A", 0), ("A.\nThe answer is B.", "A", 0), ("A.\nThe answer is B.", "B", 1),
        ("A. 12 is too small. C. 15 fits. So the answer is C.", "A", 0), ("A. 12, but the answer is not 12.", "A", 0),
        ("A. 12 is too small. C. 15 fits. So the answer is C.", "C", 1), ("(A) is 5 and (B) is 6.", "A", 0),
        ("To find the answer: first compute 2 * 5 = 10. The answer is 5\\pi.", "5\\pi", 1),
        ("To find the answer: first compute 2 * 5 = 10. The answer is x².", "x^2", 1),
        ("To find the answer: first compute 2 * 5 = 10. The answer is ¾.", "3/4", 1),
        ("The answer is 5\\pi. I hope this answer is helpful!", "5\\pi", 1),
        ("The answer is 5. The answer is 5\\pi.", "5", 0),
        ("Answers: 2, 3", "2, 3", 1), ("Final Answers: (2, 3)", "(2, 3)", 1), ("The answers are: 2, 3", "2, 3", 1),
        ("The answer x = 5, and not 6", "5", 1), ("The answer x = 5, and not 6", "6", 0),
        ("The answer is (B) Type A blood.", "B", 1), ("The answer is B: I and II only.", "B", 1),
    ):  # fmt: skip
        assert found(text, right) == is_right, text


def test_the_reward_math_reads_the_last_box(subtests):
    score = graders.load("math", RewardConfig(functions=["math"]), TaskConfig()).score
    for completion, answer, right in (
        (r"\boxed{12} no wait \boxed{33}", "33", 1), (r"\boxed{33} no wait \boxed{12}", "33", 0),
        ("It is 33.", "33", 1), (r"It is $33\%$.", "33", 1), (r"\boxed{0.5\%}", "0.5", 0),
        (r"\boxed{\$33.00}", "33", 1), (r"\boxed{33", "33", 0),
        (r"\boxed{33} and so \boxed{3", "33", 0), (r"<think>\boxed{33}</think> \boxed{12}", "33", 0),
        (r"<think>\boxed{33}", "33", 0), (r"\boxed{33}", r"It is $\boxed{033}$.", 1), (r"<think>8</think> \boxed{7}", 7, 1),
        ("<answer>1234</answer>", "1,234", 1), ("first 3, then the answer is 72.", "why\n#### 72", 1), ("", "7", 0),
        (r"\boxed{x^2+2x+1}", "$(x+1)^2$", 1), (r"\boxed{(1, 2]}", "(1,2)", 0), ("<answer>$5/2$</answer>", "2.5", 1),
        (r"\boxed{5}", r"2+3\mathrm{i}", 0), (r"\boxed{10100}", "10, 100", 0), (r"\boxed{m+n = 113}", "113", 1),
    ):  # fmt: skip
        with subtests.test(completion):
            assert score(graders.RewardInput("?", completion, "", {"answer": answer})) == right
    with pytest.raises(ValueError, match="there is nothing to compare in the right answer"):
        score(graders.RewardInput("?", r"\boxed{33}", "", {"answer": "$$"}))
