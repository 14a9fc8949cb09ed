"""The few names of pytest that function tests use, for a sandbox that does not have it: raises, approx, parametrize."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable
from typing import Any


class Raises:
    """A context in which an exception must come."""

    def __init__(self, expected: Any, match: str | None = None) -> None:
        """Expect an exception of these classes, whose text holds a pattern."""
        self.expected, self.match = expected, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> Raises:
        """The context; it holds the exception afterwards."""
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        """Swallow the exception that was expected."""
        if kind is None:
            raise AssertionError(f"{self.expected} was not raised")
        if not issubclass(kind, self.expected):
            return False
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"{str(error)!r} does not match {self.match!r}")
        self.value, self.type = error, kind
        return True


def raises(expected: Any, *args: Any, match: str | None = None, **kwargs: Any) -> Any:
    """A context that expects an exception, or a call that must raise it."""
    context = Raises(expected, match)
    if not args:
        return context
    with context:
        args[0](*args[1:], **kwargs)
    return context


class Approx:
    """Equal to plain numbers that are close, and to lists, tuples and dicts of such."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        """The expected value and the tolerances."""
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        """Whether a value is close."""
        return self._close(other, self.expected)

    __hash__ = None  # type: ignore[assignment]

    def _close(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, (list, tuple)):
            same = isinstance(value, (list, tuple)) and len(value) == len(expected)
            return same and all(self._close(a, b) for a, b in zip(value, expected, strict=True))
        if isinstance(expected, dict):
            same = isinstance(value, dict) and value.keys() == expected.keys()
            return same and all(self._close(value[key], expected[key]) for key in expected)
        if not isinstance(value, (int, float)) or not isinstance(expected, (int, float)):
            return bool(type(value) is type(expected) and value == expected)
        rel = 1e-6 if self.rel is None and self.abs is None else self.rel or 0.0
        return math.isclose(value, expected, rel_tol=rel, abs_tol=1e-12 if self.abs is None else self.abs)

    def __repr__(self) -> str:
        """What is expected."""
        return f"approx({self.expected!r})"


def _parametrize(names: Any, sets: Any, **_: Any) -> Callable[[Any], Any]:
    keys = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

    def mark(function: Any) -> Any:
        new = [dict(zip(keys, one if len(keys) > 1 else (one,), strict=True)) for one in sets]
        old = getattr(function, "parameters", None) or [{}]
        function.parameters = [{**a, **b} for a in old for b in new]
        return function

    return mark


MODULE: Any = types.ModuleType("pytest")
MODULE.raises, MODULE.approx = raises, Approx
MODULE.mark = types.SimpleNamespace(parametrize=_parametrize)
