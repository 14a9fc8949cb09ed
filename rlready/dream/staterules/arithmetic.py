"""Tools that calculate: the value of an expression, and the form in which a tool writes it.

Nothing is executed: an expression is read by `ast`, and only numbers, + - * / // % **, signs and parentheses have a
value. Length, depth and exponents are bounded, so no expression takes long.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 400
MAX_NODES = 200
MAX_POWER = 64
_LIMIT = 1e15
_ARITHMETIC = re.compile(r"[-0-9.+*/%()eE\s]*[0-9][-0-9.+*/%()eE\s]*")

Number = int | float
_OPS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def evaluate(expression: str) -> Number | None:
    """The value of an arithmetic expression; None where it is none, is too large, or has no value (1 / 0)."""
    if len(expression) > MAX_LENGTH or not _ARITHMETIC.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        budget = [MAX_NODES]
        value = _value(tree.body, budget)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value


def _value(node: ast.expr, budget: list[int]) -> Number:
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError("the expression has too many parts")
    if isinstance(node, ast.Constant):
        if type(node.value) not in (int, float):
            raise ValueError("not a number")
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, budget)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPS:
        left, right = _value(node.left, budget), _value(node.right, budget)
        if isinstance(node.op, ast.Pow) and not abs(right) <= MAX_POWER:
            raise ValueError("the exponent is too large")
        return _bounded(_OPS[type(node.op)](left, right))
    raise ValueError("not arithmetic")


def _bounded(value: Any) -> Number:
    if isinstance(value, complex) or not abs(value) <= _LIMIT:
        raise ValueError("the value is out of bounds")
    return value  # type: ignore[no-any-return]


def _whole(value: Number) -> str:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not a whole number")
    return str(int(value))


FORMS: dict[str, Callable[[Number], str]] = {
    "as python writes it": str,
    "float": lambda v: str(float(v)),
    "whole": _whole,
    "float, 2 decimals at most": lambda v: str(round(float(v), 2)),
    "whole, else 2 decimals at most": lambda v: str(int(v)) if float(v).is_integer() else str(round(float(v), 2)),
    "whole, else float": lambda v: str(int(v)) if float(v).is_integer() else str(float(v)),
    "2 decimals": lambda v: f"{v:.2f}",
    "1 decimal": lambda v: f"{v:.1f}",
    "4 decimals at most": lambda v: str(round(float(v), 4)),
    "general": lambda v: f"{v:g}",
    "thousands, 2 decimals": lambda v: f"{v:,.2f}",
}
"""Ways of writing a number, the likelier first."""


@dataclass(frozen=True, slots=True)
class Sum:
    """How one tool calculates.

    Attributes:
        arguments: the one argument that holds an expression, or the two that hold numbers.
        operation: "" for an expression, else one of + - * /.
        forms: keys of `FORMS`, all that explain the recorded replies equally well; where they differ, none is used.
        before, after: what stands around the number in the reply.
    """

    arguments: tuple[str, ...]
    operation: str
    forms: tuple[str, ...]
    before: str = ""
    after: str = ""

    def reply(self, arguments: Mapping[str, Any]) -> str | None:
        """The tool's reply; None where it cannot be calculated."""
        value = value_of(arguments, self.arguments, self.operation)
        if value is None:
            return None
        try:
            texts = {FORMS[form](value) for form in self.forms}
        except (ValueError, OverflowError):
            return None
        return f"{self.before}{texts.pop()}{self.after}" if len(texts) == 1 else None


def value_of(arguments: Mapping[str, Any], names: Sequence[str], operation: str) -> Number | None:
    """What a call asks to calculate; None where that has no value."""
    given = [arguments.get(name) for name in names]
    if not operation:
        return evaluate(given[0]) if isinstance(given[0], str) else None
    if len(given) != 2 or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in given):
        return None
    try:
        return _bounded(_BINARY[operation](given[0], given[1]))
    except (ValueError, ArithmeticError):
        return None


def learn_sum(calls: Sequence[tuple[Mapping[str, Any], str]]) -> Sum | None:
    """How a tool calculates, from (arguments, reply) pairs that did not fail; None where it does not.

    At least 80% of the calls must be explained; how often it is right is for others to verify.
    """
    if len(calls) < 3:
        return None
    calls = calls[:500]
    names = Counter(name for arguments, _ in calls for name in arguments)
    common = sorted(name for name, n in names.items() if n >= 0.8 * len(calls))
    tried: list[tuple[tuple[str, ...], str]] = [((name,), "") for name in common]
    if 2 <= len(common) <= 4:
        for a, b in itertools.permutations(common, 2):
            tried += [((a, b), op) for op in _BINARY if a < b or op in "-/"]
    found: dict[tuple[tuple[str, ...], str, str, str], dict[str, int]] = {}
    for arguments, operation in tried:
        values = [(value_of(given, arguments, operation), reply) for given, reply in calls]
        known = [(value, reply) for value, reply in values if value is not None]
        if len(known) < 0.8 * len(calls):
            continue
        for form in FORMS:
            around = Counter(pair for value, reply in known if (pair := _around(form, value, reply)) is not None)
            for (before, after), n in around.items():
                if n >= 0.8 * len(calls):
                    found.setdefault((arguments, operation, before, after), {})[form] = n
    if not found:
        return None
    best = max(found, key=lambda key: (max(found[key].values()), -len(key[2] + key[3]), key))
    most = max(found[best].values())
    arguments, operation, before, after = best
    return Sum(arguments, operation, tuple(form for form, n in found[best].items() if n == most), before, after)


def _around(form: str, value: Number, reply: str) -> tuple[str, str] | None:
    """What stands before and after a number in a reply; None where the number is not in it."""
    try:
        text = FORMS[form](value)
    except (ValueError, OverflowError):
        return None
    at = reply.rfind(text)
    if at < 0 or len(reply) > len(text) + 200:
        return None
    before, after = reply[:at], reply[at + len(text) :]
    if before[-1:].isdigit() or before[-1:] in ("-", ".") or after[:1].isdigit():
        return None
    return before, after
