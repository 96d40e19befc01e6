r"""Reads an answer, in LaTeX or as people type it, into a tree: the whole text, or none of it.

A tree is nested tuples, and the first element is its kind:

- ("number", value, place): a Fraction. place: that of the last digit if it has decimals, such as 1/100; 0: it is exact.
- ("constant", "pi" | "e" | "i" | "infinity"), ("symbol", name), ("call", function, *arguments)
- ("sum", *terms), ("product", *factors), ("quotient", a, b), ("power", a, b), ("percent", a), ("quantity", a, unit)
- ("relation", operators, *members): 1 < x <= 2 is ("relation", ("<", "<="), 1, x, 2)
- ("list", *items) without brackets, ("sequence", left, right, *items) with them: tuples, sets, intervals
- ("both" | "either", *relations): inequalities with "and" or "or" between them
- ("union" | "intersection" | "difference", a, b), ("matrix", *rows)
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

LONGEST = 1000  # characters
DEEPEST = 30  # brackets within brackets
LARGEST = 5000  # exponent of 1e5
_SUPERSCRIPTS = {ord(a): b for a, b in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")}
_SUPERSCRIPT = re.compile(f"[{''.join(map(chr, _SUPERSCRIPTS))}]+")
_SUBSCRIPT = re.compile("[₀-₉ₐ-ₜ]+")
_CHARACTERS = str.maketrans(
    {
        "−": "-", "‐": "-", "‑": "-", "⁄": "/", "∕": "/", "∶": ":", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
        "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "√": " sqrt ", "π": r"\pi ", "∞": r"\infty ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ",
        "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "′": "'", "’": "'", "٫": ".", "٬": ",",
    }
)  # fmt: skip
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])|(?<!\\)\\!(?:(?<=,\\!)\s+(?=[0-9]{3}))?|\\?\$|"
    r"\\(?:text)?color ?\{[a-zA-Z]+\}|(?<=\\\\)\[[0-9.]+ ?[a-z]{2}\]"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\s")
WRAP = r"\\(?:text(?:bf|it|rm|sf|normal)?|mbox|math(?:rm|bf|it|sf)|operatorname|bm|boldsymbol|underline)\s*"
WRAPPED = re.compile(rf"{WRAP}\{{([^{{}}]*)\}}")
NAMED = re.compile(f" ?{WRAPPED.pattern}")
_ENCLOSED = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]|(\*{1,3}|[\"`])(.*)\3", re.DOTALL)  # a formula, or Markdown
_SAME = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\[sn](?:ice)?frac(?![a-zA-Z])", r"\\frac"),
        (r"(?<=[.0-9])\\dot ?\{?([0-9])\}?([0-9]*)\\dot ?\{?([0-9])\}?", r"\\overline{\1\2\3}"),  # a period by its ends
        (r"(?<=[.0-9])\\(?:overline|bar|dot) ?([0-9])", r"\\overline{\1}"),
        (r"^([+-]?[0-9]*\.[0-9]*)\(([0-9]+)\)$", r"\1\\overline{\2}"),
        (r"^([+-]?[0-9]*\.[0-9]*?)(?:([0-9])\2\2+|([0-9]{2,}?)\3+) ?(?:\.\.\.|\\[lc]?dots)$", r"\1\\overline{\2\3}"),
        (r"(^|\\cup ?)\](?=[^][()]*[,;][^][()]*[][])", r"\1("),  # ]1, 2[
        (r"(?<=[([])([^][()]*[,;][^][()]*)\[(?= ?(?:\\cup|$))", r"\1)"),
        (  # a set of numbers
            r"^\\\{ ?([a-z])(?: ?\\in ?\\mathbb ?\{?R\}?)? ?(?:\\mid|[|:])"
            r" ?((?!.*\\text)(?=.*(?:[<>=]|\\[lg][et])).*\1.*)\\\}$",
            r"\2",
        ),
        (r"(?:(?<![a-zA-Z\\])m ?)?\\(?:measured)?angle(?![a-zA-Z])", r"\\angle"),  # m\angle A
        (r" ?\^ ?(?:\\prime(?![a-zA-Z])|\{((?: ?\\prime)+) ?\})", lambda m: "'" * m[0].count("prime")),
        (r"(?<=m) s ?\^ ?\{-(?:1|(2))\}", lambda m: f"/s^{m[1]}" if m[1] else "/s"),
        (r"^(?:=|\\approx) ?", ""),
        (r"(?<=[0-9])(?=(?:[ckm]m|kg|mph|hrs?|ft|lbs?|oz|yd|[a-z]{5,})(?![a-zA-Z]))", " "),  # 5cm
    )
)


class UnreadableAnswer(ValueError):
    """A text that cannot be read as a whole."""


def tidy(text: str) -> str:
    """The text with ASCII digits and signs, one kind of space, and without what only changes its layout."""
    text = re.sub("[¼½¾⅐-⅞]", lambda m: r"\frac{{{}}}{{{}}}".format(*_plain(m[0]).split("⁄")), text)
    text = _SUPERSCRIPT.sub(lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT.sub(lambda m: f"_{{{_plain(m[0])}}}", text)
    text = _SPACE.sub(" ", _LAYOUT.sub("", _plain(text).translate(_CHARACTERS)))
    if "matrix" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    text = _ended(re.sub(" +", " ", text))
    if (found := _ENCLOSED.fullmatch(text)) is not None:
        text = _ended(found[1] or found[2] or found[4] or "")
    text = re.sub("^[–—] ?(?=[0-9.])", "-", text)
    for pattern, plain in _SAME:
        text = pattern.sub(plain, text)
    text = re.sub(r"(?<=[0-9]) ?([€£¥₹¢])", r"\\text{\1}", text)
    return re.sub(r"^(-?) ?([€£¥₹]) ?([0-9].*)", r"\1\3\\text{\2}", text)


def _ended(text: str) -> str:
    """The text without the punctuation or line break after it."""
    return re.sub(r"(?:(?<![.\\])[.,;:。]|(?<!\\)\\(?:\\|[.,;:])?)$", "", text.strip()).strip()


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    return text if text.isascii() else "".join(str(unicodedata.decimal(each, each)) for each in text)


def unwrapped(text: str) -> str:
    """The text, tidy and without text wrappers."""
    text = tidy(text)
    while (plain := WRAPPED.sub(r"\1", text)) != text:
        text = plain
    return _ended(text)


def bare(text: str) -> str:
    """The text, tidy and without text wrappers and spaces, except spaces between digits."""
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", unwrapped(text))
    return re.sub(r"mod\{([0-9]+)\}", r"mod\1", text)


_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc cis ln log lg exp sqrt max min gcd lcm"
FUNCTIONS = _FUNCTIONS.split()
FRACTIONS, BINOMIALS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"), (r"\binom", r"\dbinom", r"\tbinom")
CONSTANTS = {r"\pi": "pi", "pi": "pi", r"\infty": "infinity", "infinity": "infinity", "inf": "infinity", "e": "e", "i": "i"}
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell emptyset"
)
SYMBOLS = {f"\\{name}": f"\\{name}" for name in _GREEK.split()} | {r"\varnothing": r"\emptyset", r"\R": r"\mathbb{R}"}
RELATIONS = {
    "=": "=", r"\approx": "≈", "<": "<", r"\lt": "<", ">": ">", r"\gt": ">", "<=": "<=", r"\le": "<=", r"\leq": "<=",
    r"\leqslant": "<=", ">=": ">=", r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", "!=": "!=", r"\ne": "!=", r"\neq": "!=",
    r"\in": "in",
}  # fmt: skip
SETS = {r"\cup": "union", r"\cap": "intersection", r"\setminus": "difference"}
RIGHT = {"(": (")", "]"), "[": (")", "]"), r"\{": (r"\}",), r"\lbrace": (r"\rbrace",), r"\langle": (r"\rangle",)}
AROUND = {
    "|": ("|", "abs"), r"\lvert": (r"\rvert", "abs"), r"\vert": (r"\vert", "abs"), r"\lfloor": (r"\rfloor", "floor"),
    r"\lceil": (r"\rceil", "ceil"),
}  # fmt: skip
_COUNT = r"[1-9][0-9]{0,2}(?P<comma>COMMA)[0-9]{3}(?:(?P=comma)[0-9]{3})*(?!(?P=comma)?[0-9])|[0-9]+"
_NUMBER = (
    rf" ?(?P<whole>{_COUNT})?(?:(?:\.|\{{,\}})(?P<decimals>[0-9]*)(?:\\(?:overline|bar|dot) ?\{{(?P<repeated>[0-9]+)\}})?)?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)(?![0-9.]))?"
)
OUTSIDE, INSIDE = (re.compile(_NUMBER.replace("COMMA", comma)) for comma in (r",|\{,\}| ", r"\{,\}| "))
BASE = re.compile(
    rf" ?(?:\((?P<a>[0-9A-F]+)\)|{WRAP}\{{(?P<b>[0-9A-F]+)\}}|(?P<c>[0-9][0-9A-F]*|[A-F][0-9A-F]+))"
    rf" ?_ ?(?:\{{ ?(?:{WRAP}\{{ ?)?\(?(?:base ?)?\}}? ?(?P<base>\w+)\)?\}}? ?\}}|(?P<digit>[0-9]))"
)
BASES = {name: base for base, name in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2)}
STARTS = {*RIGHT, *AROUND, *SYMBOLS, *CONSTANTS, *FRACTIONS, *BINOMIALS, "{", r"\sqrt", r"\mathbb", r"\angle"}
STARTS |= {f"\\{name}" for name in FUNCTIONS}  # tokens with which a factor begins
FACTORIALS = {"!": "factorial", "!!": "double factorial"}
MIXED = re.compile(r" ?([0-9]+) ([0-9]+) ?/ ?([0-9]+)(?![0-9.])")
TOKEN = re.compile(r" ?(\\[a-zA-Z]+|\\.|\*\*|<=|>=|!=|!!+|.)")
NAME = re.compile(r" ?([A-Za-zͰ-Ͽ]+)")
ANGLE = re.compile(r" ?\\angle ?\{? ?([A-Z]+|[a-z0-9]|\\[a-z]+) ?\}?(?![A-Za-z])")
DEFINED = re.compile(r"\([a-z](?:, ?[a-z])*\) ?=")  # P(x) = ... defines a function
PRIMES = re.compile("'+")
SUBSCRIPT = re.compile(r" ?_ ?(?:\{([^{}]*)\}|([0-9A-Za-z])|(\\[a-zA-Z]+))")
AND = re.compile(
    rf" ?[,;]? ?(?:{WRAP}\{{ ?(?:and|or) ?\}}|(?:and|or)(?![a-zA-Z])|\\(?:lor|land|vee|wedge)(?![a-zA-Z]))| ?[,;]"
)
WORD = re.compile(
    rf" ?(?![xyz]+(?![A-Za-z]))([A-Za-z]{{2,3}})(?= ?(?:$|[,;)\]}}]|\\[}}]|(?:{WRAP}\{{ ?)?(?:and|or)(?![a-zA-Z])))"
)


def negative(tree: Tree) -> Tree:
    """The negative of a tree: -5 % is a percentage too."""
    if tree[0] == "percent":
        return ("percent", negative(tree[1]))
    return ("number", -tree[1], tree[2]) if tree[0] == "number" else ("product", ("number", Fraction(-1), 0), tree)


def listed(items: list[Tree], words: str) -> Tree:
    """The tree of items beside each other. words: What stood between them."""
    if len(items) == 1:
        return items[0]
    inequalities = all(item[0] == "relation" and {*item[1]}.isdisjoint(("=", "≈", "in")) for item in items)
    logical = "\\" in words and all(item[0] == "symbol" for item in items)
    kinds = [kind for kind, sign in (("both", "and|wedge"), ("either", r"\bor|lor|vee")) if re.search(sign, words)]
    return (kinds[0] if (inequalities or logical) and len(kinds) == 1 else "list", *items)
