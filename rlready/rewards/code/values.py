"""Whether a value that a function returned, as text, is the expected one.

Both are read as Python literals or JSON, never evaluated. Whole numbers, texts, truth values and None must be the same;
numbers are close within the tolerance where either is decimal; a list is equal to a tuple of the same items, as JSON
knows only lists; sets have no order. A truth value is no number.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

from rlready.errors import UserError
from rlready.rewards.code.outputs import TOLERANCE, check
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong

_LONGEST, _DEEPEST = 1_000_000, 60
_DEPTH = re.compile(r"[\[\](){}]|[-+~ ]{200,}|(?:\b(?:not|lambda|await)\b\s*){20,}")
_EXACT = 1e-9


class _Unread(Exception):
    """A text is no value."""


def read_value(text: str) -> Any:
    """The value that a text writes down.

    Raises:
        ValueError: it writes down none.
    """
    try:
        return _read(text.strip())
    except _Unread as error:
        raise ValueError(str(error)) from None


def _read(text: str) -> Any:
    if len(text) > _LONGEST:
        raise _Unread("it is too long")
    depth = 0
    for match in _DEPTH.finditer(text):  # brackets in texts count as well, which only makes the bound narrower
        if len(match[0]) > 1:
            raise _Unread("it is no value")
        depth += 1 if match[0] in "[({" else -1
        if abs(depth) > _DEEPEST:
            raise _Unread("it is nested too deeply")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _build(ast.parse(text, mode="eval").body)
    except (_Unread, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _Unread("it is no value") from None


def _build(node: ast.expr) -> Any:
    """The value of a literal, `inf` and `nan` among them as Python prints them."""
    if isinstance(node, ast.Constant) and node.value is not Ellipsis:
        return node.value
    if isinstance(node, ast.List):
        return [_build(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_build(item) for item in node.elts)
    if isinstance(node, ast.Set):
        return {_build(item) for item in node.elts}
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_build(key): _build(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.Call) and not node.keywords and isinstance(node.func, ast.Name):
        items = [_build(item) for item in node.args]
        if node.func.id in ("set", "frozenset") and len(items) <= 1:
            return set(*items)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _build(node.operand)
        if type(value) in (int, float, complex):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        one, other = _build(node.left), _build(node.right)
        if type(one) in (int, float) and type(other) is complex:
            return one + other if isinstance(node.op, ast.Add) else one - other
    raise _Unread("it is no value")


def values_equal(given: Any, wanted: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether a value is the expected one; see the module for the rules."""
    if isinstance(wanted, bool) or isinstance(given, bool) or wanted is None or given is None:
        return type(given) is type(wanted) and given == wanted
    if isinstance(wanted, int | float) and isinstance(given, int | float):
        return _numbers(given, wanted, tolerance)
    if isinstance(wanted, complex) or isinstance(given, complex):
        kinds = isinstance(wanted, int | float | complex) and isinstance(given, int | float | complex)
        return kinds and abs(given - wanted) <= tolerance * max(1.0, abs(wanted))
    if isinstance(wanted, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(wanted):
            return False
        return all(values_equal(a, b, tolerance) for a, b in zip(given, wanted, strict=True))
    if isinstance(wanted, dict):
        if not isinstance(given, dict) or len(given) != len(wanted):
            return False
        typed = {(type(key), key): value for key, value in given.items()}  # True is not 1
        return all(
            (type(key), key) in typed and values_equal(typed[type(key), key], value, tolerance)
            for key, value in wanted.items()
        )
    if isinstance(wanted, set | frozenset):
        return isinstance(given, set | frozenset) and given == wanted
    return type(given) is type(wanted) and bool(given == wanted)


def _numbers(given: float, wanted: float, tolerance: float) -> bool:
    if isinstance(given, int) and isinstance(wanted, int):
        return given == wanted
    try:
        one, other = float(given), float(wanted)
    except OverflowError:
        return given == wanted
    if not (math.isfinite(one) and math.isfinite(other)):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(wanted, int):
        if abs(wanted) >= 10**15:
            return given == wanted
        return abs(one - other) <= max(TOLERANCE, _EXACT * abs(other))
    return abs(one - other) <= tolerance * max(1.0, abs(other))


def verify_value(prediction: str, expected: Any, *, tolerance: float = TOLERANCE) -> Graded:
    """Right where the text writes down the expected value.

    Args:
        prediction: a value as text: a Python literal or JSON.
        expected: the value, or its text.
        tolerance: absolute and relative, of numbers of which one is decimal.

    Raises:
        UserError: the tolerance is no small positive number.
    """
    check("text", tolerance)
    if not prediction.strip():
        return no_answer("no value is given")
    if isinstance(expected, str):
        try:
            expected = read_value(expected)
        except ValueError as error:
            if not expected.strip():
                return failed("the expected value is empty")
            if expected.strip()[0] in "[({'\"":
                return failed(f"the expected value {short(expected)} cannot be read: {error}")
            expected = expected.strip()  # a text without quotes
            same = expected == prediction.strip()
            if same:
                return right("the same text")
    try:
        given = read_value(prediction)
    except ValueError as error:
        if isinstance(expected, str) and prediction.strip() == expected:
            return right("the same text")
        return wrong(f"the value {short(prediction.strip())} cannot be read: {error}")
    try:
        equal = values_equal(given, expected, tolerance)
    except RecursionError:
        return failed("the expected value is nested too deeply")
    if equal:
        return right(f"{short(given)} is {short(expected)}")
    return wrong(f"{short(given)} is not {short(expected)}")


def grade_code_value(record: Mapping[str, Any]) -> Graded:
    """Grade a value as text: `prediction` against `reference` within `tolerance` (1e-6) if given.

    Raises:
        UserError: a key is missing or of another kind.
    """
    if "reference" not in record or not isinstance(record.get("prediction"), str | None):
        raise UserError('A record of the kind code_value needs a text as "prediction", and a "reference".')
    tolerance = record.get("tolerance", TOLERANCE)
    return verify_value(record.get("prediction") or "", record["reference"], tolerance=tolerance)
