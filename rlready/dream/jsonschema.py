"""JSON schemas of arguments, learned from values.

`Shape` collects values and says what they have in common; `rlready.schemas` checks a value against a schema, learned or
given.
"""

from __future__ import annotations

from typing import Any

from rlready.schemas import TYPE_NAMES

MAX_ENUM = 8
MIN_SEEN = 3
_MIN_GROUPS = 20
_MIN_WHOLE = 100
_MAX_TEXT = 40


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
        kind = TYPE_NAMES.get(type(value), "null")
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
