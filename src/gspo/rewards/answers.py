"""The final answer of a completion to a problem with one: where it stands, and whether it is the right one.

Imports nothing heavy: math-verify is imported where the two cannot be compared as integers or as text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

DIGITS = 4000  # Python reads no longer integers
_BOX = re.compile(r"\\(?:fbox|boxed)(?![a-zA-Z])\s*")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])|(?<![0-9])\s+|\s+(?![0-9])")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.0*)?")


def tagged(completion: str) -> str | None:
    """What stands in the last complete <answer>...</answer> of a completion, stripped; None without one."""
    start = completion.rfind("<answer>", 0, max(0, completion.rfind("</answer>")))
    if start < 0:
        return None
    return completion[start + len("<answer>") : completion.find("</answer>", start)].strip()


def boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} or \fbox{...} of a text, stripped; None without one.

    Braces within are matched. A box that never closes is the last one too, and empty: the reply was cut off in its answer.
    """
    boxes = [*_BOX.finditer(text)]
    if not boxes:
        return None
    last = boxes[-1]
    if text[last.end() : last.end() + 1] != "{":  # \boxed 5
        return text[last.end() : last.end() + 1].strip()
    depth, i = 0, last.end()
    while i < len(text):
        if text[i] == "\\":  # \{ opens nothing
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[last.end() + 1 : i].strip()
        i += 1
    return ""


def final(completion: str) -> str | None:
    """The answer of a completion: in its last <answer> tags if it has any, there in the last box if there is one; else in
    its last box. None where it has neither.
    """
    inside = tagged(completion)
    box = boxed(completion if inside is None else inside)
    return inside if box is None else box


def normal(answer: str) -> str:
    """An answer as it votes: an integer in its shortest form, other text without what only its looks need."""
    number = integer(answer)
    return _bare(answer) if number is None else str(number)


def integer(answer: str) -> int | None:
    """The integer that a text writes, as `+033`, `1,234` or `\\text{33}`; None for anything else, and beyond DIGITS."""
    bare = _bare(answer)
    if len(bare) > DIGITS or not _INTEGER.fullmatch(bare):
        return None
    return int(bare.partition(".")[0].replace(",", ""))


def _bare(answer: str) -> str:
    """Without dollars, thin spaces and the wrappers of text."""
    text = answer.replace("{,}", ",").replace("\\$", "").replace("$", "")
    while (plain := _WRAPPED.sub(r"\1", text)) != text:
        text = plain
    return _SPACE.sub("", text).removesuffix(".")


def same(answer: str, right: str) -> bool:
    """Whether an answer is the right one: as integers, as text, else by math-verify, which knows equal forms.

    A percentage is a hundredth: 33 % is 0.33, and not 33, unless the right answer is a percentage too. Raises ValueError
    where math-verify cannot read the right answer.
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
    """Whether math-verify finds the right answer in a text, and a percentage only where one is right. Raises ValueError
    where it cannot read the right answer.
    """
    from math_verify import parse, verify

    gold = _parsed(right)
    if not gold:
        raise ValueError(f"math-verify cannot read the right answer {right!r:.80}")
    # No limits of its own: they raise an alarm in the middle of sympy; this process can be killed instead.
    found = parse(text, parsing_timeout=None)
    if found and "%" not in right and (share := _share(found[0])) is not None:
        found = [share]
    return bool(verify(gold, found, timeout_seconds=None))  # not symmetric: the right answer first


def _share(found: Any) -> Any:
    """A percentage as the number that it is, for math-verify holds 33 % for equal to 33 as well; None for anything else."""
    from sympy import Rational, UnevaluatedExpr

    hundredth = UnevaluatedExpr(Rational(1, 100))
    return found.doit() if hundredth in getattr(found, "args", ()) else None


@cache
def _parsed(right: str) -> list[Any]:
    from math_verify import parse

    return parse(_in_math(right), parsing_timeout=None)


def _in_math(text: str) -> str:
    text = text.replace("\\$", "")  # money, and no mathematics
    return text if "$" in text or "\\boxed" in text else f"${text}$"
