"""Documents inside other replies: a list of them, or one in a field of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from rlready.dream.staterules.documents import Reader
from rlready.dream.staterules.reads import MIN_RECORDINGS

EACH = "*"
DEPTH = 3
MOST = 50
_SAMPLE = 300
Place = tuple[str, ...]
"""Keys, outermost first; `EACH` stands for every item of a list."""


def parse_json(text: str) -> Any:
    """A reply that is a JSON object or list; None for any other."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None


def inner(value: Any, place: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects inside a value, with their places, down to three levels; the whole is left out."""
    if len(place) >= DEPTH:
        return
    items = [(EACH, v) for v in value[:MOST]] if isinstance(value, list) else []
    items = list(value.items()) if isinstance(value, dict) else items
    for key, item in items:
        if isinstance(item, dict):
            yield (*place, key), item
        if isinstance(item, (dict, list)):
            yield from inner(item, (*place, key))


def found(value: Any, place: Place) -> Iterator[dict[str, Any]]:
    """The objects at a place."""
    if not place:
        if isinstance(value, dict):
            yield value
    elif place[0] == EACH:
        for item in value if isinstance(value, list) else ():
            yield from found(item, place[1:])
    elif isinstance(value, dict) and place[0] in value:
        yield from found(value[place[0]], place[1:])


def learn_places(
    calls: Mapping[str, Sequence[tuple[Mapping[str, object], str]]], readers: Mapping[str, Reader]
) -> dict[str, tuple[tuple[Place, str], ...]]:
    """Where replies hold documents that a reader shows, by tool, as (place, reader).

    Nearly all objects that stand at such a place, three or more, have the reader's id and fields.

    Args:
        calls: (arguments, reply) of each tool's calls that did not fail.
        readers: tools that read one document.
    """
    if not readers:
        return {}
    out = {}
    for kind, seen in sorted(calls.items()):
        total: Counter[Place] = Counter()
        like: Counter[tuple[Place, str]] = Counter()
        for text in dict.fromkeys(text for _, text in seen[:_SAMPLE]):
            value = parse_json(text)
            for place, document in inner(value) if value is not None else ():
                total[place] += 1
                like.update((place, name) for name, reader in readers.items() if reader.like(document))
        places = tuple(key for key, n in sorted(like.items()) if n >= MIN_RECORDINGS and n >= 0.95 * total[key[0]])
        if places:
            out[kind] = places
    return out
