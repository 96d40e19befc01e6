"""Units beside numbers, and words that are numbers, such as million. Units are compared by name and not converted."""

from __future__ import annotations

import re
from fractions import Fraction

from gspo.rewards.notation import FUNCTIONS, WRAP, Tree

_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_NAMES = {
    name: short
    for short, names in {
        "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre",
        "kg": "kilogram", "g": "gram", "s": "second sec", "min": "minute", "h": "hour hr", "ft": "foot feet",
        "in": "inch inche", "lb": "pound lbs £", "l": "liter litre", "mi": "mile", "yd": "yard", "degree": "deg °",
        "sq": "square", "yr": "year", "€": "euro", "mph": "", "oz": "ounce", "dollar": "usd",
        "percent": "pct", "¢": "cent", "day": "", "men": "", "/": "per",
    }.items()
    for name in (short, *names.split())
}  # fmt: skip
_LETTERS = "ABCFGHJKLMNSTVWdghlmstu"  # that are units in \text or \mathrm; others are names and constants, such as i and e
# Words that change what a number beside them is worth are no unit.
CHANGES = (
    r"(?:[十百万亿兆半倍折割又多乗십백천만억반배]|(?<![^\W\d_])[的余几]|千(?![克米瓦])|成(?![人员])|分[之の]|"
    r"次方|阶乘|以[上下]|未[満满]|이[상하]|미만|초과|제곱(?! ?(?:센티|킬로|밀리)?미터))"
)
_WORTH = re.compile(
    r"\b(squared|cubed|factorial|hal(f|ves)|thirds?|quarters?|below|less|least|than [0-9]|most|not|minus|"
    rf"plus|times|root|of|pi|and|or|и|или|плюс|минус|больше|меньше|\w*{CHANGES}\w*|"
    r"(?:тыс|милли(?:он|ард)|мл[нр]|полов|трет[иье]|четверт|(?:пят|шест|седьм|восьм|девят)ых|десят|сот[еняы]|квадрате$)\w*|"
    r"(four|fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|\w+illion)ths?)\b"
)
_WRAPPED, _CIRCLE = rf"(?!\\(?:mathb|bm|bold)){WRAP}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*+)\}}", r"\^ ?\{? ?\\circ ?\}?|\\degree"
_OTHER = r"[\u0400-\u04ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # letters of scripts in which no formula is written
_WORD = rf"(?>{_WRAPPED}| [A-Za-z]++| ?{_OTHER}++|(?:{_CIRCLE})(?: ?[CF](?![a-z]))?)(?: ?\^ ?\{{?-?[0-9]\}}?)?+"
_UNIT = re.compile(rf" ?{_WORD}(?>(?> ?/ ?|\\cdot)?+ ?{_WORD}|/[A-Za-z]++(?: ?\^ ?\{{?-?[0-9]\}}?)?+)*+")
_RATE = re.compile(r" ?(?:[ckm]?m|mi|ft|k?g)(?:/| per )(?:s|h|l|min|sec|hour|second)(?![a-zA-Z])")  # such as 5 m/s
_DEGREES = re.compile(rf" ?(?:{_CIRCLE}) ?[CF]?")
_PART = re.compile(rf"{_WRAPPED}|({_CIRCLE})|([A-Za-z]+|{_OTHER}+)|([/0-9-])")
_END = re.compile(
    rf" ?(?:$|[,;)\]}}|=<>&]|\\[}}\\]|(?:{WRAP}\{{ ?)?(?:and|or)(?![a-zA-Z])|"
    r"\\(?:rbrace|rangle|leq?|geq?|lt|gt|in|cup|cap|approx|end|l?or|l?and)(?![a-zA-Z]))"
)


def unit(text: str, at: int) -> tuple[list[str], int] | None:
    """The words of the unit at this place of a text, which must end what is measured, and where it ends; None for none.
    Without \\text, a word is a unit if it is known or has four letters: 5 m and 2 ab are products.
    """
    found = _UNIT.match(text, at)
    if not found or not (_END.match(text, found.end()) or _DEGREES.fullmatch(found[0])):
        return None
    words: list[str] = []
    rate = _RATE.match(found[0])
    for wrapped, circle, plain, sign in _PART.findall(found[0]):
        known = plain.casefold().removesuffix("s") in _NAMES if len(plain) > 1 else plain in "CF" and "degree" in words
        function = any(plain[:-1] == name for name in FUNCTIONS)  # sinx is none
        if plain and plain.isascii() and not known and not rate and (len(plain) < 4 or function):
            return None
        if re.fullmatch(f" *(?![{_LETTERS}])[A-Za-z] *", wrapped):
            return None
        words += ["degree"] if circle else re.findall(r"[^\W\d_]+|[€£¥₹¢°/0-9-]", wrapped or plain or sign)
    return None if not words or _WORTH.search(" ".join(words).casefold()) else (words, found.end())


def measured(tree: Tree, words: list[str]) -> Tree:
    """A tree with its unit."""
    names: list[str] = []
    for word in words:
        name = word if len(word) < 3 else word.casefold()
        name = _NAMES.get(name) or (name.removesuffix("s") if len(name) > 2 else name)
        name = _NAMES.get(name, name)
        if name in _SCALES:
            tree = ("product", tree, ("number", Fraction(_SCALES[name]), 0))
        elif name == "percent":
            tree = ("percent", tree)
        else:
            names.append(name)
    if names[:1] in (["sq"], ["cubic"]):
        names = [*names[1:], "2" if names[0] == "sq" else "3"]
    return ("quantity", tree, " ".join(names)) if names else tree
