"""From the tree to the normal form: a quotient of polynomials in generators (`polynomials`).

Rewritings hold wherever both sides are real numbers; symbols stand for real numbers. A step that holds only for
positive symbols (the root of a product as the product of roots) is noted in `signs`, and the verdict is then tried at
numbers of both signs as well.
"""

from __future__ import annotations

import math
from fractions import Fraction

from rlready.rewards.mathematics.functions import call
from rlready.rewards.mathematics.polynomials import (
    ONE,
    Mono,
    Poly,
    Rat,
    Ring,
    content,
    factors,
    key,
    mono_key,
    rational,
    term,
)
from rlready.rewards.mathematics.tree import MAX_BITS, Budget, Node, TooMuchError, Undefined, Unreadable

_MAX_FACTORED = 1 << 400
_HALF = Fraction(1, 2)


class Algebra(Ring):
    """The normal form of trees, all over the same generators."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.logs: dict[str, Rat] = {}  # of a logarithm: what it is the logarithm of
        self.exponents: dict[str, Rat] = {}  # of a power of e: its exponent

    def of(self, node: Node) -> Rat:
        """The normal form.

        Raises:
            Unreadable: the tree is no expression.
            Undefined: it has no value.
            TooMuchError: it is too large.
        """
        self.budget.spend()
        op, args = node.op, node.args
        if op == "num":
            return rational(node.value)
        if op == "sym":
            return term((f"s:{node.value}", 1))
        if op == "const":
            if node.value == "inf":
                raise Unreadable("infinity stands in an expression")
            return term((node.value, 1))
        if op == "add":
            total = self.of(args[0])
            for arg in args[1:]:
                total = self.add(total, self.of(arg))
            return total
        if op == "neg":
            return self.neg(self.of(args[0]))
        if op == "mul":
            return self.mul(self.of(args[0]), self.of(args[1]))
        if op == "div":
            return self.div(self.of(args[0]), self.of(args[1]))
        if op == "pow":
            return self.raised(self.of(args[0]), self.of(args[1]))
        if op == "percent":
            return self.mul(self.of(args[0]), rational(Fraction(1, 100)))
        if op == "base":
            return rational(node.value[0])
        if op == "fn":
            return call(self, str(node.value), [self.of(a) for a in args])
        raise Unreadable(f"a {op} stands in an expression")

    # powers

    def raised(self, base: Rat, exponent: Rat) -> Rat:
        """A power."""
        e = exponent.constant()
        if e is not None:
            if not base.num:
                if e <= 0:
                    raise Undefined("zero is raised to no positive power")
                return base
            return self.power(base, int(e)) if e.denominator == 1 else self.root(base, e)
        if base.constant() == 1:
            return base
        if exponent.den != ONE:
            return self.opaque("w", base, exponent)
        out = rational(1)
        positive = len(base.num) == 1 and base.den == ONE and next(iter(base.num.values())) > 0
        if not positive:
            return self.opaque("w", base, exponent)
        ((mono, c),) = base.num.items()
        powers: list[tuple[str, Fraction]] = [(g, Fraction(k)) for g, k in mono]
        powers += [(f"p:{p:x}", Fraction(v)) for p, v in self.factored(c).items()]
        for g, k in powers:
            if g == "i" or g[0] in "fwbz":
                return self.opaque("w", base, exponent)
            if g[0] == "s":
                self.signs = True
            for m, coefficient in exponent.num.items():
                out = self.mul(out, self._monomial_power(g, m, coefficient * k))
        return out

    def _monomial_power(self, g: str, m: Mono, c: Fraction) -> Rat:
        """The generator g to the power c times the monomial m."""
        if not m:
            return self.generator_power(g, c)
        if g == "e":
            if m == (("i", 1), ("pi", 1)):
                return self.unity(c)
            if len(m) == 1 and m[0][0][:2] == "l:" and m[0][1] == 1 and m[0][0] in self.logs:
                return self.raised(self.logs[m[0][0]], rational(c))
        name = f"x:{g[2:] if g[:2] == 'p:' else g}:{mono_key(m)}"
        if g == "e":
            self.exponents[name] = Rat({m: Fraction(1)})
        return term((name, c))

    def generator_power(self, g: str, c: Fraction) -> Rat:
        """A positive generator to a rational power."""
        factor, e, more = self.fold(g, c)
        poly: Poly = {(((g, e),) if e else ()): factor}
        return self.reduced(poly) if more else Rat(poly)

    def factored(self, c: Fraction) -> dict[int, int]:
        """Primes and powers of a positive rational number."""
        if c.numerator > _MAX_FACTORED or c.denominator > _MAX_FACTORED:
            raise TooMuchError("a number is too large to be taken apart")
        self.budget.spend(200)
        out = factors(c.numerator)
        for p, v in factors(c.denominator).items():
            out[p] = out.get(p, 0) - v
        return out

    def opaque(self, kind: str, *parts: Rat) -> Rat:
        """Something of which only its parts are known."""
        return term((f"{kind}:" + "~".join(key(p) for p in parts), 1))

    # roots

    def root(self, a: Rat, e: Fraction) -> Rat:
        """A power with a rational exponent; odd roots of negative numbers are the real ones."""
        if len(a.num) == 1 and a.den == ONE:
            done = self._root_of_term(a, e)
            if done is not None:
                return done
        c = content(a.num) / content(a.den)
        if c.numerator > _MAX_FACTORED or c.denominator > _MAX_FACTORED:
            c = Fraction(1)
        inner = Rat({m: v / c for m, v in a.num.items()}, a.den)
        name = f"r:{key(inner)}"
        self.bases[name] = (1, inner)
        outer = self.root(rational(c), e) if c != 1 else rational(1)
        n = e.__floor__()
        whole = self.power(inner, n) if n else rational(1)
        return self.mul(self.mul(outer, whole), term((name, e - n)))

    def _root_of_term(self, a: Rat, e: Fraction) -> Rat | None:
        ((mono, c),) = a.num.items()
        even = e.denominator % 2 == 0
        phase = Fraction(1 if c < 0 else 0)
        gens = dict(mono)
        if "i" in gens:
            phase += _HALF
            del gens["i"]
        if "z" in gens:
            phase += gens.pop("z")
        phase -= 2 if phase > 1 else 0
        if phase == 1 and not even:
            out = rational(-1 if e.numerator % 2 else 1)
        elif phase and any(g[0] not in "p" and g not in ("e",) for g in gens):
            return None
        else:
            out = self.unity(phase * e)
        size = max(c.numerator.bit_length(), c.denominator.bit_length())
        if size > 400:
            exact = _exact_root(abs(c), e.denominator)
            if exact is None:
                return None
            out = self.mul(out, self.power(rational(exact), e.numerator))
        else:
            for p, v in self.factored(abs(c)).items():
                out = self.mul(out, self.generator_power(f"p:{p:x}", v * e))
        symbols = sum(g[0] == "s" for g in gens)
        for g, k in gens.items():
            power = k * e
            if g[0] == "s":
                if even and isinstance(k, int) and k % 2 == 0 and power % 2 != 0:
                    out = self.mul(out, self.magnitude(g, Fraction(power)))
                    continue
                self.signs |= even and symbols > 1
            elif (g[0] not in "pera" or (g[:2] == "x:" and "*i^" in g)) and (g[:2] != "x:" or "*i^" in g):
                return None
            out = self.mul(out, self.generator_power(g, Fraction(power)))
        return out

    def magnitude(self, g: str, power: Fraction) -> Rat:
        """The absolute value of a generator, to a power."""
        name = f"a:{g}"
        self.bases[name] = (2, term((g, 1)))
        return self.generator_power(name, power)

    def unity(self, r: Fraction) -> Rat:
        """exp(i pi r), by roots of primes where the angle is a multiple of 15 degrees."""
        r = r % 2
        sign = -1 if r >= 1 else 1
        r -= 1 if r >= 1 else 0
        if r.denominator not in (1, 2, 3, 4, 6, 12):
            return term(("z", r), c=sign)
        i, root2, root3 = term(("i", 1)), term(("p:2", _HALF)), term(("p:3", _HALF))
        third = self.mul(self.add(rational(1), self.mul(i, root3)), rational(_HALF))
        quarter = self.mul(self.mul(self.add(rational(1), i), root2), rational(_HALF))
        steps = int(r * 12)
        # 12 r = 4 a + 3 b with small a, b: the third and the quarter make all twelfths
        a, b = next((a, b) for a in range(-2, 4) for b in range(-3, 5) if 4 * a + 3 * b == steps)
        conjugate_third, conjugate_quarter = _conjugate(third), _conjugate(quarter)
        out = rational(sign)
        for count, up, down in ((a, third, conjugate_third), (b, quarter, conjugate_quarter)):
            for _ in range(abs(count)):
                out = self.mul(out, up if count > 0 else down)
        return out


def _conjugate(a: Rat) -> Rat:
    return Rat({m: -c if any(g == "i" for g, _ in m) else c for m, c in a.num.items()}, a.den)


def _exact_root(c: Fraction, n: int) -> Fraction | None:
    """The n-th root of a large rational where it is rational."""
    out = []
    for part in (c.numerator, c.denominator):
        if part.bit_length() > MAX_BITS or n > 64:
            return None
        guess = math.isqrt(part) if n == 2 else _integer_root(part, n)
        if guess**n != part:
            return None
        out.append(guess)
    return Fraction(out[0], out[1])


def _integer_root(value: int, n: int) -> int:
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**n <= value:
            low = middle
        else:
            high = middle - 1
    return low
