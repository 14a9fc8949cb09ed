"""Times as logs write them: ISO 8601, or numbers of seconds, milliseconds, microseconds or nanoseconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""(numbers above this, units a second): today is 1.8e9 s, 1.8e12 ms, 1.8e15 us, 1.8e18 ns; these hold from 1973 on."""


def seconds_of(value: Any) -> float | None:
    """A point in time as seconds since 1970; None where it cannot be read.

    A number's unit is told by its size. Numbers may be written as text (OTLP does), and a pair is [seconds,
    nanoseconds] (OpenTelemetry for JavaScript). A time without a zone is taken as UTC.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _iso(value)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(x, (int, float)) for x in value):
        return float(value[0]) + float(value[1]) / 1e9
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    for above, units in _UNITS:
        if value > above:
            return value / units
    return float(value)


def _iso(text: str) -> float | None:
    try:
        when = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def span_seconds(start: float | None, end: float | None) -> float | None:
    """How long something took; None where a time is missing or the clock ran backwards."""
    return end - start if start is not None and end is not None and end >= start else None
