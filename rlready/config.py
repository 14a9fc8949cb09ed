"""Configuration: a dataclass gives names, types and defaults; a TOML file and dotted overrides fill it.

    load(DreamConfig, file="my.toml", overrides=["grpo.clip_high=0.3", "model=hf:SmolLM2"])

Later sources win: defaults, then the file, then the overrides. Nothing is ignored: an unknown key, a value of the
wrong type or malformed TOML stops with a sentence that names the place and what would be right. `to_toml` writes the
resolved configuration.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from rlready.errors import UserError, did_you_mean

T = TypeVar("T")

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


def read_toml(path: str | Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        UserError: the file is missing or malformed; file, line and column are named.
    """
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder; a TOML file is wanted.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}, {_toml_place(str(error), path.read_text(encoding='utf-8'))}") from error


def load(
    cls: type[T],
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    base: T | None = None,
    table: Mapping[str, Any] | None = None,
) -> T:
    """Build a configuration.

    Args:
        cls: a dataclass; its fields may be dataclasses in turn.
        file: a TOML file.
        overrides: `dotted.key=value`, the value in TOML, or bare text where text is wanted.
        base: where the defaults come from instead of the class.
        table: settings that come after the defaults and before the file, such as those of a run that is resumed.

    Raises:
        UserError: unknown key (nearest names offered), wrong type, malformed TOML or override.
    """
    config = base if base is not None else _default(cls)
    if table is not None:
        config = _merge(config, table, where="", path="")
    if file is not None:
        config = _merge(config, read_toml(file), where=f"{file}: ", path="")
    # All at once: a dataclass checks its fields together, and single keys of one table are set by several overrides.
    return _merge(config, _table_of(overrides), where="", path="") if overrides else config


def _table_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The overrides as one nested table; where two disagree, the later holds."""
    table: dict[str, Any] = {}
    for text in overrides:
        names, value = parse_override(text)
        at = table
        for name in names[:-1]:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        at[names[-1]] = value
    return table


def parse_override(text: str) -> tuple[list[str], Any]:
    """`grpo.clip_high=0.3` to (["grpo", "clip_high"], 0.3). A value that is not TOML stays a `Bare` string.

    Raises:
        UserError: there is no `=`, or the key is empty.
    """
    key, sign, raw = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not sign or not all(names):
        raise UserError(f'"{text}" is not an override. Write key=value, such as grpo.clip_high=0.3.')
    try:
        return names, tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return names, Bare(raw.strip())


class Bare(str):
    """Command-line text without quotes: a string where one is wanted, otherwise a wrong value."""


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain tables; values that are None are left out, as TOML has no word for them.

    What a dataclass keeps for itself (fields that are no arguments) is no setting.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    out: dict[str, Any] = {}
    for key, value in config.items():
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            out[str(key)] = to_dict(value)
        elif value is not None:
            out[str(key)] = _plain(value)
    return out


def to_toml(config: Any) -> str:
    """A configuration (dataclass or mapping) as TOML text; floats read back to the same bits."""
    lines: list[str] = []
    _write_table(to_dict(config), [], lines)
    return "\n".join(lines).strip() + "\n"


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any], path: str = "") -> tuple[str, Any, Any] | None:
    """The first dotted key whose value differs between two plain configurations, with both values."""
    for key in [*a, *(k for k in b if k not in a)]:
        x, y, name = a.get(key), b.get(key), f"{path}{key}"
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            if (found := first_difference(x, y, f"{name}.")) is not None:
                return found
        elif x != y:
            return name, x, y
    return None


def _default(cls: type[T]) -> T:
    try:
        return cls()
    except TypeError as error:
        raise TypeError(f"{cls.__name__} needs a default for every field to be a configuration ({error}).") from error


def _merge(config: Any, table: Mapping[str, Any], where: str, path: str) -> Any:
    hints = typing.get_type_hints(type(config))
    fields = {f.name: hints[f.name] for f in dataclasses.fields(config) if f.init}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{path}{key}"
        if key not in fields:
            error = did_you_mean("key", name, [f"{path}{k}" for k in fields])
            raise UserError(f"{where}{error}")
        current = getattr(config, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"{where}{name} is a table of settings; set one of them, such as {name}.{_first(current)}=..."
                )
            changes[key] = _merge(current, value, where, f"{name}.")
        else:
            changes[key] = _convert(value, fields[key], where, name)
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:  # a dataclass's own check of its values
        raise UserError(f"{where}{path.rstrip('.') or 'configuration'}: {error}") from error


def _first(config: Any) -> str:
    return dataclasses.fields(config)[0].name


def _convert(value: Any, hint: Any, where: str, name: str) -> Any:
    """Check a value against a type hint; numbers widen, lists become tuples, nothing else is coerced."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if type(None) in args and value in ("none", "None"):
            return None
        for option in (a for a in args if a is not type(None)):
            try:
                return _convert(value, option, where, name)
            except UserError as error:
                last = error
        raise last
    if origin is Literal:
        if value in args:
            return next(a for a in args if a == value)
        raise UserError(f"{where}{name} must be one of {', '.join(map(str, args))}, but is {_show(value)}.")
    if origin in (list, tuple, Sequence, set, frozenset) or hint in (list, tuple):
        return _convert_items(value, hint, where, name)
    if origin in (dict, Mapping) or hint is dict:
        if isinstance(value, Mapping):
            inner = args[1] if len(args) == 2 else Any
            return {k: _convert(v, inner, where, f"{name}.{k}") for k, v in value.items()}
    elif isinstance(hint, type) and issubclass(hint, Enum):
        for member in hint:
            if value in (member.value, member.name):
                return member
        raise UserError(f"{where}{name} must be one of {', '.join(str(m.value) for m in hint)}, but is {_show(value)}.")
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif hint is Path:
        if isinstance(value, str):
            return Path(value)
    elif hint is str:
        if isinstance(value, str):
            return str(value)
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise _wrong(value, origin or hint, where, name)


def _convert_items(value: Any, hint: Any, where: str, name: str) -> Any:
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if not isinstance(value, list):
        raise _wrong(value, list, where, name)
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise UserError(f"{where}{name} must have {len(args)} values, but has {len(value)}.")
        return tuple(_convert(v, a, where, f"{name}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))
    inner = args[0] if args else Any
    items = [_convert(v, inner, where, f"{name}[{i}]") for i, v in enumerate(value)]
    return items if origin in (list, Sequence) else origin(items)


def _wrong(value: Any, hint: Any, where: str, name: str) -> UserError:
    wanted = _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
    return UserError(f"{where}{name} must be {wanted}, but is {_show(value)}.")


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _toml_place(message: str, text: str) -> str:
    """Say line and column first. `tomllib` appends "(at line 3, column 7)", or "(at end of document)"."""
    found = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    if found:
        return f"line {found[1]}, column {found[2]}: {message[: found.start()]}."
    lines = text.split("\n")
    message = re.sub(r"\s*\(at end of document\)$", "", message)
    return f"line {len(lines)}, column {len(lines[-1]) + 1}: {message}."


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        return to_dict(value)
    return value if isinstance(value, (bool, int, float)) else str(value)


def _write_table(table: Mapping[str, Any], path: list[str], lines: list[str]) -> None:
    nested = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    if path and (len(nested) < len(table) or not table):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if k not in nested]
    for key, value in nested.items():
        _write_table(value, [*path, key], lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if any(c in text for c in ".ein") else f"{text}.0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
