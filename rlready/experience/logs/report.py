"""What reading made of a log: counts, forms, and every record that was dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KEPT = 1000
"""So many dropped records are listed; all are counted."""


class UnreadableError(ValueError):
    """A record does not fit its form; the message is a short reason without a place."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that was left out.

    Attributes:
        file: path of the file, as it was given.
        line: 1-based line on which the record begins.
        reason: a short phrase.
        number: its 1-based count in an array or a batch; 0 for a line of JSONL.
    """

    file: str
    line: int
    reason: str
    number: int = 0

    def __str__(self) -> str:
        """As a person reads it."""
        return f"{self.file}, line {self.line}{f' (record {self.number})' if self.number else ''}: {self.reason}"


@dataclass
class LogReport:
    """Filled by `read_logs` while its recordings are drawn; complete when they are exhausted.

    Attributes:
        files: form by file, in the order of reading.
        bytes: size of the files.
        records: records seen (lines, elements of arrays, spans), dropped ones included.
        recordings: recordings given out.
        dropped: the first `KEPT` dropped records.
        reasons: how many were dropped, by reason. What stands in a reason beside its kind (a key, a role) counts too.
        notes: how often something was met that is worth knowing: calls at once, thoughts beside calls, calls without a
            result, results without a call, duplicate ids, ...
        unmatched: ids of a file of rewards that no recording had.
        first, last: earliest and latest time in the log, seconds since 1970; None where the log has no times.
    """

    files: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    records: int = 0
    recordings: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    unmatched: list[str] = field(default_factory=list)
    first: float | None = None
    last: float | None = None

    def drop(self, file: Path | str, line: int, reason: str, number: int = 0) -> None:
        """Count a record that is left out."""
        self.reasons[reason] += 1
        if len(self.dropped) < KEPT:
            self.dropped.append(Dropped(str(file), line, reason, number))

    def saw_time(self, when: float | None) -> None:
        """Widen the range of times."""
        if when is not None:
            self.first = when if self.first is None else min(self.first, when)
            self.last = when if self.last is None else max(self.last, when)

    @property
    def forms(self) -> Counter[str]:
        """Number of files by form."""
        return Counter(self.files.values())

    def lines(self, most: int = 5) -> list[str]:
        """For people: what was read, what was dropped and why (the first `most` by name), what is worth knowing."""
        forms = ", ".join(f"{n} x {form}" if n > 1 else form for form, n in sorted(self.forms.items()))
        out = [f"{self.recordings} recordings from {self.records} records in {len(self.files)} files ({forms})."]
        if self.first is not None and self.last is not None:
            begin, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (self.first, self.last))
            out.append(f"Logged between {begin} and {end} UTC.")
        if self.reasons:
            out.append(f"{self.reasons.total()} records were dropped:")
            out += [f"  {count} x {reason}" for reason, count in self.reasons.most_common(most)]
            out += [f"  {each}" for each in self.dropped[:most]]
        if self.unmatched:
            out.append(f"{len(self.unmatched)} rewards fit no recording, such as {', '.join(self.unmatched[:most])}.")
        return out + [f"{count} x {note}" for note, count in sorted(self.notes.items())]

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "files": dict(self.files), "bytes": self.bytes, "records": self.records, "recordings": self.recordings,
            "dropped": [{"file": d.file, "line": d.line, "number": d.number, "reason": d.reason} for d in self.dropped],
            "reasons": dict(self.reasons), "notes": dict(self.notes), "unmatched": list(self.unmatched),
            "first": self.first, "last": self.last,
        }  # fmt: skip
