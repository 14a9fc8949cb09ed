"""What a check found, in words. Shared by `check_env`, `check_taskset` and the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rlready.errors import UserError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        level: an error must be mended, a warning deserves a look, a note is a measured fact.
        check: short name of the check, such as "determinism".
        text: one sentence that says where and what.
    """

    level: Level
    check: str
    text: str

    def __str__(self) -> str:
        """As one line."""
        return f"{self.level}: {self.check}: {self.text}"


@dataclass
class Findings:
    """The result of a check: a list of findings that prints well.

    Attributes:
        subject: what was checked.
        items: the findings, in the order they were made.
    """

    subject: str
    items: list[Finding] = field(default_factory=list)

    def error(self, check: str, text: str) -> None:
        """Add what must be mended. The same sentence is kept once."""
        self._add(Finding("error", check, text))

    def warning(self, check: str, text: str) -> None:
        """Add what deserves a look."""
        self._add(Finding("warning", check, text))

    def note(self, check: str, text: str) -> None:
        """Add a measured fact."""
        self._add(Finding("note", check, text))

    def _add(self, finding: Finding) -> None:
        if finding not in self.items:
            self.items.append(finding)

    @property
    def errors(self) -> list[Finding]:
        """The errors alone."""
        return [f for f in self.items if f.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The warnings alone."""
        return [f for f in self.items if f.level == "warning"]

    @property
    def ok(self) -> bool:
        """True where there is no error."""
        return not self.errors

    def of(self, check: str) -> list[Finding]:
        """The findings of one check."""
        return [f for f in self.items if f.check == check]

    def raise_for_errors(self) -> None:
        """Stop at errors.

        Raises:
            UserError: there is at least one error; the message holds them all.
        """
        if self.errors:
            raise UserError(f"{self.subject}: " + " ".join(f.text for f in self.errors))

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        items = [{"level": f.level, "check": f.check, "text": f.text} for f in self.items]
        return {"subject": self.subject, "ok": self.ok, "findings": items}

    def __iter__(self) -> Iterator[Finding]:
        """Over the findings."""
        return iter(self.items)

    def __str__(self) -> str:
        """As lines: a verdict, then each finding."""
        counts = f"{len(self.errors)} errors, {len(self.warnings)} warnings"
        return "\n".join(
            [f"{self.subject}: {'ok' if self.ok else 'not ok'} ({counts})", *(f"  {f}" for f in self.items)]
        )
