"""A recorded reply with the present call's values in the place of the recorded ones.

    recorded   get_order {"order_id": "W12"}   ->  {"id": "W12", "status": "sent"}
    now        get_order {"order_id": "W77"}   ->  {"id": "W77", "status": "sent"}

Values are taken where they stand by themselves: neither inside a word nor inside a number or date. Identifiers that
earlier calls of the two episodes brought with them (the user, the order) are exchanged as well. A reply that was JSON
stays JSON, else it is left as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlready.dream.base import Action, Reply

_NAMES = "id|ids|key|uuid|no|number|code"
_ID = re.compile(rf"(?:^|[_\W])(?:{_NAMES})$", re.IGNORECASE)
_CAMEL_ID = re.compile(r"[a-z](?:Id|Ids|ID|IDs|Key|Uuid|No|Number|Code)$")
_LEAST = 3


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | int | float]]:
    """Texts and numbers of a JSON value with their paths, keys sorted; truth values and null are left out."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, str(i)))
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield path, value


def is_id(path: Sequence[str]) -> bool:
    """Whether a value is an identifier by its name, such as "user_id", "orderId" or "number"."""
    names = [p for p in path if not p.isdigit()]
    return bool(names) and bool(_ID.search(names[-1]) or _CAMEL_ID.search(names[-1]))


def exchanges(recorded: Action, now: Action) -> dict[str, str]:
    """Which recorded argument value becomes which: at the same path, long enough or an identifier, and different.

    A recorded value that stands at two paths which now differ is left alone: nothing says which is meant.
    """
    return _pairs(dict(leaves(recorded.arguments or {})), dict(leaves(now.arguments or {})), named=False)


def identifiers(recorded: Sequence[tuple[Action, Reply]], now: Sequence[tuple[Action, Reply]]) -> dict[str, str]:
    """The same for identifiers of earlier calls: the last value that each episode used under each name.

    A name counts where it ends in "id": numbers and codes are as often what was chosen as whose episode it is.
    """
    return _pairs(_last_ids(recorded), _last_ids(now), named=True)


def _last_ids(steps: Sequence[tuple[Action, Reply]]) -> dict[tuple[str, ...], str | int | float]:
    out: dict[tuple[str, ...], str | int | float] = {}
    for action, _ in steps:
        for path, value in leaves(action.arguments or {}):
            name = next((p for p in reversed(path) if not p.isdigit()), "")
            if is_id(path) and name.lower().endswith("id"):
                out[name,] = value
    return out


def _pairs(
    old: Mapping[tuple[str, ...], str | int | float], new: Mapping[tuple[str, ...], str | int | float], *, named: bool
) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for path, value in old.items():
        if path not in new:
            continue
        before, after = str(value), str(new[path])
        if not before.strip() or not after.strip() or not (named or len(before) >= _LEAST or is_id(path)):
            continue
        found[before] = after if found.get(before, after) == after else None
    return {before: after for before, after in found.items() if after is not None and before != after}


def substitute(text: str, pairs: Mapping[str, str]) -> str:
    """The text with all exchanges made at once, longer values first."""
    if not text or not pairs:
        return text
    body = as_json(text)
    if body is None:
        return _swap(text, pairs)
    swapped = _swap(text, {_inner(text, a): _inner(text, b) for a, b in pairs.items()})
    return swapped if as_json(swapped) is not None else text


def as_json(text: str) -> Any:
    """The object or list that a text is; None where it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _inner(text: str, value: str) -> str:
    """How a value is written inside the strings of this JSON text: with or without escapes of other alphabets."""
    return json.dumps(value, ensure_ascii=text.isascii())[1:-1]


def _swap(text: str, pairs: Mapping[str, str]) -> str:
    values = sorted(pairs, key=lambda v: (-len(v), v))
    one_of = "|".join(re.escape(v) for v in values)
    pattern = re.compile(rf"(?<![\w])(?<!\d[.,:/-])(?:{one_of})(?![\w])(?![.,:/-]\d)")
    return pattern.sub(lambda m: pairs[m.group()], text)
