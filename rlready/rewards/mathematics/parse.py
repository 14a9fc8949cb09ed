r"""From tokens to a tree.

Readings that are a matter of convention, and how they are settled here:

- `1\frac{1}{2}` and `1 1/2` are mixed numbers: a whole number directly before a proper fraction of whole numbers.
  `3\frac{x}{2}` and `2\frac{3}{2}` are products.
- `1/2x` is (1/2)x: division and multiplication go from left to right. `2^10` is two to the tenth.
- `\frac34` takes one digit each; `\sqrt3` one digit, `\sqrt12` is refused. `\sqrt(3)` is the root of 3.
- `\sin 2x` takes the factors up to the next sign, bracket or function; `\log` without a base is to base 10.
- `\pm` stands for both values; all of them in one expression have the same sign, `\mp` the other.

Anything else is refused whole (`Unreadable`): no part of a text is ever dropped to make the rest readable.
"""

from __future__ import annotations

from fractions import Fraction

from rlready.rewards.mathematics.atoms import atom
from rlready.rewards.mathematics.tokens import Token
from rlready.rewards.mathematics.tree import EMPTY, Node, Unreadable, num
from rlready.rewards.mathematics.units import parse_unit
from rlready.rewards.mathematics.words import BASES, CONSTANTS, FUNCTIONS, UNITS, Unit

_MAX_DEPTH = 40
_MAX_TOKENS = 600
_RELATIONS = frozenset(("=", "<", ">", "<=", ">=", "!=", "in", "notin", "~", "≡"))
_END = Token("end", "end of the text")
_UNIT_LETTERS = frozenset("mghslLJNWVKC")


class Parser:
    """Reads one answer; `answer()` is the only thing to call."""

    def __init__(self, tokens: list[Token]) -> None:
        if len(tokens) > _MAX_TOKENS:
            raise Unreadable("it is too long")
        self.tokens, self.pos, self.depth, self.bars = tokens, 0, 0, 0
        self.mirrored = False
        self.money: str | None = None

    # tokens

    @property
    def now(self) -> Token:
        return self.tokens[self.pos] if self.pos < len(self.tokens) else _END

    def ahead(self, n: int = 1) -> Token:
        return self.tokens[self.pos + n] if self.pos + n < len(self.tokens) else _END

    def at(self, *texts: str) -> bool:
        return self.now.kind == "op" and self.now.text in texts

    def take(self, *texts: str) -> bool:
        if self.at(*texts):
            self.pos += 1
            return True
        return False

    def need(self, *texts: str) -> None:
        if not self.take(*texts):
            raise Unreadable(f"{' or '.join(texts)} is missing before {self.now.text!r}")

    def word(self, *texts: str) -> bool:
        return (self.now.kind == "word" or self.now.kind == "op") and self.now.text in texts

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deep")

    # statements

    def answer(self) -> Node:
        """The whole text.

        Raises:
            Unreadable: it is no mathematics that is known here.
        """
        if not self.tokens:
            raise Unreadable(EMPTY)
        node = self.listed(())
        if self.now is not _END:
            raise Unreadable(f"{self.now.text!r} is out of place")
        return node

    def listed(self, closers: tuple[str, ...]) -> Node:
        items = [self.statement()]
        joined = set()
        while True:
            sign = ""
            while self.at(",", ";") or self.word("and", "or"):
                sign = self.now.text
                self.pos += 1
            if not sign:
                break
            joined.add(sign)
            if self.now is _END or (closers and self.at(*closers)):
                raise Unreadable(f"nothing follows {sign!r}")
            items.append(self.statement())
        if len(items) == 1:
            return items[0]
        how = "or" if "or" in joined else "and" if "and" in joined else ","
        return Node("list", tuple(items), how)

    def statement(self) -> Node:
        parts, signs = [self.sets()], []
        while self.now.text in _RELATIONS and self.now.kind in ("op", "word"):
            signs.append(self.now.text)
            self.pos += 1
            parts.append(self.sets())
        if not signs:
            return parts[0]
        if signs == ["≡"]:
            return Node("cong", (parts[0], parts[1], self.modulus()))
        return Node("rel", tuple(parts), tuple(signs))

    def modulus(self) -> Node:
        bracket = self.take("(")
        if not (self.take("pmod", "bmod") or self.word("mod")):
            raise Unreadable("a congruence has no modulus")
        if self.word("mod"):
            self.pos += 1
        node = self.expression()
        if bracket:
            self.need(")")
        return node

    def sets(self) -> Node:
        node = self.quantity()
        while True:
            if self.take("cup") or self._union_letter(node):
                node = Node("union", (node, self.quantity()))
            elif self.take("cap"):
                node = Node("inter", (node, self.quantity()))
            elif self.take("\\"):
                node = Node("minus", (node, self.quantity()))
            else:
                return node

    def _union_letter(self, node: Node) -> bool:
        if node.op in ("tuple", "union") and self.now.kind == "sym" and self.now.text in ("U", "u"):
            self.pos += 1
            return True
        return False

    def quantity(self) -> Node:
        """An expression with what stands behind it: a unit, a percent sign in words, a scale such as million."""
        outer, self.money = self.money, None
        start = self.pos
        node = self.expression()
        money, self.money = self._paid(), outer
        after = self.now
        letter = self._trailing_letter(start)
        if letter is not None:
            unit, value = letter
            return Node("unit", (value, node), unit)
        if after.kind in ("word", "deg") or (after.kind == "sym" and after.upright):
            node, self.pos = parse_unit(node, self.tokens, self.pos)
        if money is not None:
            if node.op == "unit":
                raise Unreadable("a sum of money has another unit")
            return Node("unit", (node,), UNITS.get(money, Unit((("yen", 1),))))
        return node

    def _paid(self) -> str | None:
        return self.money  # what `expression` met meanwhile

    def _trailing_letter(self, start: int) -> tuple[Unit, Node] | None:
        """`5 m`: a number, a blank and a letter that names a unit, and nothing more; both readings are kept."""
        letters = [k for k in range(start, self.pos) if self.tokens[k].kind == "sym"]
        if not letters or letters[0] == start or (self.now is not _END and not self.at(",", ";", "=", ")")):
            return None
        first = self.tokens[letters[0]]
        if not first.space or first.text not in _UNIT_LETTERS:
            return None
        inner = Parser(self.tokens[start : letters[0]])
        try:
            value = inner.expression()
            node, end = parse_unit(value, self.tokens[: self.pos], letters[0])
        except Unreadable:
            return None
        whole = inner.now is _END and end == self.pos and node.op == "unit" and not node.value.noun
        return (node.value, value) if whole else None

    # expressions

    def expression(self) -> Node:
        self.deeper()
        parts: list[Node] = []
        sign = self.sign()
        first = self.term()
        node = first if sign == "+" else Node("neg", (first,)) if sign == "-" else _both(sign, None, first)
        parts.append(node)
        while self.at("+", "-", "±", "∓"):
            sign = self.now.text
            self.pos += 1
            inner = self.sign()
            term = self.term()
            if inner != "+":
                term = Node("neg", (term,)) if inner == "-" else _both(inner, None, term)
            if sign in "±∓":
                parts = [_both(sign, _sum(parts), term)]
            else:
                parts.append(term if sign == "+" else Node("neg", (term,)))
        self.depth -= 1
        return _sum(parts)

    def sign(self) -> str:
        sign = "+"
        while self.at("+", "-", "±", "∓"):
            if self.now.text != "+":
                if sign != "+" and (sign, self.now.text) != ("-", "-"):
                    raise Unreadable("signs follow each other")
                sign = "+" if sign == "-" else self.now.text
            self.pos += 1
        return sign

    def term(self) -> Node:
        start = self.pos
        node = self.power()
        whole = self.pos == start + 1 and self.tokens[start].kind == "num"
        while True:
            if self.at("*"):
                self.pos += 1
                node = Node("mul", (node, self.factor()))
            elif self.at("/"):
                self.pos += 1
                node = Node("div", (node, self.factor()))
            elif self._times_letter():
                self.pos += 1
                node = Node("mul", (node, self.factor()))
            elif self.now.kind == "num":
                node = self._after_number(node, whole)
            elif self._begins_factor():
                fraction = self.now.kind == "frac" and self.now.text == "frac"
                right = self.power()
                if whole and fraction and _proper(right) and node.value.denominator == 1:
                    node = Node("add", (node, right))
                else:
                    node = Node("mul", (node, right))
            else:
                return node
            whole = False

    def factor(self) -> Node:
        sign = self.sign()
        node = self.power()
        if sign == "+":
            return node
        if sign != "-":
            raise Unreadable(f"{sign} stands behind a multiplication sign")
        return Node("neg", (node,))

    def _times_letter(self) -> bool:
        """`3 x 4`, `3.0 x 10^8`: a letter between two numbers is the multiplication sign."""
        before, after = self.tokens[self.pos - 1], self.ahead()
        letter = self.now.kind == "sym" and self.now.text in ("x", "X")
        return letter and before.kind == "num" and after.kind == "num"

    def _after_number(self, node: Node, whole: bool) -> Node:
        """A number behind something: the fraction of a mixed number, or a mistake."""
        if self.tokens[self.pos - 1].kind == "num":
            top, slash, bottom = self.now, self.ahead(), self.ahead(2)
            if (
                whole
                and top.space
                and slash.text == "/"
                and bottom.kind == "num"
                and node.value.denominator == 1
                and _proper(Node("div", (num(top.value or 0), num(bottom.value or 0))))
            ):
                self.pos += 3
                return Node("add", (node, num(Fraction(top.value or 0) / Fraction(bottom.value or 1))))
            raise Unreadable("two numbers stand side by side")
        if self.tokens[self.pos - 1].kind in ("sym", "word"):
            raise Unreadable("a number stands behind a letter")
        return Node("mul", (node, self.power()))

    def _begins_factor(self) -> bool:
        token = self.now
        if token.kind == "sym":
            if token.text in ("U", "u") and self.tokens[self.pos - 1].text in (")", "]") and self.ahead().text in "([":
                return False
            return not (token.upright and token.space and self.depth == 1)
        if token.kind == "frac":
            return True
        if token.kind == "env":
            return token.text.startswith("\\begin")
        if token.kind == "word":
            return (token.text in FUNCTIONS and not self._is_unit_word()) or token.text in CONSTANTS
        if token.kind == "op":
            return (
                token.text in ("(", "{", "⌊", "⌈")
                or (token.text == "[" and not self.mirrored)
                or (token.text == "|" and not self.bars)
            )
        return False

    def _is_unit_word(self) -> bool:
        """`5 min`, `3 sec`: a function's name with nothing to apply to is a unit."""
        after = self.ahead()
        return self.now.text in UNITS and (after is _END or (after.kind == "op" and after.text not in "(^_{|"))

    def power(self) -> Node:
        self.deeper()
        node = self.atom()
        while True:
            if self.take("!"):
                node = Node("fn", (node,), "fact")
            elif self.take("^"):
                node = Node("pow", (node, self.exponent()))
            elif self.take("%"):
                node = Node("percent", (node,))
            elif self.at("_") and node.op in ("num", "add", "mul", "sym", "tuple"):
                self.pos += 1
                node = self.based(node)
            elif self.now.kind == "deg" and (self.depth > 2 or self.ahead() is not _END) and not self.now.text:
                if self.depth <= 2 and self.ahead().kind == "op" and self.ahead().text in _RELATIONS | {",", ";"}:
                    break
                self.pos += 1
                node = Node("fn", (node,), "degree")
            else:
                break
        self.depth -= 1
        return node

    def exponent(self) -> Node:
        if self.at("{"):
            return self.group()
        sign = self.sign()
        node = self.atom()
        if self.at("!"):
            raise Unreadable("a factorial behind an exponent is ambiguous")
        if self.take("^"):
            node = Node("pow", (node, self.exponent()))
        return Node("neg", (node,)) if sign == "-" else node

    def based(self, node: Node) -> Node:
        """A numeral in a base that is not ten."""
        if node.op != "num" or node.value.denominator != 1:
            raise Unreadable("a subscript is out of place")
        braces = self.take("{")
        base = 0
        while not (base and not braces) and not self.at("}") and self.now is not _END:
            token = self.now
            if token.kind == "num" and token.value is not None and token.value.denominator == 1:
                base = int(token.value) if token.value < 100 else 0
            elif token.text.lower() in BASES:
                base = BASES[token.text.lower()]
            elif token.text != "base":
                break
            self.pos += 1
        if braces:
            self.need("}")
        return numeral(str(node.value.numerator), base)

    def group(self) -> Node:
        self.need("{")
        node = self.listed(("}",))
        self.need("}")
        return node

    def atom(self) -> Node:
        return atom(self)


def numeral(digits: str, base: int) -> Node:
    """A numeral in a base.

    Raises:
        Unreadable: the base is none, or a digit is not below it.
    """
    if not 2 <= base <= 36:
        raise Unreadable("a subscript is no base")
    try:
        value = int(digits, base)
    except ValueError:
        raise Unreadable(f"{digits} has digits that base {base} has not") from None
    return num(value) if base == 10 else Node("base", (), (value, base))


def _sum(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Node("add", tuple(parts))


def _both(sign: str, left: Node | None, right: Node) -> Node:
    return Node("pm", (right,) if left is None else (left, right), 1 if sign == "±" else -1)


def _proper(node: Node) -> bool:
    """A fraction of whole numbers between 0 and 1."""
    if node.op != "div" or not all(a.op == "num" and a.value.denominator == 1 for a in node.args):
        return False
    top, bottom = (Fraction(a.value) for a in node.args)
    return 0 < top < bottom
