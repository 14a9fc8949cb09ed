"""What a writing tool does to a document that is known, and when it refuses.

An *effect* belongs to one tool and one kind of document. The value of one field of the document (or none) decides the
*case*; a case is an error, or a patch. A patch is kept as *changes*, each a path and what comes there: a constant, or a
part of the call's arguments; for a given call they make a merge patch (RFC 7386), so a change to null removes. What was
never seen is no case, and there the effect says nothing.

The reply is the document after the patch, or a sentence in which `${name}` stands for an argument and `$$` for "$".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rlready.dream.staterules.documents import FORMS, merge_patch

GONE = type("Gone", (), {"__repr__": lambda self: "GONE"})()
"""What stands at a path where nothing does."""

_SLOT = re.compile(r"\$(?:\$|\{([^}]*)\})")
_text = json.JSONEncoder(ensure_ascii=False).encode
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What comes to one place of a document.

    Attributes:
        path: of the place: keys, outermost first.
        source: the path into the call's arguments whose value comes there; () for a constant. Where the call has no
            such argument, the place stays as it is.
        value: the constant; None removes what is there.
    """

    path: Path
    source: Path = ()
    value: Any = None

    def of(self, document: Any, arguments: Mapping[str, Any]) -> Any:
        """What stands at the place after a call; GONE for nothing."""
        if not self.source:
            return GONE if self.value is None else self.value
        value = at(arguments, self.source)
        before = at(document, self.path)
        if value is GONE:
            return before
        return GONE if value is None else ordered(value, before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ends.

    Attributes:
        failed: the reply is an error, and the document stays.
        text: the reply, with slots; None where it is the document, or not known.
        changes: to the document; None where they are not known.
    """

    failed: bool = False
    text: str | None = None
    changes: tuple[Change, ...] | None = ()

    def patch(self, document: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The merge patch of a call (RFC 7386); None where the changes are not known."""
        if self.changes is None:
            return None
        out: dict[str, Any] = {}
        for change in self.changes:
            value = change.of(document, arguments)
            if value is GONE and at(document, change.path) is GONE:
                continue
            inner = out
            for key in change.path[:-1]:
                inner = inner.setdefault(key, {})
            inner[change.path[-1]] = None if value is GONE else value
        return out


@dataclass(frozen=True)
class Effect:
    """What one tool does to documents of one kind.

    Attributes:
        reader: the tool that reads such documents.
        argument: of the call, names the document.
        shows: the reply is the new document, rather than a sentence.
        form: how the tool writes documents, a key of `FORMS`.
        decides: path of the field that decides the case; () where there is but one case, "".
        cases: by the field's value as JSON text, "" for a document without the field.
    """

    reader: str
    argument: str
    shows: bool = True
    form: str = "spaced"
    decides: Path = ()
    cases: Mapping[str, Outcome] = field(default_factory=dict)

    def id(self, arguments: Mapping[str, Any] | None) -> str | None:
        """The id of the document that a call names."""
        value = None if arguments is None else arguments.get(self.argument)
        return str(value) if type(value) is str or type(value) is int else None

    def outcome(self, document: Mapping[str, Any]) -> Outcome | None:
        """What happens to this document; None for a case that was never seen."""
        return self.cases.get(case_of(document, self.decides))

    def after(self, document: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The document after a call that does not fail; None where that is not known."""
        found = self.outcome(document)
        patch = None if found is None or found.failed else found.patch(document, arguments)
        return None if patch is None else merge_patch(document, patch)

    def answer(self, document: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, bool] | None:
        """The reply to a call, and whether it is an error; None where that is not known."""
        found = self.outcome(document)
        if found is None:
            return None
        if found.text is not None:
            text = fill(found.text, arguments)
            return None if text is None else (text, found.failed)
        after = self.after(document, arguments) if self.shows else None
        return None if after is None else (FORMS[self.form](after), False)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Effect:
        """Inverse of `to_json`."""
        cases = {
            case: Outcome(
                found["failed"],
                found["text"],
                None
                if found["changes"] is None
                else tuple(Change(tuple(c["path"]), tuple(c["source"]), c["value"]) for c in found["changes"]),
            )
            for case, found in record["cases"].items()
        }
        return cls(**{**record, "decides": tuple(record["decides"]), "cases": cases})


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a tool says of a document that there is not: the text (with slots), told apart by `argument`."""

    reader: str
    argument: str
    text: str


# ---------------------------------------------------------------------- parts of documents


def at(value: Any, path: Path) -> Any:
    """What stands at a path; GONE where nothing does."""
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return GONE
        value = value[key]
    return value


def case_of(document: Any, path: Path) -> str:
    """The value of a field as JSON text; "" where there is none, or no field."""
    value = at(document, path) if path else GONE
    return "" if value is GONE else _text(value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are written alike: 1 is not 1.0, and the order of keys counts."""
    return a is b or (type(a) is type(b) and a == b and _text(a) == _text(b))


def ordered(value: Any, like: Any) -> Any:
    """A value with the keys of its objects in the order of those that stand there already, where they have the same."""
    if isinstance(value, dict) and isinstance(like, dict) and value.keys() == like.keys():
        return {key: ordered(value[key], like[key]) for key in like}
    if isinstance(value, list) and isinstance(like, list) and like:
        return [ordered(item, like[min(i, len(like) - 1)]) for i, item in enumerate(value)]
    return value


def diff(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The places in which two documents differ, and what stands there after; GONE for nothing. Lists are whole."""
    for key in {**before, **after}:
        old, new, here = before.get(key, GONE), after.get(key, GONE), (*path, key)
        if isinstance(old, dict) and isinstance(new, dict) and new:
            yield from diff(old, new, here)
        elif not same(old, new):
            yield here, new


def parts(value: Any, path: Path = (), depth: int = 3) -> Iterator[tuple[Path, Any]]:
    """All parts of nested objects, with their paths; the whole itself is left out."""
    if isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            yield (*path, key), inner
            yield from parts(inner, (*path, key), depth - 1)


# ---------------------------------------------------------------------- sentences


def template(text: str, arguments: Mapping[str, Any]) -> str:
    """A reply with the arguments' values replaced by slots, those of two characters or more, where they stand alone."""
    names: dict[str, str] = {}
    for name, value in arguments.items():
        if type(value) is str or type(value) is int or type(value) is float:
            value = str(value)
            if len(value) > 1 and value in text:
                names.setdefault(value, name)
    if not names:
        return text.replace("$", "$$")
    spans: list[tuple[int, int, str]] = []
    for value in sorted(names, key=lambda value: -len(value)):  # a pattern for each call would be slower than this
        start = text.find(value)
        while start >= 0:
            end = start + len(value)
            apart = all(end <= a or start >= b for a, b, _ in spans)
            if apart and not _in_word(text, start - 1) and not _in_word(text, end):
                spans.append((start, end, names[value]))
            start = text.find(value, start + 1)
    out, done = [], 0
    for start, end, name in sorted(spans):
        out += [text[done:start].replace("$", "$$"), f"${{{name}}}"]
        done = end
    return "".join(out) + text[done:].replace("$", "$$")


def _in_word(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")


def fill(text: str, arguments: Mapping[str, Any]) -> str | None:
    """A sentence with its slots filled, the inverse of `template`; None where the call lacks what belongs there."""
    if "$" not in text:
        return text
    if any(name and name not in arguments for name in _SLOT.findall(text)):
        return None
    return _SLOT.sub(lambda m: "$" if m.group(1) is None else str(arguments[m.group(1)]), text)
