"""The values of answers (notation.py): fractions as long as they can be, and else floats of many digits, in bounded time."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath

from gspo.rewards.notation import Tree

Value = Any  # a Fraction, or a float or complex number of `mp`
LARGEST = 1000  # decimal exponent of a float
BITS = 100_000  # of a fraction
WORK = 400_000  # about ten nanoseconds each
mp = mpmath.mp.clone()
_DIRECT = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc, "arcsin": mp.asin,
    "arccos": mp.acos, "arctan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "arcsinh": mp.asinh,
    "arccosh": mp.acosh, "arctanh": mp.atanh, "abs": abs, "cis": mp.expj,
}  # fmt: skip
_WHOLE = {"gcd": math.gcd, "lcm": math.lcm}
_FOLDED = {"sum": operator.add, "product": operator.mul, "quotient": operator.truediv}


class Undefined(ArithmeticError):
    """A value that does not exist, or is too large to compute."""


class Evaluation:
    """Computes values, where variables have the values of `point`. The only element of `work` is what is left to spend."""

    def __init__(self, point: Mapping[str, Fraction], work: list[int]) -> None:
        self.point, self.work = point, work
        self.size = 0  # the largest decimal exponent, up or down, of all floats so far

    def __call__(self, tree: Tree) -> Value:
        """The value of a tree. Raises Undefined."""
        try:
            value = self._value(tree)
        except (ZeroDivisionError, ValueError, TypeError, OverflowError, mpmath.libmp.ComplexResult) as error:
            raise Undefined(str(error)) from None
        return self._checked(value)

    def _checked(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            if bits > BITS:
                raise Undefined
            self.work[0] -= 1 + bits // 16
        else:
            if mp.isnan(value):
                raise Undefined
            if value and not mp.isinf(value):
                self.size = max(self.size, int(abs(mp.mag(value)) * 0.302))
            if self.size > LARGEST:
                raise Undefined
            self.work[0] -= mp.dps
        if self.work[0] < 0:
            raise Undefined
        return value

    def _value(self, tree: Tree) -> Value:
        kind = tree[0]
        if kind == "number":
            return tree[1]
        if kind == "symbol":
            return self.point[tree[1]]
        if kind == "constant":
            return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1), "infinity": mp.inf}[tree[1]]
        if kind == "call":
            return self._called(tree[1], [self(part) for part in tree[2:]])
        if kind == "quantity" and tree[2] == "degree":
            return as_float(self(tree[1])) * mp.pi / 180
        values = [self(part) for part in tree[1:]]
        if not all(isinstance(value, Fraction) for value in values):
            values = [self._checked(as_float(value)) for value in values]  # of which the smallest counts too
        if kind in _FOLDED:
            return reduce(_FOLDED[kind], values)
        if kind == "percent":
            return values[0] / 100
        if kind == "power":
            return self._power(*values)
        raise Undefined(f"{kind} has no value")

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and exponent.denominator == 1 and (base or exponent > 0):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(base) != 1 and (bits - 1) * abs(exponent) > BITS:
                raise Undefined
            return base ** int(exponent % 2 if abs(base) == 1 else exponent)
        base, exponent = as_float(base), as_float(exponent)
        if not base and exponent.real > 0:
            return mp.zero
        if not base or abs(exponent) * (abs(mp.mag(base)) + 1) > 4 * LARGEST:
            raise Undefined
        return mp.power(base, exponent)

    def _called(self, name: str, values: list[Value]) -> Value:
        if name in ("max", "min"):
            return (max if name == "max" else min)(values)
        first = values[0]
        if name in _WHOLE:
            return Fraction(_WHOLE[name](*map(_whole, values)))
        if name in ("floor", "ceil"):
            return self._rounded(first, name)
        if name in ("factorial", "double factorial"):
            if (n := _whole(first)) < 0 or n * max(n.bit_length(), 1) > BITS:
                raise Undefined
            return Fraction(math.factorial(n) if name == "factorial" else math.prod(range(n, 1, -2)))
        if name == "binomial":
            n, k = map(_whole, values)
            if not 0 <= n <= BITS or not k >= 0 or min(k, max(n - k, 0)) * n.bit_length() > BITS:
                raise Undefined
            return Fraction(math.comb(n, k))
        x, *others = (self._checked(as_float(value)) for value in values)
        if name == "abs" and isinstance(first, Fraction):
            return abs(first)
        if name in ("ln", "log", "lg"):
            if not x:
                raise Undefined
            (base,) = others or [10]
            return mp.log(x) / (1 if name == "ln" else mp.log(base))
        if name == "root":
            n = _whole(values[1])
            if not 0 < n <= LARGEST:
                raise Undefined
            return -mp.root(-x, n) if n % 2 and not isinstance(x, mp.mpc) and x < 0 else mp.root(x, n)
        if name == "sqrt":
            return mp.sqrt(x)
        if abs(x) > 2 * LARGEST and name in ("exp", "sinh", "cosh", "tanh"):
            raise Undefined
        if name == "exp":
            return mp.exp(x)
        if name.startswith("function"):  # of which nothing is known but that it gives equals for equals
            return reduce(lambda a, b: mp.cos(a + b * mp.e), map(as_float, values), mp.mpf(len(name) + ord(name[-1])))
        if len(values) > 1 or name not in _DIRECT:
            raise Undefined(name)
        return _DIRECT[name](x)

    def _rounded(self, value: Value, name: str) -> Value:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value) if name == "floor" else math.ceil(value))
        if self.size > 40:
            raise Undefined
        near = mp.nint(value)
        if abs(value - near) < mp.mpf(10) ** -40:
            return Fraction(int(near))
        return Fraction(int(mp.floor(value) if name == "floor" else mp.ceil(value)))


def as_float(value: Value) -> Value:
    """A value as a float of `mp`."""
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _whole(value: Value) -> int:
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    raise Undefined("not a whole number")
