"""What a check found, in words. Shared by `check_env`, `check_taskset` and the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlready.errors import UserError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a finding; what does not apply is None.

    Attributes:
        place: a file and line, a split, an environment.
        task: a task's id.
        trajectory: index in the batch that was looked at.
        turn: index in the trajectory.
        token: index in the turn's prompt and completion together, or in the row.
    """

    place: str = ""
    task: str | None = None
    trajectory: int | None = None
    turn: int | None = None
    token: int | None = None

    def __str__(self) -> str:
        """In words."""
        named = (("task", self.task), ("trajectory", self.trajectory), ("turn", self.turn), ("token", self.token))
        return ", ".join([*([self.place] if self.place else []), *(f"{n} {v}" for n, v in named if v is not None)])

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping of what is known."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        level: an error must be mended, a warning deserves a look, a note is a measured fact.
        check: short name of the check, such as "determinism".
        text: what was found, in one sentence.
        where: the first place where it was found.
        why: why it matters.
        mend: what to do about it.
    """

    level: Level
    check: str
    text: str
    where: Where | None = None
    why: str = ""
    mend: str = ""

    def __str__(self) -> str:
        """As one line."""
        return f"{self.level}: {self.check}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping; what is empty is left out."""
        out: dict[str, Any] = {"level": self.level, "check": self.check, "text": self.text}
        if self.where is not None:
            out["where"] = self.where.to_json()
        return out | {key: value for key, value in (("why", self.why), ("mend", self.mend)) if value}


@dataclass
class Findings:
    """The result of a check: a list of findings that prints well.

    Attributes:
        subject: what was checked.
        items: the findings, in the order they were made.
    """

    subject: str
    items: list[Finding] = field(default_factory=list)

    def error(self, check: str, text: str, where: Where | None = None, *, why: str = "", mend: str = "") -> None:
        """Add what must be mended. The same finding is kept once."""
        self.add(Finding("error", check, text, where, why, mend))

    def warning(self, check: str, text: str, where: Where | None = None, *, why: str = "", mend: str = "") -> None:
        """Add what deserves a look."""
        self.add(Finding("warning", check, text, where, why, mend))

    def note(self, check: str, text: str, where: Where | None = None) -> None:
        """Add a measured fact."""
        self.add(Finding("note", check, text, where))

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it is there already."""
        if finding not in self.items:
            self.items.append(finding)

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add those of another check."""
        for finding in findings:
            self.add(finding)

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
        return {"subject": self.subject, "ok": self.ok, "findings": [f.to_json() for f in self.items]}

    def __iter__(self) -> Iterator[Finding]:
        """Over the findings."""
        return iter(self.items)

    def __str__(self) -> str:
        """As lines: a verdict, then each finding."""
        counts = f"{len(self.errors)} errors, {len(self.warnings)} warnings"
        return "\n".join(
            [f"{self.subject}: {'ok' if self.ok else 'not ok'} ({counts})", *(f"  {f}" for f in self.items)]
        )
