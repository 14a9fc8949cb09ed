"""JSON documents: how a tool writes them, which of them an argument names, and merge patches (RFC 7386)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_SEPARATORS = {"spaced": (", ", ": "), "dense": (",", ":")}


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes a key, anything else replaces what is there; `target` stays."""
    if type(patch) is not dict and not isinstance(patch, Mapping):
        return patch
    out = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif type(value) is dict or isinstance(value, Mapping):
            out[key] = merge_patch(out.get(key), value)
        else:
            out[key] = value
    return out


def parse_object(text: str) -> dict[str, Any] | None:
    """A reply that is a JSON object; None for any other."""
    if text[:1] != "{":
        return None
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _writer(separators: str, ascii_only: bool, indent: int | None) -> Callable[[Any], str]:
    pair = _SEPARATORS[separators] if indent is None else (",", ": ")
    return json.JSONEncoder(ensure_ascii=ascii_only, separators=pair, indent=indent).encode


FORMS: dict[str, Callable[[Any], str]] = {
    f"{separators}{'' if ascii_only else ' utf-8'}": _writer(separators, ascii_only, None)
    for separators in _SEPARATORS
    for ascii_only in (True, False)
} | {
    f"indent {indent}{'' if ascii_only else ' utf-8'}": _writer("spaced", ascii_only, indent)
    for indent in (2, 4)
    for ascii_only in (True, False)
}
"""Ways of writing a document; keys keep their order."""


def learn_form(texts: Sequence[str]) -> str | None:
    """The way in which at least 95% of these documents are written; None where there is none."""
    parsed = [(text, value) for text in texts[:200] if (value := parse_object(text)) is not None]
    if not parsed:
        return None
    for name, write in FORMS.items():
        if sum(write(value) == text for text, value in parsed) >= 0.95 * len(parsed):
            return name
    return None


@dataclass(frozen=True, slots=True)
class Reader:
    """A tool that reads one document by its id.

    Attributes:
        argument: the id's argument, the call's only one.
        field: the document's field that holds the id.
        form: how the tool writes documents, a key of `FORMS`.
        keys: the fields that half of the documents have or more.
    """

    argument: str
    field: str
    form: str
    keys: tuple[str, ...]

    def like(self, document: Mapping[str, Any]) -> bool:
        """Whether a document is of this tool's kind: it has the id, and shares four fifths of the fields."""
        if self.field not in document:
            return False
        both = sum(key in document for key in self.keys)
        return both >= 0.8 * (len(self.keys) + len(document) - both)


def learn_reader(calls: Sequence[tuple[Mapping[str, Any], str]]) -> Reader | None:
    """How a tool reads documents, from (arguments, reply) pairs that did not fail; None where it does not.

    The id is the one argument, equal to a field of the reply in 95% of the calls, with at least two different values.
    """
    calls = calls[:1000]
    seen = [(arguments, document) for arguments, text in calls if (document := parse_object(text)) is not None]
    if len(seen) < 3 or len(seen) < 0.95 * len(calls):
        return None
    names = Counter(name for arguments, _ in seen for name in arguments)
    argument, n = max(names.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    if n < 0.95 * len(seen) or sum(len(arguments) == 1 for arguments, _ in seen) < 0.95 * len(seen):
        return None
    ids = [arguments.get(argument) for arguments, _ in seen]
    if any(isinstance(i, (dict, list)) for i in ids) or len(set(map(str, ids))) < 2:
        return None
    matches: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    for id, (_, document) in zip(ids, seen, strict=True):
        keys.update(document.keys())
        matches.update(key for key, value in document.items() if type(value) is type(id) and value == id)
    fields = [key for key, n in matches.items() if n >= 0.95 * len(seen)]
    form = learn_form([text for _, text in calls])
    if not fields or form is None:
        return None
    field = min(fields, key=lambda key: (key != argument, key not in ("id", "_id"), key))
    return Reader(argument, field, form, tuple(sorted(key for key, n in keys.items() if 2 * n >= len(seen))))
