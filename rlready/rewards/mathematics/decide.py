"""Are two expressions equal? Proved by exact arithmetic, told apart by exact arithmetic or many digits, or undecided.

In this order: the same tree; rational numbers; the normal form of the difference (zero is equal, and over independent
generators anything else is different); for numbers, digits up to the bound below which an algebraic number is zero; for
symbols, values at rational points, which can tell expressions apart but never make them equal; SymPy, in another
process with a deadline. What none of these settles is undecided, and the grader says that it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from rlready.rewards.mathematics.algebra import Algebra
from rlready.rewards.mathematics.digits import fraction_of, value, zero_bits
from rlready.rewards.mathematics.polynomials import independent
from rlready.rewards.mathematics.tree import Budget, Node, TooMuchError, Undefined, Unreadable, walk

_EXACT_STEPS = 60_000  # of the budget, for the normal form
Prover = Callable[[Node, Node], "bool | None"]

# Rational points: positive first, then of both signs. Fixed, so that a verdict repeats.
_VALUES = [Fraction(*p) for p in ((13, 7), (29, 11), (5, 17), (41, 13), (3, 19), (101, 37), (17, 5), (7, 23))]
_POSITIVE = 3  # so many of the following are all positive
_SIGNS = ((1, 1, 1), (1, 1, 1), (1, 1, 1), (-1, 1, 1), (1, -1, 1), (-1, -1, -1), (-1, 1, -1))


class Answer(NamedTuple):
    """True, False or None (undecided), and why."""

    equal: bool | None
    why: str


def equal(gold: Node, given: Node, budget: Budget, prover: Prover | None = None) -> Answer:
    """Whether two expressions are equal wherever both are real.

    Raises:
        Unreadable: one of them is no expression.
    """
    if gold.op == "num" and given.op == "num":
        return Answer(gold.value == given.value, "rational numbers, compared exactly")
    symbols = sorted({n.value for n in (*walk(gold), *walk(given)) if n.op == "sym"})
    share = min(budget.left, _EXACT_STEPS)
    exact = Budget(share)
    try:
        told = _by_form(gold, given, exact)
    except TooMuchError:
        if gold.same(given):
            return Answer(True, "the same expression")
        prover, told = None, Answer(None, "")  # what is too large here is too large for SymPy
    except Undefined as error:
        return Answer(None, f"the gold has no value: {error}")
    budget.left -= share - max(exact.left, 0)
    if told.equal is not None:
        if told is _BUT_FOR_SIGNS:
            same = _same_at_points(gold, given, symbols, budget)
            return told if same else Answer(False, "the expressions differ where symbols are negative")
        return told
    try:
        told = _by_digits(gold, given, budget) if not symbols else _by_points(gold, given, symbols, budget)
    except TooMuchError as error:
        return Answer(None, str(error))
    except Undefined as error:
        told = Answer(None, str(error))
    if told.equal is not None or prover is None:
        return told
    proved = prover(gold, given)
    if proved is None:
        return told
    return Answer(proved, "SymPy proves it" if proved else "SymPy tells them apart")


_BUT_FOR_SIGNS = Answer(True, "one exact normal form, and the same values for symbols of either sign")


def _by_form(gold: Node, given: Node, budget: Budget) -> Answer:
    ring = Algebra(budget)
    wanted = ring.of(gold)
    try:
        found = ring.of(given)
    except Undefined as error:
        return Answer(False, f"the answer has no value: {error}")
    difference = ring.sub(wanted, found)
    if not difference.num:
        return _BUT_FOR_SIGNS if ring.signs else Answer(True, "one exact normal form")
    if independent(difference.generators()):
        return Answer(False, "different exact normal forms")
    return Answer(None, "")


def _differ(a: Node, b: Node, point: dict[str, Fraction], budget: Budget, *, real: bool = False) -> bool:
    """Whether values to 50 and to 100 digits show the same difference."""
    sizes: list[Any] = []
    for bits in (170, 340):
        x, y = (value(node, point, bits, budget, real=real) for node in (a, b))
        scale = max(abs(x), abs(y))
        sizes.append((abs(x - y), scale))
    (first, scale), (second, _) = sizes
    return bool(second > scale * 1e-30 and abs(first - second) * 100 < second)


def _by_digits(gold: Node, given: Node, budget: Budget) -> Answer:
    try:
        wanted = value(gold, {}, 170, budget)
    except Undefined as error:
        return Answer(None, f"the gold has no value: {error}")
    try:
        value(given, {}, 170, budget)
    except Undefined as error:
        return Answer(False, f"the answer has no value: {error}")
    del wanted
    if _differ(gold, given, {}, budget):
        return Answer(False, "the numbers differ in their first 30 digits")
    difference = Node("add", (gold, Node("neg", (given,))))
    bits = zero_bits(difference)
    if bits is None:
        return Answer(None, "the numbers agree in 30 digits, but that is no proof")
    size = abs(value(difference, {}, bits + 200, budget))
    if size * 2**bits < 2.0**-40:
        return Answer(True, f"algebraic numbers that agree in {bits} binary digits, so they are equal")
    if size * 2**bits >= 1:
        return Answer(False, "different algebraic numbers")
    return Answer(None, "the digits do not settle it")


def _points(symbols: Sequence[str]) -> list[dict[str, Fraction]]:
    out = []
    for shift, signs in enumerate(_SIGNS):
        out.append({s: _VALUES[(j * 3 + shift) % 8] * signs[j % 3] + j // 8 for j, s in enumerate(symbols)})
    return out


def _by_points(gold: Node, given: Node, symbols: Sequence[str], budget: Budget) -> Answer:
    common = 0
    for index, point in enumerate(_points(symbols)):
        real = index >= _POSITIVE and not _complex(gold, given)
        try:
            differ = _differ(gold, given, point, budget, real=real)
        except Undefined:
            continue
        common += 1
        if differ:
            where = ", ".join(f"{s} = {p}" for s, p in point.items())
            return Answer(False, f"the expressions differ at {where}")
    if not common:
        return Answer(None, "no point was found at which both expressions have a value")
    return Answer(None, f"the expressions agree at {common} points, but that is no proof")


def _same_at_points(gold: Node, given: Node, symbols: Sequence[str], budget: Budget) -> bool:
    try:
        return _by_points(gold, given, symbols, budget).equal is not False
    except (TooMuchError, Undefined):
        return True


def _im(x: Any) -> Any:
    return x.imag


def _complex(*nodes: Node) -> bool:
    return any(n.op == "const" and n.value == "i" for node in nodes for n in walk(node))


def order(a: Node, b: Node, budget: Budget) -> int | None:
    """-1, 0 or 1 as the real number a is below, equal to or above b; None where that is not known."""
    p, q = fraction_of(a), fraction_of(b)
    if p is not None and q is not None:
        return (p > q) - (p < q)
    same = equal(a, b, budget)
    if same.equal:
        return 0
    if same.equal is None:
        return None
    try:
        x, y = value(a, {}, 340, budget), value(b, {}, 340, budget)
    except (Undefined, TooMuchError, Unreadable, KeyError):
        return None
    if _im(x) != 0 or _im(y) != 0:
        return None
    return 1 if x > y else -1
