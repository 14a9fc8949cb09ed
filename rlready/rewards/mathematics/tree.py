"""The tree that mathematics is read into, the two ways in which work on it can end early, and the bound on that work.

A `Node` has an `op`, the nodes below it, and a `value` where the op needs one:

    num      a Fraction                 sym      a name            const    "pi", "e", "i", "inf"
    add mul div pow neg                 pm       plus or minus its one or two parts; value -1 for minus or plus
    fn       a function; value its name (sqrt, root, log, sin, abs, fact, binom, gcd ...)
    percent  the number before the sign unit     a quantity; value a `words.Unit`
    base     a numeral; value (number, base)     colon    1:30, 2:3
    tuple    brackets; value (open, close)       set list matrix (rows of `row` nodes) dots empty
    union inter minus                            within   one of the sets of numbers; value "R", "Z", ...
    rel      parts; value the signs between      cong     two sides and the modulus
    build    a set by a condition                word     a word with a meaning; value the word
    label    a choice's letter and its content
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

EMPTY = "it is empty"
MAX_BITS = 1 << 17  # of a numerator or denominator: 39,000 digits


class Unreadable(Exception):
    """The text is not mathematics that this package reads; the message says what is in the way."""


class TooMuchError(Exception):
    """The bound on the work was met before anything was decided."""


class Undefined(Exception):
    """The expression has no value: division by zero, the logarithm of zero."""


class Budget:
    """A bound on elementary steps. It counts instead of looking at a clock, so it holds in threads and repeats."""

    __slots__ = ("left",)

    def __init__(self, steps: int = 200_000) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            TooMuchError: none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise TooMuchError("it takes more steps than the grader allows")


class Node:
    """One node; see the module for what each `op` means."""

    __slots__ = ("args", "op", "value")

    def __init__(self, op: str, args: tuple[Node, ...] = (), value: Any = None) -> None:
        self.op, self.args, self.value = op, args, value

    def __repr__(self) -> str:
        inner = ", ".join([*([str(self.value)] if self.value is not None else []), *map(repr, self.args)])
        return f"{self.op}({inner})"

    def same(self, other: Node) -> bool:
        """Whether two trees are alike in every node."""
        return (
            self.op == other.op
            and self.value == other.value
            and len(self.args) == len(other.args)
            and all(a.same(b) for a, b in zip(self.args, other.args, strict=True))
        )


def num(value: int | Fraction) -> Node:
    """A number."""
    return Node("num", (), Fraction(value))


def walk(node: Node) -> list[Node]:
    """The node and all below it."""
    out = [node]
    for one in out:
        out.extend(one.args)
    return out
