"""Reads a tidy text into a tree (notation.py), by recursive descent."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from gspo.rewards import notation as n
from gspo.rewards.notation import Tree, UnreadableAnswer, bare
from gspo.rewards.units import measured, unit

_PM, _MP = (re.compile(rf"\\{name}(?![a-zA-Z])") for name in ("pm", "mp"))


def read(text: str) -> Tree:
    """The tree of a tidy text. Raises UnreadableAnswer."""
    if not 0 < len(text) <= n.LONGEST:
        raise UnreadableAnswer(f"{len(text)} characters")
    if _PM.search(text) or _MP.search(text):  # both values of a plus-minus
        both = [read(_PM.sub(upper, _MP.sub(lower, text))) for upper, lower in ("+-", "-+")]
        items = [item for tree in both for item in (tree[1:] if tree[0] == "list" else [tree])]
        return ("list", *dict.fromkeys(items))
    reader = _Reader(text)
    tree = reader.items()
    if reader.peek():
        raise UnreadableAnswer(f"at {text[reader.at :]!r:.40}")
    return tree


class _Reader:
    """Recursive descent over a text. Each method reads the longest tree of its kind at `at`, or raises UnreadableAnswer."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.inside = text, 0, 0, 0
        self.closing: list[str] = []

    def peek(self) -> str:
        """The next token; "" at the end."""
        found = n.TOKEN.match(self.text, self.at)
        return found[1].strip() if found else ""

    def take(self, *tokens: str) -> str:
        """Reads the next token, which must be one of `tokens`, if given."""
        found = n.TOKEN.match(self.text, self.at)
        if found is None or (tokens and found[1] not in tokens):
            raise UnreadableAnswer(f"at {self.text[self.at :]!r:.40}")
        self.at = found.end()
        return found[1]

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def items(self) -> Tree:
        items, words = [self.relation()], ""
        while found := self.match(n.AND):
            words, items = words + found[0], [*items, self.relation()]
        return n.listed(items, words)

    def relation(self) -> Tree:
        members, operators = [self.sets()], []
        while (operator := n.RELATIONS.get(self.peek())) is not None:
            self.take()
            operators.append(operator)
            members.append(self.sets())
        return ("relation", tuple(operators), *members) if operators else members[0]

    def sets(self) -> Tree:
        tree = self.sum()
        while (kind := n.SETS.get(self.peek())) is not None:
            self.take()
            tree = (kind, tree, self.sum())
        return tree

    def sum(self) -> Tree:
        word = n.WORD.match(self.text, self.at) if self.closing in ([], [r"\}"]) else None
        if word and word[1] not in n.CONSTANTS and word[1] not in n.FUNCTIONS:
            self.at = word.end()  # such as no, which is not n times o
            return ("symbol", word[1].casefold())
        terms = [self.signed(self.term)]
        while self.peek() in ("+", "-"):
            terms.append(self.signed(self.term))
        tree = terms[0] if len(terms) == 1 else ("sum", *terms)
        if self.peek() == ":" and tree[0] == "number":  # a ratio
            self.take()
            tree = ("quotient", tree, self.number(n.INSIDE))
        return self.measured(tree)

    def signed(self, part: Callable[[], Tree]) -> Tree:
        self.depth += 1
        if self.depth > n.DEEPEST * 8:
            raise UnreadableAnswer("too deep")
        sign = self.take() if self.peek() in ("+", "-") else ""
        tree = self.signed(part) if sign and self.peek() in ("+", "-") else part()
        self.depth -= 1
        return n.negative(tree) if sign == "-" else tree

    def term(self) -> Tree:
        tree = self.power()
        while True:
            token = self.peek()
            if token in (r"\cdot", r"\times", "*", r"\ast"):
                self.take()
                tree = ("product", tree, self.signed(self.power))
            elif token in ("/", r"\div"):
                self.take()
                tree = ("quotient", tree, self.signed(self.power))
            elif self.more(token):
                tree = ("product", tree, self.power())
            else:
                return tree

    def more(self, token: str) -> bool:
        """Whether another factor begins without a sign between. A number does after ! alone: 2 3 and x2 are not read."""
        if not token or token in self.closing[-1:]:
            return False
        if token[0].isdigit():
            return self.text[self.at - 1] == "!"
        if n.AND.match(self.text, self.at) or unit(self.text, self.at):
            return False
        return token in n.STARTS or token.isalpha() or bool(n.NAMED.match(self.text, self.at))

    def power(self) -> Tree:
        tree = self.atom()
        while True:
            token = self.peek()
            if token in n.FACTORIALS:
                self.take()
                tree = ("call", n.FACTORIALS[token], tree)
            elif token in ("%", r"\%"):
                self.take()
                tree = ("percent", tree)
            elif token in ("^", "**") and tree[0] != "power" and not unit(self.text, self.at):
                self.take()
                tree = ("power", tree, self.script())
            else:
                return tree

    def script(self) -> Tree:
        """An exponent, or the base of a logarithm."""
        if self.peek() == "{":
            return self.atom()
        return self.signed(lambda: self.number(n.INSIDE) if self.peek().isdigit() else self.atom())

    def atom(self) -> Tree:
        self.depth += 8
        if self.depth > n.DEEPEST * 8:
            raise UnreadableAnswer("too deep")
        tree = self.based() or self._atom(self.peek())
        self.depth -= 8
        return tree

    def _atom(self, token: str) -> Tree:
        if token[:1].isdigit() or token == ".":
            return self.mixed()
        if token in n.RIGHT:
            return self.bracketed()
        if token == "{":
            return self.enclosed("{", "}")
        if token in n.AROUND:
            right, function = n.AROUND[token]
            return ("call", function, self.enclosed(token, right))
        if token in n.FRACTIONS:
            self.take()
            return ("quotient", self.argument(), self.argument())
        if token in n.BINOMIALS:
            self.take()
            return ("call", "binomial", self.argument(), self.argument())
        if token == r"\sqrt":
            self.take()
            index = self.enclosed("[", "]") if self.peek() == "[" else ("number", Fraction(2), 0)
            return ("call", "root", self.argument(), index)
        if token == r"\begin":
            return self.matrix()
        if token[1:] in n.FUNCTIONS or token in n.SYMBOLS or (token in n.CONSTANTS and token.startswith("\\")):
            return self.named(self.take().removeprefix("\\") if token[1:] in n.FUNCTIONS else self.take())
        if token == r"\mathbb":
            found = self.match(re.compile(r" ?\\mathbb ?(?:\{ ?([A-Z]) ?\}|([A-Z]))"))
            return self.named(f"\\mathbb{{{found[1] or found[2]}}}" if found else token)
        if angle := self.match(n.ANGLE):
            return ("symbol", rf"\angle {angle[1]}")
        if word := self.match(n.NAMED):
            return self.named(" ".join(word[1].split()))
        return self.word()

    def word(self) -> Tree:
        """A name of up to three letters is a product of them, a longer one a single symbol."""
        found = n.NAME.match(self.text, self.at)
        if not found:
            raise UnreadableAnswer(f"at {self.text[self.at :]!r:.40}")
        name = found[1]
        function = next((each for each in n.FUNCTIONS if name.startswith(each) and len(name) <= len(each) + 1), None)
        name = function or (name if name in n.CONSTANTS or len(name) > 3 else name[0])
        self.at = found.start(1) + len(name)
        return self.named(name)

    def named(self, name: str) -> Tree:
        if name in n.FUNCTIONS:
            return self.function(name)
        if not re.fullmatch(r"\\?[^\W\d_ ]+( [^\W\d_ ]+)*|\\mathbb\{\w\}", n.SYMBOLS.get(name, name)):
            raise UnreadableAnswer(name)
        index, primes = self.match(n.SUBSCRIPT), self.match(n.PRIMES)
        if index is None and primes is None and name in n.CONSTANTS:
            return ("constant", n.CONSTANTS[name])
        name = n.SYMBOLS.get(name, name if len(name) == 1 else name.casefold() if name[0] != "\\" else name)
        name += f"_{bare(index[1] or index[2] or index[3] or '')}" if index else ""
        called = name[0] in "fgh" or (len(name) == 1 and n.DEFINED.match(self.text, self.at))
        called = called and self.text.startswith("(", self.at)
        name = (primes[0] if primes else "") + name
        return ("call", f"function {name}", *self.arguments()) if called else ("symbol", name)

    def function(self, name: str) -> Tree:
        base: Tree | None = None
        exponent: Tree | None = None
        while self.peek() in ("^", "_"):
            if self.take() == "_" and name == "log" and base is None:
                base = self.script()
            elif exponent is None and self.text[self.at - 1] == "^":
                exponent = self.script()
            else:
                raise UnreadableAnswer(name)
        if exponent == ("number", Fraction(-1), 0):
            name, exponent = f"arc{name}", None
        tree = ("call", name, *self.arguments(), *((base,) if base else ()))
        return ("power", tree, exponent) if exponent else tree

    def arguments(self) -> tuple[Tree, ...]:
        """The arguments of a function: what is in brackets, or else all factors up to the next function or sign."""
        if self.peek() in n.RIGHT:
            tree = self.bracketed()
            return tree[3:] if tree[0] == "sequence" else (tree,)
        if self.peek() in n.AROUND or self.peek() == "{":
            return (self.atom(),)
        tree = self.power()
        while self.more(token := self.peek()) and token[1:] not in n.FUNCTIONS and token not in n.RIGHT:
            tree = ("product", tree, self.power())
        return (self.measured(tree),)

    def within(self, right: str) -> Tree:
        self.closing.append(right)
        tree = self.items()
        self.closing.pop()
        return tree

    def enclosed(self, left: str, right: str) -> Tree:
        self.take(left)
        tree = self.within(right)
        self.take(right)
        return tree

    def bracketed(self) -> Tree:
        left = self.take()
        if left == r"\{" and self.peek() == r"\}":
            self.take()
            return ("symbol", r"\emptyset")
        self.inside += 1
        tree = self.within(n.RIGHT[left][-1])
        self.inside -= 1
        right = self.take(*n.RIGHT[left])
        if left in ("(", "[") and tree[0] != "list":
            if (left, right) in (("(", ")"), ("[", "]")):
                return tree
            raise UnreadableAnswer("an interval with one end")
        items = tree[1:] if tree[0] == "list" else (tree,)
        left, right = {r"\lbrace": (r"\{", r"\}"), r"\langle": ("(", ")")}.get(left, (left, right))
        return ("sequence", left, right, *items)

    def argument(self) -> Tree:
        """An argument of a command: a group, or as in TeX a single digit, letter or command."""
        self.peek()
        at = self.at + (self.text[self.at : self.at + 1] == " ")
        if self.text[at : at + 1].isdigit():
            self.at = at + 1
            return ("number", Fraction(int(self.text[at])), 0)
        if self.text[at : at + 1].isalpha():
            self.at = at + 1
            return self.named(self.text[at])
        return self.atom()

    def matrix(self) -> Tree:
        found = self.match(re.compile(r" ?\\begin ?\{((?:[pbB]|small)?matrix|array)\}(?: ?\{[clr|]*\})?"))
        if not found:
            raise UnreadableAnswer("an environment")
        rows = [[self.relation()]]
        while (token := self.peek()) in ("&", r"\\"):
            self.take()
            if token == "&":
                rows[-1].append(self.relation())
            elif self.peek() != r"\end":
                rows.append([self.relation()])
        if not self.match(re.compile(rf" ?\\end ?\{{{found[1]}\}}")):
            raise UnreadableAnswer("an environment")
        return ("matrix", *(("row", *row) for row in rows))

    def based(self) -> Tree | None:
        """A numeral with its base, such as 101_2; None for anything else."""
        found = n.BASE.match(self.text, self.at)
        if not found:
            return None
        digits, name = found["a"] or found["b"] or found["c"], found["base"] or found["digit"]
        base = n.BASES.get(name) or (int(name) if name.isdecimal() and len(name) < 3 else 0)
        lettered = not digits.isdecimal() and not digits[0].isdecimal()
        if not 2 <= base <= 36 or (lettered and (base != 16 or len(digits) < 2)):
            return None
        try:
            value = int(digits, base)
        except ValueError:
            return None
        self.at = found.end()
        return ("number", Fraction(value), 0)

    def mixed(self) -> Tree:
        """A number, or a mixed number such as 2 1/2."""
        found = n.MIXED.match(self.text, self.at)
        if found and 0 < int(found[2]) < int(found[3]):
            self.at = found.end()
            return ("number", int(found[1]) + Fraction(int(found[2]), int(found[3])), 0)
        number = self.number(n.INSIDE if self.inside else n.OUTSIDE)
        if number[1].denominator == 1 and number[2] == 0 and self.peek() in n.FRACTIONS:
            at, part = self.at, self.atom()
            over, under = part[1:]
            if over[0] == under[0] == "number" and over[2] == under[2] == 0 and 0 < over[1] < under[1]:
                return ("number", number[1] + over[1] / under[1], 0)
            self.at = at
        return number

    def number(self, pattern: re.Pattern[str]) -> Tree:
        found = pattern.match(self.text, self.at)
        assert found is not None  # it matches the empty text
        whole, decimals, exponent = found["whole"] or "", found["decimals"] or "", int(found["exponent"] or 0)
        if (not whole and not decimals and not found["repeated"]) or abs(exponent) > n.LARGEST:
            raise UnreadableAnswer(f"at {self.text[self.at :]!r:.40}")
        self.at = found.end()
        scale = Fraction(10) ** (exponent - len(decimals))
        value = int(re.sub("[^0-9]", "", whole) + decimals or "0") * scale
        if repeated := found["repeated"]:
            return ("number", value + int(repeated) * scale / (10 ** len(repeated) - 1), 0)
        return ("number", value, scale if decimals else 0)

    def measured(self, tree: Tree) -> Tree:
        """A tree with the unit that follows, if any."""
        if (found := unit(self.text, self.at)) is None:
            return tree
        words, self.at = found
        return measured(tree, words)
