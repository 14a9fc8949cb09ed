"""JSON schemas of arguments: learned from values, and checked.

`Shape` collects values and says what they have in common. `violation` checks a value against a schema, learned or
given; of JSON Schema it reads the keywords that tools' schemas use (type, enum, const, properties, required,
additionalProperties, items, anyOf, oneOf, allOf, local $ref, bounds of numbers, texts and lists, pattern) and takes no
notice of others, so what it rejects is wrong and what it accepts may still be.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_ENUM = 8
MIN_SEEN = 3
_MIN_GROUPS = 20
_MIN_WHOLE = 100
_MAX_TEXT = 40
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_SAID = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.lt,
    "maximum": operator.gt,
    "exclusiveMinimum": operator.le,
    "exclusiveMaximum": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """How a value breaks a schema.

    Attributes:
        kind: "missing_argument", "unknown_argument", "wrong_type" or "inadmissible" (not one of few allowed values, or
            outside its bounds).
        argument: the argument's name, with the path inside it: "flights[0].date".
        value: what was given; None where it is missing.
        wanted: what would be right, in words.
    """

    kind: str
    argument: str
    value: Any = None
    wanted: str = ""

    @property
    def top(self) -> str:
        """The argument's own name, without the path inside it."""
        return re.split(r"[.\[]", self.argument, maxsplit=1)[0]


class Shape:
    """What recorded values of one place have in common.

    Values are added group by group (all of a task's episodes form a group), so that a value which one task repeats is
    not taken for a value that every task may hold.
    """

    __slots__ = ("_last", "_values", "count", "fields", "groups", "items", "types")

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.count = 0
        self.groups = 0
        self.types: dict[str, int] = {}
        self.fields: dict[str, Shape] = {}
        self.items: Shape | None = None
        self._last: Any = None
        self._values: dict[Any, list[Any]] | None = {}  # value -> [groups that hold it, rank of the first, last group]

    def add(self, value: Any, group: Any) -> None:
        """Take one value of a group; the values of a group come one after another."""
        self.count += 1
        if self.groups == 0 or group != self._last:
            self.groups += 1
            self._last = group
        kind = _NAMES.get(type(value), "null")
        self.types[kind] = self.types.get(kind, 0) + 1
        if kind == "object":
            for name, item in value.items():
                at = self.fields.get(name)
                if at is None:
                    at = self.fields[name] = Shape()
                at.add(item, group)
        elif kind == "array":
            if self.items is None:
                self.items = Shape()
            for item in value:
                self.items.add(item, group)
        elif self._values is not None:
            self._note(value, kind, group)

    def _note(self, value: Any, kind: str, group: Any) -> None:
        assert self._values is not None
        if kind != "string" or len(value) > _MAX_TEXT:
            self._values = None
            return
        seen = self._values.get(value)
        if seen is None:
            if len(self._values) >= MAX_ENUM:
                self._values = None
                return
            self._values[value] = [1, self.groups, group]
        elif seen[2] != group:
            seen[0] += 1
            seen[2] = group

    @property
    def enum(self) -> list[str] | None:
        """The values, sorted, where they are few and new ones are not to be expected.

        Each was seen in three groups, the last half of the groups brought no new one, and there are twenty groups and
        ten to a value.
        """
        if not self._values or len(self._values) < 2 or set(self.types) != {"string"}:
            return None
        if self.groups < max(_MIN_GROUPS, 10 * len(self._values)):
            return None
        if any(groups < MIN_SEEN or 2 * first > self.groups for groups, first, _ in self._values.values()):
            return None
        return sorted(self._values)

    def schema(self) -> dict[str, Any]:
        """As a JSON schema; {} where nothing was seen."""
        if not self.count:
            return {}
        kinds = sorted(self.types)
        if "integer" in kinds and ("number" in kinds or self.types["integer"] < _MIN_WHOLE):
            kinds = sorted({*kinds, "number"} - {"integer"})  # a few whole numbers do not forbid others
        out: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if self.enum is not None:
            out["enum"] = self.enum
        if self.fields and len(self.fields) <= max(MAX_ENUM, self.types["object"] // 2):
            out["properties"] = {name: field.schema() for name, field in sorted(self.fields.items())}
            out["required"] = sorted(name for name, f in self.fields.items() if f.count == self.types["object"])
        if self.items is not None and self.items.count:
            out["items"] = self.items.schema()
        return out


def violation(schema: Mapping[str, Any], value: Any, *, closed: bool = False) -> Violation | None:
    """The first way in which arguments break their schema; None where they keep it.

    Args:
        schema: of the arguments, an object's.
        value: the arguments.
        closed: arguments that the schema does not list are wrong, also where it does not say so.
    """
    return _check(schema, value, "", schema, closed)


def _check(schema: Any, value: Any, path: str, root: Mapping[str, Any], closed: bool = False) -> Violation | None:
    if schema is True or schema == {} or not isinstance(schema, Mapping):
        return Violation("unknown_argument", path, value, "") if schema is False else None
    if "$ref" in schema:
        target = _resolve(schema["$ref"], root)
        return None if target is schema else _check(target, value, path, root, closed)
    kinds = schema.get("type")
    if kinds is not None and not _is_of(value, kinds):
        return Violation("wrong_type", path, value, _said(kinds))
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        return Violation("inadmissible", path, value, "one of " + ", ".join(map(_short, schema["enum"])))
    if "const" in schema and not _same(value, schema["const"]):
        return Violation("inadmissible", path, value, _short(schema["const"]))
    if isinstance(value, dict):
        found = _check_object(schema, value, path, root, closed)
    elif isinstance(value, list):
        found = _check_list(schema, value, path, root)
    else:
        found = _check_bounds(schema, value, path)
    return found or _check_unions(schema, value, path, root, closed)


def _check_object(
    schema: Mapping[str, Any], value: Mapping[str, Any], path: str, root: Mapping[str, Any], closed: bool
) -> Violation | None:
    properties = schema.get("properties") or {}
    rest = schema.get("additionalProperties", not (closed and "properties" in schema))
    under = f"{path}." if path else ""
    for name, item in value.items():
        if name in properties:
            found = _check(properties[name], item, under + name, root)
        elif rest is False:
            return Violation("unknown_argument", under + name, item)
        else:
            found = _check(rest, item, under + name, root)
        if found is not None:
            return found
    for name in schema.get("required") or ():
        if name not in value:
            return Violation("missing_argument", under + name)
    return None


def _check_list(schema: Mapping[str, Any], value: list[Any], path: str, root: Mapping[str, Any]) -> Violation | None:
    items = schema.get("items")
    if isinstance(items, Mapping):
        for i, item in enumerate(value):
            found = _check(items, item, f"{path}[{i}]", root)
            if found is not None:
                return found
    if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
        return Violation("inadmissible", path, value, "a list of another length")
    return None


def _check_bounds(schema: Mapping[str, Any], value: Any, path: str) -> Violation | None:
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", len(value)):
            return Violation("inadmissible", path, value, "a text of another length")
        if "pattern" in schema:
            try:
                fits = re.search(schema["pattern"], value) is not None
            except re.error:  # a pattern in another dialect says nothing here
                fits = True
            if not fits:
                return Violation("inadmissible", path, value, f"a text like {schema['pattern']}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        for word, broken in _BOUNDS.items():
            bound = schema.get(word)
            if isinstance(bound, (int, float)) and not isinstance(bound, bool) and broken(value, bound):
                return Violation("inadmissible", path, value, "a number within its bounds")
    return None


def _check_unions(
    schema: Mapping[str, Any], value: Any, path: str, root: Mapping[str, Any], closed: bool
) -> Violation | None:
    for part in schema.get("allOf") or ():
        found = _check(part, value, path, root, False)
        if found is not None:
            return found
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if parts:
            broken = [_check(part, value, path, root, closed) for part in parts]
            if None not in broken:
                if len(broken) == 1 or isinstance(value, (dict, list)):
                    # the alternative that went furthest tells most
                    return max((b for b in broken if b is not None), key=lambda b: len(b.argument))
                return Violation("wrong_type", path, value, " or ".join(b.wanted for b in broken if b and b.wanted))
    return None


def _resolve(ref: Any, root: Mapping[str, Any]) -> Any:
    """A local reference; an unknown one accepts everything."""
    at: Any = root
    if not isinstance(ref, str) or not ref.startswith("#"):
        return {}
    for part in ref.lstrip("#/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if part and (not isinstance(at, Mapping) or part not in at):
            return {}
        at = at[part] if part else at
    return at


def _is_of(value: Any, kinds: Any) -> bool:
    if isinstance(kinds, str):
        kinds = (kinds,)
    own = _NAMES.get(type(value), "null")
    if own in kinds or (own == "integer" and "number" in kinds):
        return True
    if own == "number" and "integer" in kinds:
        return bool(value.is_integer())
    return not any(kind in _SAID for kind in kinds)  # a type of another dialect says nothing here


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _said(kinds: Any) -> str:
    names = (kinds,) if isinstance(kinds, str) else kinds
    return " or ".join(_SAID.get(name, str(name)) for name in names)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


short = _short
"""A value as JSON of at most 80 characters, as messages show it."""
