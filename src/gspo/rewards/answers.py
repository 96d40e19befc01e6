"""Extracts the final answer of a completion and compares it with the right one.

Imports nothing heavy: math-verify is imported only if comparing as integers or text does not decide.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from gspo.config.answer_format import tagged

DIGITS = 4000  # Python parses no longer integers
_BOX = re.compile(r"\\(?:fbox|boxed)(?![a-zA-Z])\s*")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])|(?<![0-9])\s+|\s+(?![0-9])")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.0*)?")


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...} of a text, stripped; None if there is none.

    Nested braces are matched. If the last box never closes, the reply was cut off within its answer, and the content is "".
    """
    boxes = [*_BOX.finditer(text)]
    if not boxes:
        return None
    last = boxes[-1]
    if text[last.end() : last.end() + 1] != "{":  # \boxed 5
        return text[last.end() : last.end() + 1].strip()
    depth, i = 0, last.end()
    while i < len(text):
        if text[i] == "\\":  # an escaped brace does not nest
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[last.end() + 1 : i].strip()
        i += 1
    return ""


def final(completion: str) -> str | None:
    """The answer of a completion: the last box within the last <answer> tags, else the content of the tags; without tags,
    the last box. None if there is neither.
    """
    inside = tagged(completion)
    box = boxed(completion if inside is None else inside)
    return inside if box is None else box


def normal(answer: str) -> str:
    """An answer in the form used for voting: an integer in its shortest form, other text without formatting."""
    number = integer(answer)
    return _bare(answer) if number is None else str(number)


def integer(answer: str) -> int | None:
    """The integer that a text denotes, such as `+033`, `1,234` or `\\text{33}`; None for anything else, or beyond DIGITS."""
    bare = _bare(answer)
    if len(bare) > DIGITS or not _INTEGER.fullmatch(bare):
        return None
    return int(bare.partition(".")[0].replace(",", ""))


def _bare(answer: str) -> str:
    """The text without dollar signs, thin spaces, text wrappers and a final period."""
    text = answer.replace("{,}", ",").replace("\\$", "").replace("$", "")
    while (plain := _WRAPPED.sub(r"\1", text)) != text:
        text = plain
    return _SPACE.sub("", text).removesuffix(".")


def same(answer: str, right: str) -> bool:
    """Whether an answer is right: compared as integers, then as text, then by math-verify, which knows equivalent forms.

    A percentage means hundredths: 33 % is 0.33 and not 33, unless the right answer is a percentage too. Raises ValueError if
    math-verify cannot parse the right answer.
    """
    numbers = integer(answer), integer(right)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if not answer:
        return False
    if _bare(answer) == _bare(right):
        return True
    return verified(_in_math(answer), right)


def verified(text: str, right: str) -> bool:
    """Whether math-verify finds the right answer in a text. A percentage means hundredths, unless the right answer has a %
    too. Raises ValueError if math-verify cannot parse the right answer.
    """
    from math_verify import parse, verify

    gold = _parsed(right)
    if not gold:
        raise ValueError(f"math-verify cannot read the right answer {right!r:.80}")
    # No math-verify timeouts: they raise an alarm in the middle of sympy. This process can be killed instead.
    found = parse(text, parsing_timeout=None)
    if found and "%" not in right and (share := _share(found[0])) is not None:
        found = [share]
    return bool(verify(gold, found, timeout_seconds=None))  # not symmetric: the right answer first


def _share(found: Any) -> Any:
    """The value of a percentage, since math-verify accepts 33 % as equal to 33 as well; None for anything else."""
    from sympy import Rational, UnevaluatedExpr

    hundredth = UnevaluatedExpr(Rational(1, 100))
    return found.doit() if hundredth in getattr(found, "args", ()) else None


@cache
def _parsed(right: str) -> list[Any]:
    from math_verify import parse

    return parse(_in_math(right), parsing_timeout=None)


def _in_math(text: str) -> str:
    text = text.replace("\\$", "")  # money, not math
    return text if "$" in text or "\\boxed" in text else f"${text}$"
