"""Frozen dataclasses of numbers to JSON and back. NaN, which JSON lacks, is written as null."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A JSON-ready copy. Dataclass fields with `metadata={"json": False}` are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.metadata.get("json", True)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def from_json(cls: type[T], record: Mapping[str, Any]) -> T:
    """Inverse of `to_json`; null becomes NaN where a plain float is declared."""
    hints = typing.get_type_hints(cls)
    return cls(**{name: _read(hints[name], value) for name, value in record.items() if name in hints})


def _read(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return math.nan if value is None else float(value)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _read(next(a for a in args if a is not type(None)), value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(args[0], v) for v in value)
        return tuple(_read(a, v) for a, v in zip(args, value, strict=True))
    if origin is list:
        return [_read(args[0], v) for v in value]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {k: _read(args[1], v) for k, v in value.items()}
    return value
