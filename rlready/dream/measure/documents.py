"""Replies as documents: their fields, what they are about, and what changed since.

A reply that is a JSON object or list is flattened to paths and leaves. It is about an *entity* where one of its
top-level id fields ("id", "..._id", "...Id") holds a value that the action's arguments hold too. What it is compared
with is the last earlier document of that entity, else the last one that answered the very same action.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlready.dream.base import Action, Reply
from rlready.dream.simulators.substitute import as_json

Leaves = dict[str, str]
"""Path ("flights[0].price") -> the leaf as JSON text."""

Entity = tuple[str, str]
"""Name of the id field, and the id."""


def parse(text: str) -> Any:
    """The JSON object or list that a text is; None for anything else (plain numbers and words included)."""
    return as_json(text)


def leaves(document: Any) -> Leaves:
    """All leaves by path; an empty object or list is a leaf."""
    return dict(_leaves(document, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, json.dumps(value, sort_keys=True, ensure_ascii=False)


def same(said: str, truth: str) -> bool:
    """Equal texts, outer white space aside, or equal JSON values however they are laid out."""
    if said.strip() == truth.strip():
        return True
    a, b = parse(said), parse(truth)
    return a is not None and b is not None and leaves(a) == leaves(b)


def entity_of(action: Action, document: Any) -> Entity | None:
    """What a document is about; None where no id field of it is named by the action."""
    if not isinstance(document, dict) or not action.arguments:
        return None
    named = set(_values(action.arguments))
    for key, value in document.items():
        if (key == "id" or key.endswith(("_id", "Id", "ID"))) and isinstance(value, (str, int)) and str(value) in named:
            return key, str(value)
    return None


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _values(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _values(inner)
    elif isinstance(value, (str, int)):
        yield str(value)


def previous(past: Sequence[tuple[Action, Reply]], action: Action, document: Any) -> Leaves | None:
    """The fields of the last earlier document of the same thing; None where there was none."""
    entity = entity_of(action, document)
    for earlier, reply in reversed(past):
        if reply.failed or (found := parse(reply.text)) is None:
            continue
        if (entity is not None and entity_of(earlier, found) == entity) or earlier.text == action.text:
            return leaves(found)
    return None


def changed(before: Leaves, after: Leaves) -> set[str]:
    """Paths that were added, dropped or have another value."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@dataclass(frozen=True, slots=True)
class FieldScore:
    """How a reply fares against the recorded document, field by field.

    Attributes:
        bucket: "new" (no earlier document), "0", "1", "2" or "3+" fields changed.
        fields: paths in either document.
        right: of these, the ones with equal values in both.
        moved: paths that changed against the earlier document.
        moved_right: of these, the ones whose new value (or absence) was said.
    """

    bucket: str
    fields: int
    right: int
    moved: int
    moved_right: int


def score_fields(past: Sequence[tuple[Action, Reply]], action: Action, said: str, truth: str) -> FieldScore | None:
    """Compare a reply with the recorded one; None where the recorded one is no document."""
    document = parse(truth)
    if document is None:
        return None
    wanted, told = leaves(document), leaves(found) if (found := parse(said)) is not None else {}
    paths = wanted.keys() | told.keys()
    right = sum(path in told and wanted.get(path) == told[path] for path in paths)
    before = previous(past, action, document)
    if before is None:
        return FieldScore("new", len(paths), right, 0, 0)
    moved = changed(before, wanted)
    hits = sum(wanted.get(path) == told.get(path) for path in moved) if found is not None else 0
    return FieldScore(str(len(moved)) if len(moved) < 3 else "3+", len(paths), right, len(moved), hits)
