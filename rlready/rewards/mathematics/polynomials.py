"""Exact arithmetic of quotients of polynomials in generators.

A polynomial is a mapping from monomials to rational coefficients; a monomial is a sorted tuple of (generator, exponent)
with rational exponents. Generators are named by strings:

    s:x            a symbol             p:7            a prime (with exponent in [0, 1): its roots)
    i              the imaginary unit   pi, e, z       pi, Euler's number, and exp(i pi) (its roots)
    x:b:m          b to the power of the monomial m    l:u    the logarithm of u
    r:u            u, taken to fractional powers       a:u    the absolute value of u
    f:name:u, w:.. any other function, any other power: opaque

A polynomial without terms is zero, and by what `independent` says, over some generators only that one is.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import comb, gcd, lcm

from rlready.rewards.mathematics.tree import MAX_BITS, Budget, TooMuchError, Undefined

Exponent = int | Fraction
Mono = tuple[tuple[str, Exponent], ...]
Poly = dict[Mono, Fraction]

ONE: Poly = {(): Fraction(1)}
_MAX_TERMS = 2000
_MAX_POWER = 150
_MAX_EXPANDED = 600  # terms of a power of a sum


class Rat:
    """A quotient of two polynomials; the lower one is never empty."""

    __slots__ = ("den", "num")

    def __init__(self, num: Poly, den: Poly | None = None) -> None:
        self.num, self.den = num, ONE if den is None else den

    def constant(self) -> Fraction | None:
        """Its value where it is a rational number."""
        if not self.num:
            return Fraction(0)
        if len(self.num) == 1 and () in self.num and self.den == ONE:
            return self.num[()]
        return None

    def generators(self) -> set[str]:
        """All generators in it."""
        return {g for poly in (self.num, self.den) for mono in poly for g, _ in mono}


def rational(value: int | Fraction) -> Rat:
    """A rational number."""
    return Rat({(): Fraction(value)} if value else {})


def term(*powers: tuple[str, Exponent], c: int | Fraction = 1) -> Rat:
    """One term: generators with exponents already in their range."""
    return Rat({tuple(sorted((g, _tidy(e)) for g, e in powers if e)): Fraction(c)})


def _tidy(e: Exponent) -> Exponent:
    return e.numerator if isinstance(e, Fraction) and e.denominator == 1 else e


def check(value: Fraction) -> Fraction:
    """The value.

    Raises:
        TooMuchError: it has more digits than are allowed.
    """
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise TooMuchError("a number has too many digits")
    return value


def key(rat: Rat) -> str:
    """A text that is equal for equal forms."""
    return _text(rat.num) + ("" if rat.den == ONE else "/" + _text(rat.den))


def _text(poly: Poly) -> str:
    terms = sorted((mono_key(mono), c) for mono, c in poly.items())
    return "(" + "+".join(f"{c.numerator:x}|{c.denominator:x}{m}" for m, c in terms) + ")"


def mono_key(mono: Mono) -> str:
    """A monomial as text."""
    return "".join(f"*{g}^{e}" for g, e in mono)


class Ring:
    """The arithmetic. It knows the generators whose powers reduce to something else, and counts its steps.

    Attributes:
        bases: of a generator of the kinds `r` and `a`: its period n and a quotient whose n-th power is its own.
        signs: whether a step was taken that holds only where symbols are positive.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.bases: dict[str, tuple[int, Rat]] = {}
        self.signs = False

    def sized(self, value: Fraction) -> Fraction:
        """The value; large ones are counted by what their arithmetic costs."""
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        if bits > 2048:
            self.budget.spend((bits >> 11) ** 2)
            check(value)
        return value

    # monomials

    def mono_mul(self, a: Mono, b: Mono) -> tuple[Fraction, Mono, bool]:
        """The product as coefficient and monomial, and whether a generator in it still has to be reduced."""
        if not a or not b:
            return Fraction(1), a or b, False
        merged = dict(a)
        c, reduce = Fraction(1), False
        for g, e in b:
            if g in merged:
                factor, e, more = self.fold(g, merged[g] + e)
                c *= factor
                reduce |= more
                if e == 0:
                    del merged[g]
                    continue
            merged[g] = e
        return c, tuple(sorted(merged.items())), reduce

    def fold(self, g: str, e: Exponent) -> tuple[Fraction, Exponent, bool]:
        """Bring an exponent into its range: the factor that comes out, the exponent, and whether more is to be done."""
        kind = g[0]
        if kind == "s":
            return Fraction(1), _tidy(e), False
        if kind == "p" and g[1] == ":":
            n = e.__floor__()
            if n:
                p = int(g[2:], 16)
                if abs(n) * p.bit_length() > MAX_BITS:
                    return Fraction(1), _tidy(e), False
                return Fraction(p) ** n, _tidy(e - n), False
            return Fraction(1), _tidy(e), False
        if g == "i":
            n = int(e) % 4
            return Fraction(-1 if n >= 2 else 1), n % 2, False
        if g == "z":
            n = e.__floor__()
            return Fraction(-1 if n % 2 else 1), _tidy(e - n), False
        if g in self.bases:
            period = self.bases[g][0]
            return Fraction(1), _tidy(e), not 0 <= e < period
        return Fraction(1), _tidy(e), False

    # polynomials

    def poly_mul(self, a: Poly, b: Poly) -> tuple[Poly, bool]:
        """The product, and whether generators in it still have to be reduced."""
        if a is ONE or a == ONE:
            return b, False
        if b is ONE or b == ONE:
            return a, False
        self.budget.spend(2 * len(a) * len(b))
        out: Poly = {}
        reduce = False
        for m1, c1 in a.items():
            for m2, c2 in b.items():
                factor, mono, more = self.mono_mul(m1, m2)
                reduce |= more
                c = self.sized(c1 * c2 * factor)
                old = out.get(mono)
                if old is not None:
                    c = self.sized(old + c)
                    if not c:
                        del out[mono]
                        continue
                out[mono] = c
        if len(out) > _MAX_TERMS:
            raise TooMuchError("an expression has too many terms")
        return out, reduce

    def reduced(self, poly: Poly) -> Rat:
        """A polynomial whose generators may stand outside their range."""
        total: Rat | None = None
        for mono, c in poly.items():
            part = Rat({(): c})
            for g, e in mono:
                if g in self.bases:
                    period, base = self.bases[g]
                    n = (e / Fraction(period)).__floor__() * period
                    if n:
                        part = self.mul(part, self.power(base, n))
                    e = _tidy(e - n)
                if e:
                    part = self.mul(part, Rat({((g, e),): Fraction(1)}))
            total = part if total is None else self.add(total, part)
        return total or rational(0)

    # quotients

    def add(self, a: Rat, b: Rat) -> Rat:
        """Their sum."""
        if a.den == b.den:
            return Rat(self._sum(a.num, b.num), a.den)
        left, right = self.mul(Rat(a.num), Rat(b.den)), self.mul(Rat(b.num), Rat(a.den))
        below = self.mul(Rat(a.den), Rat(b.den))
        return self.div(self.add(left, right), below)

    def _sum(self, a: Poly, b: Poly) -> Poly:
        self.budget.spend(len(a) + len(b))
        out = dict(a)
        for mono, c in b.items():
            total = self.sized(out.get(mono, Fraction(0)) + c)
            if total:
                out[mono] = total
            else:
                out.pop(mono, None)
        return out

    def neg(self, a: Rat) -> Rat:
        """Minus it."""
        return Rat({m: -c for m, c in a.num.items()}, a.den)

    def sub(self, a: Rat, b: Rat) -> Rat:
        """Their difference."""
        return self.add(a, self.neg(b))

    def mul(self, a: Rat, b: Rat) -> Rat:
        """Their product."""
        num, more = self.poly_mul(a.num, b.num)
        den, more_below = self.poly_mul(a.den, b.den)
        if not more and not more_below:
            return Rat(num, den)
        top = self.reduced(num) if more else Rat(num)
        return self.div(top, self.reduced(den) if more_below else Rat(den))

    def inverse(self, a: Rat) -> Rat:
        """One over it.

        Raises:
            Undefined: it is zero.
        """
        if not a.num:
            raise Undefined("it divides by zero")
        if len(a.num) > 1:
            return Rat(a.den, a.num)
        ((mono, c),) = a.num.items()
        out = Rat({(): 1 / c})
        reduce = False
        poly: Poly = {(): 1 / c}
        for g, e in mono:
            factor, folded, more = self.fold(g, -e)
            reduce |= more
            ((old, value),) = poly.items()
            rest = old if not folded else tuple(sorted([*old, (g, folded)]))
            poly = {rest: value * factor}
        out = self.reduced(poly) if reduce else Rat(poly)
        return self.mul(Rat(a.den), out)

    def div(self, a: Rat, b: Rat) -> Rat:
        """Their quotient."""
        if b.num == ONE and b.den == ONE:
            return a
        return self.mul(a, self.inverse(b))

    def power(self, a: Rat, n: int) -> Rat:
        """A whole power. A high power of a sum stays a power: a generator of its own."""
        if n < 0:
            return self.power(self.inverse(a), -n)
        if n == 0:
            return rational(1)
        if len(a.num) <= 1 and a.den == ONE:
            return self._term_power(a.num, n)
        if n > _MAX_POWER or max(comb(n + len(p) - 1, n) for p in (a.num, a.den)) > _MAX_EXPANDED:
            name = f"b:{key(a)}"
            return term((name, n))
        out, square = rational(1), a
        while n:
            if n & 1:
                out = self.mul(out, square)
            n >>= 1
            if n:
                square = self.mul(square, square)
        return out

    def _term_power(self, poly: Poly, n: int) -> Rat:
        if not poly:
            return rational(0)
        ((mono, c),) = poly.items()
        out, reduce = rational(1), False
        size = max(c.numerator.bit_length(), c.denominator.bit_length())
        if abs(c) != 1 and size * n > MAX_BITS:
            if c.denominator != 1 or not mono == () or not _is_small_prime_power(c):
                raise TooMuchError("a number has too many digits")
            p, v = _prime_power(abs(int(c)))
            sign = -1 if c < 0 and n % 2 else 1
            return term((f"p:{p:x}", v * n), c=sign)
        self.budget.spend(1 if abs(c) == 1 else 1 + (size * n >> 11) ** 2)
        value = c**n if n < 1 << 40 else Fraction(1 if c > 0 or n % 2 == 0 else -1)
        result: Poly = {(): value}
        for g, e in mono:
            factor, folded, more = self.fold(g, e * n)
            reduce |= more
            ((old, so_far),) = result.items()
            result = {(old if not folded else tuple(sorted([*old, (g, folded)]))): self.sized(so_far * factor)}
        out = self.reduced(result) if reduce else Rat(result)
        return out


def _is_small_prime_power(c: Fraction) -> bool:
    return c.denominator == 1 and 1 < abs(c) < 10**6 and len(factors(abs(int(c)))) == 1


def _prime_power(n: int) -> tuple[int, int]:
    ((p, v),) = factors(n).items()
    return p, v


def factors(n: int, limit: int = 2000) -> dict[int, int]:
    """Primes with their powers; a rest without factors below the limit stays whole."""
    out: dict[int, int] = {}
    p = 2
    while p <= limit and p * p <= n:
        while n % p == 0:
            out[p] = out.get(p, 0) + 1
            n //= p
        p += 1 if p == 2 else 2
    if n > 1:
        out[n] = out.get(n, 0) + 1
    return out


def content(poly: Poly) -> Fraction:
    """The positive rational by which a polynomial can be divided so that its coefficients are coprime integers."""
    top, bottom = 0, 1
    for c in poly.values():
        top, bottom = gcd(top, c.numerator), lcm(bottom, c.denominator)
    return Fraction(top, bottom)


def independent(generators: Iterable[str], limit: int = 2000) -> bool:
    """Whether only the zero polynomial in these generators is zero.

    Free symbols; the imaginary unit; roots of distinct primes (Besicovitch 1940); at most one of pi and e, which are
    transcendental; powers with exponents in symbols (for them: Ax 1971, as their exponents are distinct monomials).
    """
    constants = 0
    for g in generators:
        if g in ("pi", "e"):
            constants += 1
        elif g[:2] == "p:":
            if int(g[2:], 16) > limit * limit:
                return False  # a rest that may not be prime
        elif g[:2] == "x:":
            if "*s:" not in g.split(":", 2)[2]:
                return False
            base = g.split(":", 2)[1]
            if base not in ("e",):
                return False
        elif g != "i" and g[:2] != "s:":
            return False
    return constants <= 1
