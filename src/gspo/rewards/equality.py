"""Whether two answers, as trees (notation.py), are equal: exactly where both are exact, else within a relative 1e-6.

Numbers are fractions as long as they can be, and else floats of so many digits that rounding is far below each of their
parts. Expressions with variables are compared at fixed points, some of them whole numbers. Work is bounded: what would be
too large to compute equals only what is written alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from gspo.rewards.evaluation import LARGEST, WORK, Evaluation, Undefined, as_float, mp
from gspo.rewards.notation import Tree

CLOSE = Fraction(1, 10**6)  # relative difference of decimals
DIGITS = 60  # of floats, beside twice the magnitude of what they are computed from
MOST = 64  # items that are compared in any order
_SCALES = (0, 2, 0, -1, -6, 3, 6)  # powers of ten of the points where all is positive
# Whole numbers for the first four names. A name is odd at four of the eight points, no two names at the same four, and at
# two, where it is odd and even, it is larger than the others together.
_WHOLE = (
    (35, 6, 5, 4, 26, 8, 1, 7), (3, 29, 2, 4, 5, 40, 6, 1), (4, 5, 37, 8, 6, 7, 28, 1), (3, 7, 4, 34, 6, 2, 5, 33)
)  # fmt: skip
_ASKED = ("sin", "cos", "tan", "cot", "sec", "csc", "max", "min", "gcd", "lcm")
_INFINITE: Tree = ("constant", "infinity")
_REALS: Tree = ("sequence", "(", ")", ("product", ("number", Fraction(-1), 0), _INFINITE), _INFINITE)
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!=", "=": "="}


def equal(a: Tree, b: Tree) -> bool:
    """Whether an answer equals the right one, which says what is compared: 33 % is a hundredth of 33, but right where 33 is,
    and 33 where 33 % is. A unit on one side alone is left out, and two must be the same.
    """
    if a == b:
        return True
    if {a[0], b[0]} == {"both", "either"}:
        return False
    a, b = _plain(a), _plain(b)
    for stated in (a, b):
        if stated[0] == "relation" and "≈" in stated[1]:
            return any(equal(each, b) if stated is a else equal(a, each) for each in _approximations(stated))
    if "quantity" in (a[0], b[0]):
        units = {tree[2] for tree in (a, b) if tree[0] == "quantity"}
        values = [tree[1] if tree[0] == "quantity" else tree for tree in (a, b)]
        return len(units) == 1 and (_values if "percent" in (a[0], b[0]) else equal)(*values)  # 5 % is not 5 m
    if b[0] == "percent" and a[0] != "percent" and equal(a, b[1]):
        return True
    if a[0] == "percent" and (literal := _literal(b)) and abs(literal[0]) >= 1 and equal(a[1], b):
        return True
    if "relation" in (a[0], b[0]):
        return _relations(a, b)
    if not {"list", "sequence"}.isdisjoint((a[0], b[0])):
        return _collections(a, b)
    if a[0] == b[0] and a[0] in ("union", "intersection"):
        return _unordered(_flat(a, a[0]), _flat(b, a[0]))
    if a[0] == b[0] and a[0] in ("difference", "matrix", "row"):
        return len(a) == len(b) and all(map(equal, a[1:], b[1:]))
    return _values(a, b)


def _plain(tree: Tree) -> Tree:
    """A tree in plainer terms: x > 2 and x < 5 is 2 < x < 5, and the real numbers are an interval."""
    if tree == ("symbol", r"\mathbb{R}"):
        return _REALS
    if tree[0] == "difference" and _plain(tree[1]) == _REALS and _items(tree[2])[0] == "{" and len(tree[2]) == 4:
        low, hole, high = _REALS[3], tree[2][3], _REALS[4]
        return ("union", ("sequence", "(", ")", low, hole), ("sequence", "(", ")", hole, high))
    if tree[0] == "both" and len(tree) == 3 and _symbols(tree[1]) == _symbols(tree[2]):
        ends = [_interval(part) for part in tree[1:]]
        low, high = (next((end for end in ends if end and end[i] not in _REALS), None) for i in (3, 4))
        if low and high and low is not high:
            signs = "<=" if low[1] == "[" else "<", "<=" if high[2] == "]" else "<"
            return ("relation", signs, low[3], ("symbol", *_symbols(tree)), high[4])
    return ("list", *tree[1:]) if tree[0] in ("both", "either") else tree


def _approximations(tree: Tree) -> list[Tree]:
    """What a relation with ≈ says: what is before it or what is after it, if there is one and these are about equal."""
    signs, members = tree[1], tree[2:]
    at = signs.index("≈")
    equals = ("=",) * (len(signs) - 1)
    if {*signs} <= {"=", "≈"} and signs.count("≈") == 1 and _near(members[at], members[at + 1]):
        name = members[:1] if _symbols(members[0]) else ()
        parts = members[: at + 1], (*name, *members[at + 1 :])
        return [("relation", equals[: len(part) - 1], *part) if len(part) > 1 else part[0] for part in parts]
    return [("relation", tuple("=" if sign == "≈" else sign for sign in signs), *members)]


def _near(a: Tree, b: Tree) -> bool:
    """Whether one of two values is the other one, rounded to its last digit."""
    a, b = (tree[1] if tree[0] == "quantity" else tree for tree in (a, b))
    places = [
        literal[1] * scale
        for tree in (a, b)
        for part, scale in [(tree[1], Fraction(1, 100)) if tree[0] == "percent" else (tree, Fraction(1))]
        if (literal := _literal(part)) is not None
    ]
    if not places or _symbols(a) | _symbols(b):
        return False
    try:
        return any(abs(as_float(x) - as_float(y)) * 2 <= as_float(max(places)) for x, y, _ in _at_points(a, b))
    except Undefined:
        return False


def _relations(a: Tree, b: Tree) -> bool:
    if a[0] != b[0]:
        stated, other = (a, b) if a[0] == "relation" else (b, a)
        if (members := _defined(stated)) is None and (stated is a or stated[2][0] != "sum"):
            members = _asked(stated)
        if members is not None:
            return all(equal(member, b) if stated is a else equal(a, member) for member in members)
        ends = _interval(stated)
        return ends is not None and other[0] == "sequence" and (equal(ends, b) if stated is a else equal(a, ends))
    for stated, other in ((a, b), (b, a)):
        if stated[1] == ("in",) != other[1]:
            return stated[2] in other[2:] and (equal(stated[3], b) if stated is a else equal(a, stated[3]))
    if a[2] == b[2] and (one := _defined(a) or _asked(a)) and (two := _defined(b) or _asked(b)):
        return all(equal(x, y) for x in one for y in two)
    if (one_interval := _interval(a)) is not None and (two_interval := _interval(b)) is not None:
        return _symbols(a) == _symbols(b) and equal(one_interval, two_interval)
    if len(a[1]) != 1 or len(b[1]) != 1 or "in" in a[1] + b[1]:
        return False
    (one_sign,), (two_sign,) = a[1], b[1]
    flipped = one_sign != two_sign
    if flipped and _FLIPPED[one_sign] != two_sign:
        return False
    return _proportional(_difference(a), _difference(b), {True: -1, False: 1}[flipped] if one_sign not in ("=", "!=") else 0)


def _defined(tree: Tree) -> Sequence[Tree] | None:
    """What a relation says that a name is, as in x = 66/2 = 33, f(x) = 2x or x in (1, 2); None for other relations."""
    named = tree[2][0] == "symbol" or (tree[2][0] == "call" and tree[2][1].startswith("function")) or _capitals(tree[2])
    if {*tree[1]} == {"="}:
        return tree[3:] if named else tree[2:] if not _symbols(tree) else None
    return tree[3:] if named and tree[1] == ("in",) else None


def _asked(tree: Tree) -> Sequence[Tree] | None:
    """The values that a relation gives what a problem asks for, as in m + n = 113 or P(X = 2) = 1/6; None for others, such
    as x^2 = 4 and 2x = 6, which have another solution than their right side.
    """
    left, values = tree[2], tree[3:]
    if {*tree[1]} != {"="} or any(_symbols(value) for value in values):
        return None
    if left[0] == "sequence":  # (x, y) = (3, 4)
        return values if left[1:3] == ("(", ")") and all(part[0] == "symbol" for part in left[3:]) else None
    if left[0] == "call":  # |AB| or \cos A
        asked = _capitals(left[2]) if left[1] == "abs" else left[1] in _ASKED and all(map(_named, left[2:]))
    elif left[0] == "product":  # P(X = 2)
        word = left[2][0] == "symbol" and left[2][1].isalpha() and len(left[2][1]) > 1
        asked = _capitals(left[1]) and (word or left[2][0] in ("relation", "union", "intersection", "number"))
    else:
        asked = left[0] == "sum" and _named(left)
    return values if asked else None


def _named(tree: Tree) -> bool:
    """Whether a tree is a name or a sum of names."""
    return all(map(_named, tree[1:])) if tree[0] == "sum" else tree[0] == "symbol" or _capitals(tree)


def _capitals(tree: Tree) -> bool:
    """Whether a tree is a name of capitals, such as the distance AB or P(A)."""
    return all(_capitals(part) for part in tree[1:]) if tree[0] == "product" else tree[0] == "symbol" and tree[1].isupper()


def _interval(tree: Tree) -> Tree | None:
    """The interval of a name between constants; None for other relations."""
    signs, members = tree[1], tree[2:]
    places = [i for i, member in enumerate(members) if _symbols(member)]
    if len(places) != 1 or members[places[0]][0] != "symbol" or not {"<", "<=", ">", ">="}.issuperset(signs):
        return None
    if len(members) > 2 and (len(members) > 3 or places != [1]):
        return None
    ends: dict[bool, tuple[Tree, bool]] = {True: (_REALS[3], False), False: (_REALS[4], False)}
    for i, sign in enumerate(signs):
        constant, lower = (members[i], sign[0] == "<") if i + 1 == places[0] else (members[i + 1], sign[0] == ">")
        if ends[lower][0] not in _REALS:
            return None
        ends[lower] = constant, sign.endswith("=")
    (low, with_low), (high, with_high) = ends[True], ends[False]
    return ("sequence", "[" if with_low else "(", "]" if with_high else ")", low, high)


def _difference(relation: Tree) -> Tree:
    return ("sum", relation[2], ("product", ("number", Fraction(-1), 0), relation[3]))


def _collections(a: Tree, b: Tree) -> bool:
    if (stated := a if a[0] == "list" else b)[0] == "list" and "union" in (a[0], b[0]):  # x < 1 or x > 2
        parts = [_interval(item) if item[0] == "relation" else None for item in stated[1:]]
        other = _flat(b if stated is a else a, "union")
        return None not in parts and _unordered(*((parts, other) if stated is a else (other, parts)))
    if ("symbol", r"\emptyset") in (a, b):  # not the set that has it as its element
        return False
    (one, items), (two, others) = _items(a), _items(b)
    if one != two and not ({one, two} <= {"", "{"} or {one, two} == {"", "()"}):
        return (one in ("", "{") or two in ("", "{")) and len(items) == len(others) == 1 and equal(items[0], others[0])
    if {one, two} <= {"", "{"}:
        return _unordered(items, others) or (one == two == "{" and _unordered(_distinct(items), _distinct(others)))
    return len(items) == len(others) and all(map(_alike, items, others))


def _items(tree: Tree) -> tuple[str, Sequence[Tree]]:
    if tree[0] == "sequence":
        return "{" if tree[1] == r"\{" else tree[1] + tree[2], tree[3:]
    return "", tree[1:] if tree[0] == "list" else (tree,)


def _alike(a: Tree, b: Tree) -> bool:
    """Whether two items are equal, where {2} is not 2."""
    return (_items(a)[0] == "{") == (_items(b)[0] == "{") and equal(a, b)


def _distinct(items: Sequence[Tree]) -> Sequence[Tree]:
    kept: list[Tree] = []
    for item in items[:MOST]:
        if not any(equal(item, other) for other in kept):
            kept.append(item)
    return kept


def _flat(tree: Tree, kind: str) -> list[Tree]:
    return [*_flat(tree[1], kind), *_flat(tree[2], kind)] if tree[0] == kind else [tree]


def _unordered(items: Sequence[Any], others: Sequence[Any]) -> bool:
    if len(items) != len(others) or len(items) > MOST:
        return False
    left = list(others)
    for item in items:
        found = next((i for i, other in enumerate(left) if _alike(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from _walk(part)


def _symbols(tree: Tree) -> frozenset[str]:
    return frozenset(part[1] for part in _walk(tree) if part[0] == "symbol")


def _literal(tree: Tree) -> tuple[Fraction, Fraction] | None:
    """The value and the place of the last digit of a number, also of 1.5 \\times 10^3; None for other trees."""
    if tree[0] == "number":
        return tree[1], tree[2] or Fraction(1)
    if tree[0] == "product" and len(tree) == 3 and tree[1][0] == "number" and tree[2][0] == "power":
        base, exponent = tree[2][1:]
        if (
            base[:2] == ("number", 10)
            and exponent[0] == "number"
            and exponent[1].denominator == 1
            and abs(exponent[1]) < LARGEST
        ):
            scale = Fraction(10) ** int(exponent[1])
            return tree[1][1] * scale, (tree[1][2] or Fraction(1)) * scale
    return None


def _values(a: Tree, b: Tree) -> bool:
    """Whether two expressions have the same value, for all values of their variables."""
    exact = not any(part[0] == "number" and part[2] for tree in (a, b) for part in _walk(tree))
    if not exact and (one := _literal(a)) and (two := _literal(b)) and abs(one[0] - two[0]) * 2 >= max(one[1], two[1]):
        return False  # two numbers that differ in the last digit that both have
    agreed = 0
    try:
        for pair in _at_points(a, b):
            if not _agree(*pair, exact):
                return False
            agreed += 1
    except Undefined:
        return False
    return agreed >= (2 if _symbols(a) | _symbols(b) else 1)


def _proportional(a: Tree, b: Tree, sign: int) -> bool:
    """Whether a is b times a constant. sign: that of the constant, or 0 for any."""
    exact = not any(part[0] == "number" and part[2] for tree in (a, b) for part in _walk(tree))
    try:
        (x, y, size), *others = _at_points(a, b)
        if not x or not y or (sign and (x / y).real * sign <= 0):
            return False
        agreed = [_agree(p * y, q * x, size + digits, exact) for p, q, digits in others]
    except (Undefined, ValueError):
        return False
    return all(agreed) and bool(agreed)


def _agree(x: Any, y: Any, size: int, exact: bool) -> bool:
    """Whether two values are equal. size: the largest decimal exponent of what they were computed from."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y if exact else abs(x - y) <= max(abs(x), abs(y)) * CLOSE
    x, y = as_float(x), as_float(y)
    if mp.isinf(x) or mp.isinf(y):
        return bool(x == y)
    limit = mp.mpf(10) ** -(DIGITS - 10 + size)
    return bool(abs(x - y) <= (limit if exact else max(limit, max(abs(x), abs(y)) * as_float(CLOSE))))


def _at_points(a: Tree, b: Tree) -> Iterator[tuple[Any, Any, int]]:
    """Both values where both exist and are real, unless there is an i in one of them, with the size of their parts."""
    names = sorted(_symbols(a) | _symbols(b))
    if any(name.startswith(("\\mathbb", "\\emptyset")) for name in names):
        raise Undefined
    complex_ = any(part == ("constant", "i") or part[:2] == ("call", "cis") for tree in (a, b) for part in _walk(tree))
    reals = [{name: _coordinate(k, scale, name) for name in names} for k, scale in enumerate(_SCALES)]
    reals += [point | {name: -point[name]} for name in names[:4] for point in reals[:2]]  # one at a time is negative
    whole = [{name: Fraction(_WHOLE[i % 4][(k + i // 4) % 8]) for i, name in enumerate(names)} for k in range(8)]
    work = [WORK * 2 if names else WORK]
    for point in [*reals, *whole] if names else [{}]:
        try:
            values, size = _both(a, b, point, work)
        except Undefined:
            if work[0] < 0:
                raise
            continue
        if complex_ or not names or not any(isinstance(v, mp.mpc) and v.imag for v in values):
            yield *values, size


def _both(a: Tree, b: Tree, point: dict[str, Fraction], work: list[int]) -> tuple[list[Any], int]:
    size = 0
    for _ in range(2):  # once more with as many digits as the first time has shown to be needed
        mp.dps = DIGITS + 2 * size
        evaluate = Evaluation(point, work)
        values = [evaluate(a), evaluate(b)]
        if evaluate.size <= size + 5:
            break
        size = evaluate.size
    return values, size


def _coordinate(k: int, scale: int, name: str) -> Fraction:
    rng = random.Random(f"{k} {name}")
    return Fraction(rng.randint(2 * 10**5, 3 * 10**6), 10**6 + 3) * Fraction(10) ** scale
