r"""Extracts the final answer of a completion and compares it with the right one.

Imports nothing heavy: mpmath is imported only if comparing as integers or text does not decide.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

from gspo.config.answer_format import tagged
from gspo.rewards.notation import CONSTANTS, WRAP, WRAPPED, Tree, UnreadableAnswer, bare, tidy, unwrapped
from gspo.rewards.units import CHANGES

DIGITS = 4000  # Python parses no longer integers
_BOX = re.compile(r"\\(?:fbox|boxed)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped one does not nest
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+))(?:\.0*)?")
_DOLLARS = re.compile(
    r"^\s*(-?)\\?\$ ?(-?[0-9.][0-9.,{}]*)(?= ?(?:[mb]illion|thousand|hundred|per |/|\\text|$))(?!.*(?<!\\)\$)", re.DOTALL
)
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # of a script that puts spaces between words and numbers
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|(?<!\\)\$((?:\\\$|[^$\n])+)(?<!\\)\$|"
    r"\\\(((?>\\\\|(?!\\[()]).)+)\\\)|\\\[((?>\\\\|(?!\\[\[\]]).)+)\\\]|"  # none of which begins within another
    rf"(?<!{_LETTER})(?<![.,^_])(?<![\w)}}][+*/])(?<![\w)}}] [+*/] )"  # nor within a sum or a product
    rf"((?>[-+−]?{_DECIMAL}(?:[eE][-+]?[0-9]+)?(?: ?/ ?{_DECIMAL})?(?: ?\\?%)?))"
    rf"(?!{_LETTER}| ?[个個]?{CHANGES}|\^|\\(?!text|mbox|mathrm|degree)[a-zA-Z]|[+*][\w(]| ?/ ?[0-9(])",
    re.DOTALL,
)
_ANSWER = re.compile(
    r"(?i)answers?\b(?:[^.\n:=]{0,40}?(?:\bis\b|:)|(?: [a-z])? ?=)|"
    r"correct (?:option|choice)(?: is\b)?:?(?=[ *]*\(?(?-i:[A-J])\b)"
)
_SENTENCE = re.compile(r"\n|[.!?](?:\s|$)")
_FACTORS = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]{4,}|([fgh])(?![(_'])|.")  # f, g and h that are no functions
# The font of a number within an answer.
_FONT = re.compile(rf"(?<!_)(?<!_\{{){WRAP}(?=\{{ ?[-+]?(?:[0-9]|\\d?frac|\\sqrt))(?!\{{[^{{}}]*\}} ?_)")
# Alone, or with its text and no second one: B), (B) 72, and (D) both (A) and (B).
_CHOICE = re.compile(
    r"\(?([A-J])(?:\)[.:]?|[.:](?![A-Z](?![a-z])|[a-z]\.))"
    r"(?: ?(?:(?=(?i:both|neither|all|none)\b)|(?!or\b|and\b|[,/&]|.*(?<![\w(])\(?[A-J](?:\)|[.:] )))\S.*)?"
)
# Named as one: option B, the choice (C).
_OPTION = re.compile(r"(?i:(?:the )?(?:option|choice)) \(?([A-J])\)?\.?")
_WORDS = re.compile(r"(?![xyz]+$)[^\W\d_]{2,}(?:[ ,'-]+[^\W\d_]+)*")


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...} of a text, stripped; None if there is none, and "" if it never
    closes: the reply was cut off within its answer.
    """
    boxes = [*_BOX.finditer(text)]
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":  # \boxed 5
        return text[start : start + 1].strip()
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip()
    return ""


def final(completion: str) -> str | None:
    """The answer of a completion: the last box within the last <answer> tags, or all in them; without tags, the last box.
    None if there is neither.
    """
    inside = tagged(completion)
    box = boxed(completion if inside is None else inside)
    return inside if box is None else box


def normal(answer: str) -> str:
    """An answer in the form used for voting: the shortest form of an integer, a choice's letter, else text unformatted."""
    number = integer(answer)
    return (choice(answer) or bare(answer)) if number is None else str(number)


def choice(answer: str) -> str | None:
    """The letter of a choice, such as `B)`, `option B`, or `(B) 72` on one line; None for other texts, or with a second."""
    plain = unwrapped(answer)
    named = None if "\n" in answer.strip() else _CHOICE.fullmatch(plain) or _OPTION.fullmatch(plain)
    return named and named[1]


def integer(answer: str) -> int | None:
    """The integer that a text denotes, such as `+033`, `1,234` or `\\text{33}`; None for anything else, or beyond DIGITS."""
    plain = bare(answer).replace("{,}", ",") if len(answer) <= DIGITS else ""
    if not _INTEGER.fullmatch(plain) or ("," in plain and ", " in unwrapped(answer)):  # 120, 240 are two
        return None
    return int(re.sub("[, ]", "", plain.partition(".")[0]))


def same(answer: str, right: str) -> bool:
    """Whether an answer is right: as integers, as text, or as mathematics, exactly if both are exact (equality.py).

    A text that cannot be read as a whole equals only the same text. 33 % is 0.33, and also right where the right answer is
    33 or another number of size 1 or more. Raises ValueError if the right answer has nothing to compare.
    """
    one, two = bare(answer), bare(right)
    if not two:
        raise ValueError(f"there is nothing to compare in the right answer {right!r:.80}")
    if re.fullmatch("[A-J]", two) and (letter := choice(answer)):
        return letter == two
    numbers = integer(answer), integer(right)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if one == two or (_WORDS.fullmatch(two) and two not in CONSTANTS and one.casefold() == two.casefold()):
        return bool(one)
    listed = re.search(r",| (?:and|or) ", right)
    if not listed and _WORDS.fullmatch(one) and _WORDS.fullmatch(two) and not {one, two} & {*CONSTANTS}:
        return False
    from gspo.rewards.equality import equal

    names = {name for text in (one, two) for name in _FACTORS.findall(text) if name}
    wanted = _trees(right, names)
    several = any(tree[0] == "list" for tree in wanted)
    try:
        return any(equal(a, b) for b in wanted for a in _trees(answer, names, "list" if several else "decimal"))
    except RecursionError:  # hundreds of signs in a row
        return False


def _trees(text: str, factors: Collection[str], comma: str = "") -> list[Tree]:
    """How a text can be read: 2e-1 is a power of ten, or e less 1. factors: names that may stand before brackets as factors.
    comma: 3,14 may be a "decimal" number, as may 0,5; and 120,240 a "list".
    """
    from gspo.rewards.reader import read

    text = tidy(_DOLLARS.sub(r"\1\2\\text{ dollars}", text.strip()))
    if (whole := WRAPPED.fullmatch(text)) is not None:
        text = tidy(whole[1])
    text = _FONT.sub("", text)
    texts = [text, re.sub(r"(?<=[0-9])e(?=[+-])", " e ", text)]
    if factors:
        texts.append(re.sub(rf"(?<=[{''.join(factors)}])\(", " (", text))
    if comma == "list":
        texts.append(re.sub("(?<=[0-9]),(?=[0-9])", ", ", text))
    if re.fullmatch(
        r"[+-]?0,[0-9]+" if comma != "decimal" else r"[+-]?(0|[0-9]+(?=,([0-9]{1,2}|[0-9]{4,})\b)),[0-9]+( ?\\?%)?", text
    ):
        texts.append(text.replace(",", "."))
    trees = []
    for each in dict.fromkeys(texts):
        with contextlib.suppress(UnreadableAnswer, RecursionError):
            trees.append(read(each))
    return trees


def right_in(text: str) -> str:
    """What a right answer is compared by: the content of its last box, or all of it, as bare text."""
    box = boxed(text)
    return bare(text if box is None else box)


def found(text: str, right: str) -> bool:
    """Whether a text without a box or tags is the right answer, or its last formula, or what follows "answer is": the rest
    of that sentence, or the first formula. For a right answer with digits it is the last "answer is" that has one after it.
    """
    stated = [match.end() for match in _ANSWER.finditer(text)]
    if bare(text) == bare(right) if stated else same(text, right):
        return True
    digits = (i for i, character in enumerate(text) if character.isnumeric())  # also of ² and ¾
    last = max(digits, default=-1) if any(map(str.isnumeric, right)) else -1
    start = next((end for end in reversed(stated) if end <= last), stated[-1] if stated else 0)
    if stated and same(_SENTENCE.split(text[start:].lstrip(":*= \n"), maxsplit=1)[0].strip("* "), right):
        return True
    results = [*_FORMULA.finditer(text, start)]
    if not results:
        return False
    result = results[0 if stated else -1]
    if stated and result[5] and re.search(r"\\[a-zA-Z]", text[start : result.start()]):
        return False  # a number within LaTeX that no delimiters mark
    return same(next(part for part in result.groups() if part is not None), right)
