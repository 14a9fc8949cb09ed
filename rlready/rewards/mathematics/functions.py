"""Functions of the normal form: logarithms, circular and hyperbolic functions, absolute values, whole-number functions.

Circular functions become powers of exp(i x), so their identities hold by the arithmetic of polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from rlready.rewards.mathematics.polynomials import ONE, Rat, check, content, key, rational, term
from rlready.rewards.mathematics.tree import TooMuchError, Undefined

if TYPE_CHECKING:
    from rlready.rewards.mathematics.algebra import Algebra

_MAX_FACTORIAL = 5000
_INVERSE = {  # value squared and sign decide the angle, in twelfths of pi
    "arcsin": {Fraction(0): 0, Fraction(1, 4): 2, Fraction(1, 2): 3, Fraction(3, 4): 4, Fraction(1): 6},
    "arctan": {Fraction(0): 0, Fraction(1, 3): 2, Fraction(1): 3, Fraction(3): 4},
}


def call(ring: Algebra, name: str, args: list[Rat]) -> Rat:
    """A function of quotients.

    Raises:
        Undefined: it has no value there.
    """
    if name in ("sqrt", "root"):
        degree = args[1].constant() if name == "root" else Fraction(2)
        if degree is None or degree.denominator != 1 or degree == 0:
            if name == "root" and degree is None:
                return ring.raised(args[0], ring.inverse(args[1]))
            raise Undefined("a root has no whole degree")
        if not args[0].num:
            return args[0]
        return ring.raised(args[0], rational(1 / degree))
    if name == "log":
        value = _log(ring, args[0])
        return value if len(args) == 1 else ring.div(value, _log(ring, args[1]))
    if name == "degree":
        return ring.mul(args[0], term(("pi", 1), c=Fraction(1, 180)))
    if name == "abs":
        return _abs(ring, args[0])
    if name in _CIRCULAR:
        return _circular(ring, name, args[0])
    if name in ("arcsin", "arccos", "arctan"):
        return _arcus(ring, name, args[0])
    values = [a.constant() for a in args]
    if name in ("gcd", "lcm", "max", "min", "fact", "binom", "floor", "ceil"):
        whole = [v for v in values if v is not None]
        if len(whole) == len(values):
            return rational(ring.sized(check(_whole(name, whole))))
        if name in ("gcd", "lcm", "max", "min"):
            args = sorted(args, key=key)
        if name == "fact":
            return _shifted(ring, args[0])
        if name == "binom" and values[1] is not None:
            return _falling(ring, args[0], values[1])
    return ring.opaque(f"f:{name}", *args)


def _shifted(ring: Algebra, a: Rat) -> Rat:
    """(n + 2)! as n! (n + 1) (n + 2), so that factorials near each other reduce."""
    shift = a.num.get((), Fraction(0)) if a.den == ONE else Fraction(0)
    if shift.denominator != 1 or not 0 < abs(shift) <= 20:
        return ring.opaque("f:fact", a)
    base = ring.sub(a, rational(shift))
    out = ring.opaque("f:fact", base)
    for k in range(1, int(shift) + 1):
        out = ring.mul(out, ring.add(base, rational(k)))
    for k in range(0, int(shift), -1):
        out = ring.div(out, ring.add(base, rational(k)))
    return out


def _falling(ring: Algebra, n: Rat, k: Fraction) -> Rat:
    if k.denominator != 1 or not 0 <= k <= 8:
        return ring.opaque("f:binom", n, rational(k))
    out = rational(1)
    for j in range(int(k)):
        out = ring.mul(out, ring.mul(ring.sub(n, rational(j)), rational(Fraction(1, j + 1))))
    return out


def _whole(name: str, values: list[Fraction]) -> Fraction:
    if name in ("max", "min"):
        return max(values) if name == "max" else min(values)
    if name in ("floor", "ceil"):
        return Fraction(math.floor(values[0]) if name == "floor" else math.ceil(values[0]))
    if any(v.denominator != 1 for v in values):
        raise Undefined(f"{name} is taken of a fraction")
    if any(abs(v) > 10**60 for v in values):
        raise TooMuchError(f"{name} is taken of a large number")
    ints = [int(v) for v in values]
    if name == "gcd":
        return Fraction(math.gcd(*ints))
    if name == "lcm":
        return check(Fraction(math.lcm(*ints)))
    if any(n < 0 for n in ints):
        raise Undefined(f"{name} is taken of a negative number")
    if max(ints) > _MAX_FACTORIAL:
        raise TooMuchError(f"{name} is taken of a large number")
    return Fraction(math.factorial(ints[0]) if name == "fact" else math.comb(ints[0], ints[1]))


def _log(ring: Algebra, a: Rat) -> Rat:
    """The natural logarithm, taken apart into those of primes and symbols."""
    if not a.num:
        raise Undefined("it takes the logarithm of zero")
    if a.den != ONE:
        return ring.sub(_log(ring, Rat(a.num)), _log(ring, Rat(a.den)))
    if len(a.num) > 1:
        c = content(a.num)
        inner = Rat({m: v / c for m, v in a.num.items()})
        alone = _log_of(ring, key(inner), inner)
        return ring.add(_log(ring, rational(c)), alone) if c != 1 else alone
    ((mono, c),) = a.num.items()
    if c < 0 or any(g in ("i", "z") or g[0] == "w" for g, _ in mono):
        return _log_of(ring, key(a), a)
    out = rational(0)
    for p, v in ring.factored(c).items():
        out = ring.add(out, ring.mul(rational(v), _log_of(ring, f"{p:x}", rational(p))))
    for g, e in mono:
        if g == "e":
            part = rational(1)
        elif g[:4] == "x:e:" and "*i^" not in g and g in ring.exponents:
            part = ring.exponents[g]
        elif g[:2] == "p:":
            part = _log_of(ring, g[2:], rational(int(g[2:], 16)))
        else:
            ring.signs |= g[0] == "s"
            part = _log_of(ring, g, term((g, 1)))
        out = ring.add(out, ring.mul(rational(Fraction(e)), part))
    return out


def _log_of(ring: Algebra, name: str, a: Rat) -> Rat:
    ring.logs[f"l:{name}"] = a
    return term((f"l:{name}", 1))


def _abs(ring: Algebra, a: Rat) -> Rat:
    value = a.constant()
    if value is not None:
        return rational(abs(value))
    if any(g == "i" for g in a.generators()):
        return _modulus(ring, a)
    if a.den != ONE:
        return ring.div(_abs(ring, Rat(a.num)), _abs(ring, Rat(a.den)))
    if len(a.num) == 1:
        ((mono, c),) = a.num.items()
        out = rational(abs(c))
        for g, e in mono:
            if g[0] == "s" and isinstance(e, int):
                out = ring.mul(out, ring.magnitude(g, Fraction(e)) if e % 2 else term((g, e)))
            elif g[:2] in ("p:", "r:", "a:") or g in ("e", "pi") or (g[:2] == "x:" and "*i^" not in g) or g[0] == "s":
                out = ring.mul(out, term((g, e)))
            else:
                return ring.opaque("f:abs", a)
        return out
    c = content(a.num)
    first = a.num[min(a.num)]
    inner = Rat({m: v / (c if first > 0 else -c) for m, v in a.num.items()})
    name = f"a:{key(inner)}"
    ring.bases[name] = (2, inner)
    return ring.mul(rational(c), term((name, 1)))


def _modulus(ring: Algebra, a: Rat) -> Rat:
    if any("i" in dict(m) for m in a.den) or any(g[0] == "z" or "*i^" in g for g in a.generators()):
        return ring.opaque("f:abs", a)
    real = Rat({m: c for m, c in a.num.items() if "i" not in dict(m)})
    imaginary = Rat({tuple(x for x in m if x[0] != "i"): c for m, c in a.num.items() if "i" in dict(m)})
    square = ring.add(ring.mul(real, real), ring.mul(imaginary, imaginary))
    size = ring.root(square, Fraction(1, 2)) if square.num else rational(0)
    return ring.div(size, _abs(ring, Rat(a.den)))


def _circular(ring: Algebra, name: str, a: Rat) -> Rat:
    if a.den != ONE:
        return ring.opaque(f"f:{name}", a)
    hyperbolic = name.endswith("h")
    i = term(("i", 1))
    up = ring.raised(term(("e", 1)), a if hyperbolic else ring.mul(i, a))
    down = ring.raised(term(("e", 1)), ring.neg(a) if hyperbolic else ring.neg(ring.mul(i, a)))
    half = rational(Fraction(1, 2))
    cosine = ring.mul(ring.add(up, down), half)
    sine = ring.mul(ring.sub(up, down), half)
    if not hyperbolic:
        sine = ring.mul(sine, ring.neg(i))
    return _CIRCULAR[name](ring, sine, cosine)


_CIRCULAR: dict[str, Callable[[Algebra, Rat, Rat], Rat]] = {
    "sin": lambda ring, s, c: s,
    "cos": lambda ring, s, c: c,
    "tan": lambda ring, s, c: ring.div(s, c),
    "cot": lambda ring, s, c: ring.div(c, s),
    "sec": lambda ring, s, c: ring.inverse(c),
    "csc": lambda ring, s, c: ring.inverse(s),
    "sinh": lambda ring, s, c: s,
    "cosh": lambda ring, s, c: c,
    "tanh": lambda ring, s, c: ring.div(s, c),
}


def _arcus(ring: Algebra, name: str, a: Rat) -> Rat:
    square = ring.mul(a, a).constant()
    table = _INVERSE["arctan" if name == "arctan" else "arcsin"]
    if square is None or square not in table or any(g[:2] != "p:" for g in a.generators()) or len(a.num) > 1:
        return ring.opaque(f"f:{name}", a)
    sign = -1 if a.num and next(iter(a.num.values())) < 0 else 1
    twelfths = sign * table[square]
    if name == "arccos":
        twelfths = 6 - twelfths
    return term(("pi", 1), c=Fraction(twelfths, 12)) if twelfths else rational(0)
