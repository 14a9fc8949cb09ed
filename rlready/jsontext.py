"""JSON read strictly, from text that a model wrote.

Refused beside what the standard refuses: a key that stands twice in one object, NaN and infinities, numbers that no
double holds, integers of more digits than Python reads, and nesting deeper than `MAX_DEPTH`. So whatever is read can be
walked and compared by recursion, and equals what any other reader makes of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["MAX_DEPTH", "BadJsonError", "read_json", "read_json_at", "same_value", "why_not_json"]

MAX_DEPTH = 100
_WINDOW, _AHEAD = 512, 16
"""An error of Python's reader counts the lines before it, so text that is broken in many places is read by windows.
An error that is found this far before a window's end is one whatever follows, but for a text that is not closed."""
_SPACE = re.compile(r"[ \t\n\r]*")


class BadJsonError(ValueError):
    """A text that is not JSON, or not JSON that is taken.

    Attributes:
        at: where it was found out, as far as that is known.
    """

    def __init__(self, why: str, at: int | None = None) -> None:
        """Say why."""
        super().__init__(why)
        self.at = at


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise BadJsonError("a key stands twice in one object")
    return out


def _refuse(constant: str) -> NoReturn:
    raise BadJsonError(f"{constant} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJsonError("a number is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, parse_float=_float)


def read_json_at(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that starts at `start` (white space aside), and where it ends.

    Raises:
        BadJsonError: there is none.
    """
    found = _SPACE.match(text, start)
    at = found.end() if found else start
    width = _WINDOW
    while True:
        piece, whole = text[at : at + width], at + width >= len(text)
        try:
            value, end = _DECODER.raw_decode(piece)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos + _AHEAD >= len(piece)
            if whole or not cut:
                raise BadJsonError(error.msg, at + error.pos) from None
        except BadJsonError:
            raise
        except RecursionError:
            raise BadJsonError("it is nested too deeply") from None
        except ValueError:  # an integer of more digits than Python reads
            raise BadJsonError("a number has too many digits") from None
        else:
            if whole or end < len(piece):
                break
        width *= 8
    if end > 2 * MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise BadJsonError("it is nested too deeply")
    return value, at + end


def read_json(text: str) -> Any:
    """A text that is one JSON value and nothing else.

    Raises:
        BadJsonError: it is not.
    """
    value, end = read_json_at(text)
    found = _SPACE.match(text, end)
    end = found.end() if found else end
    if end != len(text):
        raise BadJsonError("something follows the value", end)
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects are nested; without recursion."""
    depth, level = 0, [value]
    while True:
        inner = [v for v in level if isinstance(v, (dict, list))]
        if not inner:
            return depth
        depth += 1
        if depth > MAX_DEPTH:
            return depth
        level = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]


def same_value(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, no number equals a text, true does not equal 1, objects ignore order.

    Raises:
        RecursionError: both are nested deeper than anything that `read_json` reads.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    return type(a) is type(b) and bool(a == b)


def why_not_json(value: Any) -> str | None:
    """Why a Python value is not JSON that is taken, in words; None where it is.

    For golds, which come as values from anywhere.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            return "it is nested too deeply"
        below: list[Any] = []
        for v in level:
            if isinstance(v, Mapping):
                if not all(isinstance(k, str) for k in v):
                    return "a key is no text"
                below.extend(v.values())
            elif isinstance(v, (list, tuple)):
                below.extend(v)
            elif isinstance(v, float) and not math.isfinite(v):
                return f"{v} is not JSON"
            elif v is not None and not isinstance(v, (str, int, float)):
                return f"a {type(v).__name__} is not JSON"
        level = below
    return None
