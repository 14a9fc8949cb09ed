"""Equations up to a constant factor, inequalities up to a positive one, congruences."""

from __future__ import annotations

from fractions import Fraction

from rlready.rewards.mathematics.algebra import Algebra
from rlready.rewards.mathematics.decide import Answer
from rlready.rewards.mathematics.polynomials import ONE, Mono, Poly, Rat, independent
from rlready.rewards.mathematics.tree import Budget, Node

_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


def same_equation(gold: Node, given: Node, budget: Budget) -> Answer:
    """Whether two equations say the same up to a factor that is a number and not zero."""
    if len(gold.args) != len(given.args):
        return Answer(False, "the equations have different numbers of sides")
    ring = Algebra(budget)
    for k in range(len(gold.args) - 1):
        a = _cleared(ring, _difference(ring, gold, k))
        b = _cleared(ring, _difference(ring, given, k))
        factor = _factor(ring, a, b)
        if factor is None:
            decided = independent({g for poly in (a, b) for m in poly for g, _ in m})
            return Answer(False if decided else None, "the equations are no multiples of each other")
    return Answer(True, "equations up to a factor")


def same_inequality(gold: Node, given: Node, budget: Budget) -> Answer:
    """Whether two inequalities say the same up to a positive number as factor."""
    if len(gold.args) != 2 or len(given.args) != 2:
        return Answer(gold.same(given), "chains of inequalities, as they are written")
    ring = Algebra(budget)
    one, other = gold.value[0], given.value[0]
    a, b = _difference(ring, gold, 0), _difference(ring, given, 0)
    if other != one:
        if _FLIP.get(other) != one:
            return Answer(False, "the signs of the inequalities differ")
        b = ring.neg(b)
    if a.den != ONE or b.den != ONE or ring.signs:
        alike = not ring.sub(a, b).num
        return Answer(True if alike else None, "inequalities with quotients are not compared further")
    factor = _factor(ring, a.num, b.num)
    if factor is None:
        decided = independent(a.generators() | b.generators())
        return Answer(False if decided else None, "the inequalities are no multiples of each other")
    if one == "!=":
        return Answer(True, "inequalities up to a factor")
    top, bottom = (Rat(p).constant() for p in factor)
    if top is None or bottom is None:
        return Answer(None, "the sign of a factor is not known")
    return Answer(top / bottom > 0, "inequalities up to a positive factor")


def same_congruence(gold: Node, given: Node, budget: Budget) -> Answer:
    """Whether two congruences have one modulus and residues that differ by a multiple of it."""
    ring = Algebra(budget)
    modulus, other = ring.of(gold.args[2]).constant(), ring.of(given.args[2]).constant()
    if modulus is None or modulus != other or modulus == 0:
        return Answer(False, "the moduli differ")
    if ring.sub(ring.of(gold.args[0]), ring.of(given.args[0])).num:
        return Answer(False, "the left sides differ")
    gap = ring.sub(ring.of(gold.args[1]), ring.of(given.args[1])).constant()
    return Answer(gap is not None and (gap / modulus).denominator == 1, "congruences with one modulus")


def _difference(ring: Algebra, node: Node, k: int) -> Rat:
    return ring.sub(ring.of(node.args[k]), ring.of(node.args[k + 1]))


def _cleared(ring: Algebra, rat: Rat) -> Poly:
    """The upper polynomial, times the powers of symbols that stand below."""
    lowest: dict[str, Fraction] = {}
    for mono in rat.num:
        for g, e in mono:
            if e < 0:
                lowest[g] = min(lowest.get(g, Fraction(0)), Fraction(e))
    if not lowest:
        return rat.num
    factor: Poly = {
        tuple(sorted((g, -e if e.denominator > 1 else -e.numerator) for g, e in lowest.items())): Fraction(1)
    }
    return ring.mul(Rat(rat.num), Rat(factor)).num


def _factor(ring: Algebra, a: Poly, b: Poly) -> tuple[Poly, Poly] | None:
    """Constants p and q, not zero, with q a = p b; None where there are none."""
    if not a or not b:
        return (ONE, ONE) if not a and not b else None
    split_a, split_b = _split(a), _split(b)
    if split_a.keys() != split_b.keys():
        return None
    lead = min(split_a)
    p, q = split_a[lead], split_b[lead]
    gap = ring.sub(ring.mul(Rat(a), Rat(q)), ring.mul(Rat(b), Rat(p)))
    return None if gap.num else (q, p)


def _split(poly: Poly) -> dict[Mono, Poly]:
    """By monomials in symbols: the constants before them."""
    out: dict[Mono, Poly] = {}
    for mono, c in poly.items():
        symbols = tuple(x for x in mono if "s:" in x[0])
        constants = tuple(x for x in mono if "s:" not in x[0])
        out.setdefault(symbols, {})[constants] = c
    return out
