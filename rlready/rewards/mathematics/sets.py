"""Sets of real numbers as sorted, disjoint intervals: brackets, unions, inequalities and conditions in one form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key

from rlready.rewards.mathematics.decide import order
from rlready.rewards.mathematics.tree import Budget, Node, TooMuchError, Unreadable, walk

_MAX_PIECES = 60
_LOW, _HIGH = Node("const", (), "-inf"), Node("const", (), "inf")
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class Unordered(Exception):
    """It is no set of real numbers whose ends can be ordered."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval; its ends are trees or the infinities, and belong to it or not."""

    low: Node
    high: Node
    left: bool
    right: bool


def real_set(node: Node, budget: Budget) -> tuple[list[Piece], str]:
    """The pieces of a set, and the name of the number that is said to be in it ("" where there is none).

    Raises:
        Unordered: it is no such set.
    """
    names: set[str] = set()
    pieces = _Reader(budget, names).of(node)
    if len(names) > 1:
        raise Unordered("it speaks of several numbers")
    return pieces, next(iter(names), "")


def is_infinite(node: Node) -> int:
    """1 or -1 for the infinities, 0 for anything else."""
    if node.op == "const" and node.value == "inf":
        return 1
    if node.op == "const" and node.value == "-inf":
        return -1
    if node.op == "neg":
        return -is_infinite(node.args[0])
    return 0


def _distance(node: Node) -> tuple[str, Node] | None:
    """Of |x|, |x - 3| and |x + 3|: the name and the middle."""
    if node.op != "fn" or node.value != "abs":
        return None
    inner = node.args[0]
    if inner.op == "sym":
        return str(inner.value), Node("num", (), Fraction(0))
    if inner.op == "add" and len(inner.args) == 2 and inner.args[0].op == "sym":
        shift = inner.args[1]
        if not any(n.op == "sym" for n in walk(shift)):
            return str(inner.args[0].value), Node("neg", (shift,))
    return None


class _Reader:
    def __init__(self, budget: Budget, names: set[str]) -> None:
        self.budget, self.names = budget, names

    def of(self, node: Node) -> list[Piece]:
        op = node.op
        if op == "tuple" and len(node.args) == 2:
            return self.interval(*node.args, node.value[0] == "[", node.value[1] == "]")
        if op == "empty":
            return []
        if op == "within" and node.value == "R":
            return [Piece(_LOW, _HIGH, False, False)]
        if op == "within" and node.value in ("R+", "R-"):
            zero = Node("num", (), 0)
            return self.interval(*((zero, _HIGH) if node.value == "R+" else (_LOW, zero)), False, False)
        if op == "set":
            return self.union([p for a in node.args for p in self.interval(a, a, True, True)])
        if op == "union":
            return self.union(self.of(node.args[0]) + self.of(node.args[1]))
        if op == "inter":
            return self.intersection(self.of(node.args[0]), self.of(node.args[1]))
        if op == "minus":
            return self.intersection(self.of(node.args[0]), self.complement(self.of(node.args[1])))
        if op == "rel":
            return self.relation(node)
        if op == "build":
            return self.built(node)
        if op == "list":
            return self.listed(node)
        raise Unordered("it is no set of real numbers")

    def built(self, node: Node) -> list[Piece]:
        head, condition = node.args
        if head.op == "rel" and head.value == ("in",):
            base = self.of(head)
            return self.intersection(base, self.of(condition))
        if head.op != "sym":
            raise Unordered("it is a set by a condition that is not read")
        return self.of(condition)

    def listed(self, node: Node) -> list[Piece]:
        parts = [self.of(a) for a in node.args]
        if any(a.op not in ("rel", "tuple", "union", "inter") for a in node.args) or not parts:
            raise Unordered("it is a list")
        if node.value != "or" and all(a.op == "tuple" for a in node.args):
            raise Unordered("it is a list of pairs or intervals")
        if node.value == "or":
            return self.union([p for part in parts for p in part])
        both = parts[0]
        for part in parts[1:]:
            both = self.intersection(both, part)
        if both or node.value == "and":
            return both
        return self.union([p for part in parts for p in part])

    def interval(self, low: Node, high: Node, left: bool, right: bool) -> list[Piece]:
        below, above = is_infinite(low), is_infinite(high)
        if (below and left) or (above and right) or below > 0 or above < 0:
            raise Unordered("an interval has infinity in it or the wrong way round")
        low, high = (_LOW if below else low), (_HIGH if above else high)
        for end in (low, high):
            if any(n.op in ("sym", "unit", "tuple", "set", "pm", "rel", "list") for n in walk(end)):
                raise Unordered("an end is no number")
        sign = self.compare(low, high)
        if sign > 0:
            raise Unordered("the ends are in the wrong order")
        return [Piece(low, high, left, right)] if sign < 0 or (left and right) else []

    def relation(self, node: Node) -> list[Piece]:
        parts, signs = list(node.args), list(node.value)
        if signs == ["in"]:
            if parts[0].op != "sym":
                raise Unordered("what is in the set has no name")
            self.names.add(parts[0].value)
            return self.of(parts[1])
        total = [Piece(_LOW, _HIGH, False, False)]
        used = False
        for left, sign, right in zip(parts, signs, parts[1:], strict=False):
            if sign not in _FLIP:
                raise Unordered("it is no inequality")
            if (right.op == "sym" and left.op != "sym") or _distance(right):
                left, right, sign = right, left, _FLIP[sign]
            around = _distance(left)
            if around and not any(n.op == "sym" for n in walk(right)):
                total = self.intersection(total, self.near(*around, right, sign))
                used = True
                continue
            if left.op != "sym" or any(n.op == "sym" for n in walk(right)):
                raise Unordered("it is no inequality of one number")
            self.names.add(left.value)
            total = self.intersection(total, self.half(right, sign))
            used = True
        if not used or len(parts) > 3:
            raise Unordered("it is no inequality")
        return total

    def near(self, name: str, center: Node, radius: Node, sign: str) -> list[Piece]:
        """Where |name - center| is below or above the radius."""
        self.names.add(name)
        if self.compare(radius, Node("num", (), Fraction(0))) < 0 or is_infinite(radius):
            raise Unordered("a distance is compared with no positive number")
        low, high = (Node("add", (center, r)) for r in (Node("neg", (radius,)), radius))
        if sign in ("=", "!="):
            points = self.union([*self.interval(low, low, True, True), *self.interval(high, high, True, True)])
            return points if sign == "=" else self.complement(points)
        if sign[0] == "<":
            return self.interval(low, high, sign == "<=", sign == "<=")
        return self.complement(self.interval(low, high, sign == ">", sign == ">"))

    def half(self, end: Node, sign: str) -> list[Piece]:
        if sign == "=":
            return self.interval(end, end, True, True)
        if sign == "!=":
            return self.complement(self.interval(end, end, True, True))
        closed = "=" in sign and not is_infinite(end)
        if sign[0] == "<":
            return self.interval(_LOW, end, False, closed)
        return self.interval(end, _HIGH, closed, False)

    # arithmetic of sets

    def compare(self, a: Node, b: Node) -> int:
        x, y = is_infinite(a), is_infinite(b)
        if x or y:
            return (x > y) - (x < y)
        self.budget.spend(5)
        try:
            sign = order(a, b, self.budget)
        except Unreadable as error:
            raise Unordered(str(error)) from None
        if sign is None:
            raise TooMuchError("the ends of an interval cannot be ordered")
        return sign

    def union(self, pieces: list[Piece]) -> list[Piece]:
        if len(pieces) > _MAX_PIECES:
            raise TooMuchError("a set has many pieces")
        by_low: Callable[[Piece, Piece], int] = lambda p, q: self.compare(p.low, q.low) or q.left - p.left  # noqa: E731
        out: list[Piece] = []
        for piece in sorted(pieces, key=cmp_to_key(by_low)):
            if out:
                last = out[-1]
                gap = self.compare(piece.low, last.high)
                if gap < 0 or (gap == 0 and (piece.left or last.right)):
                    longer = self.compare(piece.high, last.high)
                    high = piece.high if longer > 0 else last.high
                    right = piece.right if longer > 0 else last.right if longer < 0 else piece.right or last.right
                    out[-1] = Piece(last.low, high, last.left, right)
                    continue
            out.append(piece)
        return out

    def complement(self, pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        low, left = _LOW, False
        for piece in self.union(pieces):
            if self.compare(low, piece.low) < 0 or (left and not piece.left and low is not _LOW):
                out.append(Piece(low, piece.low, left, not piece.left and piece.low is not _LOW))
            low, left = piece.high, not piece.right
        if low is not _HIGH:
            out.append(Piece(low, _HIGH, left, False))
        return out

    def intersection(self, a: list[Piece], b: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for p in a:
            for q in b:
                low = self.compare(p.low, q.low)
                high = self.compare(p.high, q.high)
                start, left = (p.low, p.left) if low > 0 else (q.low, q.left) if low < 0 else (p.low, p.left and q.left)
                end, right = (
                    (p.high, p.right) if high < 0 else (q.high, q.right) if high > 0 else (p.high, p.right and q.right)
                )
                size = self.compare(start, end)
                if size < 0 or (size == 0 and left and right):
                    out.append(Piece(start, end, left, right))
        return self.union(out)


def same_pieces(a: list[Piece], b: list[Piece], budget: Budget) -> bool:
    """Whether two sets are one."""
    reader = _Reader(budget, set())
    return len(a) == len(b) and all(
        p.left == q.left
        and p.right == q.right
        and reader.compare(p.low, q.low) == 0
        and reader.compare(p.high, q.high) == 0
        for p, q in zip(a, b, strict=True)
    )
