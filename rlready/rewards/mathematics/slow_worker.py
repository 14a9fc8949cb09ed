"""The helper process of `slow`: reads pairs of trees, one a line, and says whether SymPy finds them equal.

It runs by itself (`python -I slow_worker.py SECONDS`) and imports nothing of this project. A question that takes longer
than it may ends the process by its own alarm, also when its parent is gone.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any


def build(sympy: Any, tree: list[Any]) -> Any:
    """SymPy's object of a tree."""
    op, value, below = tree
    if op == "num":
        return sympy.Rational(int(value[0]), int(value[1]))
    if op == "sym":
        return sympy.Symbol(value, positive=True)
    if op == "const":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}[value]
    parts = [build(sympy, b) for b in below]
    if op == "add":
        return sympy.Add(*parts)
    if op == "mul":
        return sympy.Mul(*parts)
    if op == "neg":
        return -parts[0]
    if op == "div":
        return parts[0] / parts[1]
    if op == "percent":
        return parts[0] / 100
    if op == "pow":
        return _power(sympy, parts[0], parts[1])
    if op == "fn":
        return _call(sympy, value, parts)
    raise ValueError(op)


def _power(sympy: Any, base: Any, exponent: Any) -> Any:
    if exponent.is_Rational and abs(exponent) > 10_000:
        raise ValueError("a power is too large")
    if exponent.is_Rational and exponent.q % 2 == 1 and exponent.q > 1 and base.is_number and base.is_negative:
        return (-1) ** exponent.p * (-base) ** exponent
    return base**exponent


def _call(sympy: Any, name: str, parts: list[Any]) -> Any:
    x = parts[0]
    if name == "sqrt":
        return sympy.sqrt(x)
    if name == "root":
        return _power(sympy, x, 1 / parts[1])
    if name == "log":
        return sympy.log(x) if len(parts) == 1 else sympy.log(x) / sympy.log(parts[1])
    if name == "degree":
        return x * sympy.pi / 180
    if name in ("fact", "binom") and any(p.is_number and abs(p) > 1000 for p in parts):
        raise ValueError("a factorial is too large")
    known = {
        "fact": sympy.factorial,
        "binom": sympy.binomial,
        "abs": sympy.Abs,
        "ceil": sympy.ceiling,
        "floor": sympy.floor,
        "arcsin": sympy.asin,
        "arccos": sympy.acos,
        "arctan": sympy.atan,
        "max": sympy.Max,
        "min": sympy.Min,
    }
    if name in known:
        return known[name](*parts)
    if name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
        return getattr(sympy, name)(x)
    raise ValueError(name)


def judge(sympy: Any, gold: Any, given: Any) -> str:
    """Says equal, different or unknown."""
    difference = gold - given
    if difference.is_number:
        sign = difference.equals(0)
        return "equal" if sign is True else "different" if sign is False else "unknown"
    for form in (sympy.simplify, sympy.gammasimp, lambda d: sympy.simplify(sympy.expand_log(d, force=True))):
        if form(difference) == 0:
            return "equal"
    return "unknown"


def main() -> None:
    """Answer until the input ends."""
    import contextlib
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    seconds = float(sys.argv[1])
    import sympy

    sympy.simplify(
        sympy.sin(sympy.Symbol("x")) ** 2 - sympy.Rational(1, 2)
    )  # what is loaded on first use, before the clock
    print("ready", flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # the default action ends the process
        try:
            gold, given = json.loads(line)
            reply = judge(sympy, build(sympy, gold), build(sympy, given))
        except Exception:
            reply = "unknown"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(reply, flush=True)


if __name__ == "__main__":
    main()
