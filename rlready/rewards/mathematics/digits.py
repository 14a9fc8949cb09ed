"""Values of trees to many digits, and how small an algebraic number can be without being zero.

The bound is that of Burnikel, Funke, Mehlhorn, Schirra and Schmitt (2001): an expression of integers, the four
operations and roots is a quotient U/L of algebraic integers of a field of degree at most D, the product of the degrees
of its roots. With u and l bounds on the absolute values of all conjugates of U and L: where the value is not zero, U
has a norm of at least 1, so |U| >= u^(1-D), and |U/L| >= u^(1-D) / l. So enough digits decide equality, exactly.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rlready.rewards.mathematics.tree import Budget, Node, TooMuchError, Undefined, Unreadable, num, walk

_MAX_EXPONENT_BITS = 200
_MAX_BOUND_BITS = 20_000


_OWN = threading.local()


def _mp() -> Any:
    """A context of mpmath of this thread's own: the module's is shared, and its precision with it."""
    if not hasattr(_OWN, "mp"):
        import mpmath

        _OWN.mp = mpmath.MPContext()
    return _OWN.mp


def value(node: Node, point: Mapping[str, Fraction], bits: int, budget: Budget, *, real: bool = False) -> Any:
    """The complex value at a point, to about so many bits; roots of odd degree of negative numbers are the real ones.

    With `real`, even roots and logarithms of negative numbers have no value.

    Raises:
        Undefined: it has none there.
        TooMuchError: it is too large to be computed.
        Unreadable: the tree is no expression.
    """
    mp = _mp()
    mp.prec = bits
    try:
        return _Evaluator(mp, point, budget, real).of(node)
    except (ZeroDivisionError, ValueError, OverflowError, ArithmeticError) as error:
        raise Undefined(f"it has no value ({error})") from None


class _Evaluator:
    def __init__(self, mp: Any, point: Mapping[str, Fraction], budget: Budget, real: bool) -> None:
        self.mp, self.point, self.budget, self.real = mp, point, budget, real

    def positive(self, x: Any) -> None:
        if self.real and (self.mp.im(x) != 0 or x < 0):
            raise Undefined("it has no real value")

    def of(self, node: Node) -> Any:
        mp, op = self.mp, node.op
        self.budget.spend(5 + int((mp.prec / 100) ** 1.5))
        if op == "num":
            return mp.mpf(node.value.numerator) / node.value.denominator
        if op == "sym":
            at = self.point[node.value]
            return mp.mpf(at.numerator) / at.denominator
        if op == "const":
            if node.value == "inf":
                raise Unreadable("infinity stands in an expression")
            return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[node.value]
        if op == "base":
            return mp.mpf(node.value[0])
        parts = [self.of(a) for a in node.args]
        if op == "add":
            return mp.fsum(parts)
        if op == "neg":
            return -parts[0]
        if op == "mul":
            return parts[0] * parts[1]
        if op == "div":
            return parts[0] / parts[1]
        if op == "percent":
            return parts[0] / 100
        if op == "pow":
            return self.power(parts[0], parts[1], node.args[1])
        if op == "fn":
            return self.call(node, parts)
        raise Unreadable(f"a {op} stands in an expression")

    def power(self, base: Any, exponent: Any, tree: Node) -> Any:
        mp = self.mp
        if base == 0:
            if mp.re(exponent) <= 0:
                raise Undefined("zero is raised to no positive power")
            return mp.mpf(0)
        size = abs(exponent) * (abs(mp.log(abs(base))) + 4)
        if size > 1 and mp.log(size, 2) > _MAX_EXPONENT_BITS:
            raise TooMuchError("a power is too large")
        exact = fraction_of(tree)
        if exact is not None and exact.denominator == 1:
            return base ** int(exact)
        if exact is not None and exact.denominator % 2 and mp.im(base) == 0 and base < 0:
            return (-1) ** (exact.numerator % 2) * (-base) ** exponent
        self.positive(base)
        return mp.exp(exponent * mp.log(base))

    def call(self, node: Node, parts: list[Any]) -> Any:
        mp, name, x = self.mp, str(node.value), parts[0]
        if name in ("sqrt", "log"):
            for part in parts:
                self.positive(part)
        if name == "sqrt":
            return mp.sqrt(x)
        if name == "root":
            return mp.mpf(0) if x == 0 else self.power(x, 1 / parts[1], Node("div", (num(1), node.args[1])))
        if name == "log":
            if x == 0:
                raise Undefined("it takes the logarithm of zero")
            return mp.log(x) if len(parts) == 1 else mp.log(x) / mp.log(parts[1])
        if name == "abs":
            return abs(x)
        if name == "degree":
            return x * mp.pi / 180
        if name in ("fact", "binom"):
            if any(mp.im(p) != 0 or abs(p) > 10**6 for p in parts):
                raise TooMuchError(f"{name} is taken of a large number")
            return mp.factorial(x) if name == "fact" else mp.binomial(x, parts[1])
        if name in ("floor", "ceil"):
            return mp.floor(x) if name == "floor" else mp.ceil(x)
        if name in ("max", "min"):
            if any(mp.im(p) != 0 for p in parts):
                raise Undefined("complex numbers have no order")
            return max(parts) if name == "max" else min(parts)
        if name in ("gcd", "lcm"):
            raise Undefined(f"{name} is taken of what is no whole number")
        known = {"arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan}
        if abs(x) > 10**9:
            raise TooMuchError("an angle is too large")
        return (known.get(name) or getattr(mp, name))(x)


def fraction_of(node: Node) -> Fraction | None:
    """The rational value of a small tree of numbers; None where it is more than that."""
    if node.op == "num":
        return Fraction(node.value)
    parts = [fraction_of(a) for a in node.args]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if node.op == "neg":
        return -known[0]
    if node.op == "div":
        return known[0] / known[1] if known[1] else None
    if node.op == "add":
        return sum(known, Fraction(0))
    return known[0] * known[1] if node.op == "mul" else None


def zero_bits(node: Node) -> int | None:
    """Bits b such that the tree's value is either zero or at least 2^-b in size; None where it is not algebraic.

    Raises:
        TooMuchError: the bound is too small to be of use.
    """
    degree = 1
    seen: list[Node] = []
    for part in walk(node):
        exponent = _exponent(part)
        if exponent is not None and exponent.denominator > 1 and not any(part.same(other) for other in seen):
            seen.append(part)
            degree *= exponent.denominator
            if degree > 1 << 16:
                raise TooMuchError("the roots are of too high a degree together")
    angles = [f for part in walk(node) if (f := _angle(part)) is not None]
    if angles:
        degree *= 2 * math.lcm(*(f.denominator for f in angles)) * 2
    if any(part.op == "const" and part.value == "i" for part in walk(node)):
        degree *= 2
    bounds = _bounds(node)
    if bounds is None:
        return None
    bits = int((degree - 1) * max(bounds[0], 0) + bounds[1]) + 4
    if bits > _MAX_BOUND_BITS:
        raise TooMuchError("telling the numbers apart takes too many digits")
    return bits


def _exponent(node: Node) -> Fraction | None:
    """Of a root, its exponent."""
    if node.op == "fn" and node.value == "sqrt":
        return Fraction(1, 2)
    if node.op == "fn" and node.value == "root":
        degree = fraction_of(node.args[1])
        return 1 / degree if degree and degree.denominator == 1 and 0 < degree <= 64 else None
    if node.op == "pow":
        exponent = fraction_of(node.args[1])
        return exponent if exponent is not None and exponent.denominator <= 64 else None
    return None


def _angle(node: Node) -> Fraction | None:
    """Of the sine or cosine of a rational multiple of pi, that multiple."""
    if node.op != "fn" or node.value not in ("sin", "cos", "tan"):
        return None
    return _pi_multiple(node.args[0])


def _pi_multiple(node: Node) -> Fraction | None:
    if node.op == "const" and node.value == "pi":
        return Fraction(1)
    if node.op == "neg":
        inner = _pi_multiple(node.args[0])
        return None if inner is None else -inner
    if node.op == "fn" and node.value == "degree":
        degrees = fraction_of(node.args[0])
        return None if degrees is None else degrees / 180
    if node.op in ("mul", "div"):
        left, right = node.args
        a, b = _pi_multiple(left), fraction_of(right)
        if a is not None and b:
            return a * b if node.op == "mul" else a / b
        a, b = _pi_multiple(right), fraction_of(left)
        return a * b if node.op == "mul" and a is not None and b is not None else None
    return None


def _bounds(node: Node) -> tuple[float, float] | None:
    """Logarithms to base 2 of bounds on all conjugates of U and of L."""
    op = node.op
    if op == "num":
        return _log2(abs(node.value.numerator)), _log2(node.value.denominator)
    if op == "base":
        return _log2(node.value[0]), 0.0
    if op == "const":
        return (0.0, 0.0) if node.value == "i" else None
    if op == "percent":
        op, parts = "div", [_bounds(node.args[0]), (_log2(100), 0.0)]
    elif _angle(node) is not None:
        return (2.0, 2.0) if node.value == "tan" else (1.0, 1.0)
    elif op == "pow" or (op == "fn" and node.value in ("sqrt", "root")):
        return _root_bounds(node)
    elif op in ("add", "neg", "mul", "div"):
        parts = [_bounds(a) for a in node.args]
    else:
        return None
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    (u, w), *rest = known
    for v, k in rest:
        if op == "add":
            u, w = max(u + k, v + w) + 1, w + k
        elif op == "mul":
            u, w = u + v, w + k
        else:
            u, w = u + k, w + v
    return u, w


def _root_bounds(node: Node) -> tuple[float, float] | None:
    inner, exponent = _bounds(node.args[0]), _exponent(node)
    if inner is None or exponent is None:
        return None
    u, w = inner
    if exponent < 0:
        u, w, exponent = w, u, -exponent
    k = exponent.denominator
    return exponent.numerator * (u + (k - 1) * w) / k, exponent.numerator * w


def _log2(n: int) -> float:
    return float(n.bit_length())
