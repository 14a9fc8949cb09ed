r"""Grading the records of a JSONL file, one after the other, whatever stands in its lines.

A record is an object with `kind`, `prediction` and `reference`, an `id`, and what its kind allows besides. Lines end
at "\n" only: other line separators of Unicode may stand inside a text. What cannot be read as a record, or cannot be
graded as it is, becomes a problem of its line, a sentence that says how to mend it; the others are graded all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlready.errors import UserError
from rlready.rewards.kinds import kind as kind_of
from rlready.rewards.verdict import Graded, Verdict, failed, short

__all__ = ["Line", "Totals", "grade_lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one line.

    Attributes:
        number: of the line, from 1.
        id: the record's `id`; the number of the line where it has none.
        kind: the kind it was graded as.
        graded: the verdict; None where there is a problem, or the record was left out.
        problem: a sentence, where the line cannot be graded.
        correct: what the record itself says (`correct`), where it does.
    """

    number: int
    id: Any = None
    kind: str = ""
    graded: Graded | None = None
    problem: str = ""
    correct: bool | None = None


@dataclass(slots=True)
class Totals:
    """Counts over many lines, by kind."""

    verdicts: dict[str, dict[Verdict, int]] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    agree: int = 0
    differ: list[Any] = field(default_factory=list)

    def add(self, line: Line) -> None:
        """Count a line."""
        if line.graded is None:
            self.left_out += not line.problem
            return
        counts = self.verdicts.setdefault(line.kind, dict.fromkeys(Verdict, 0))
        counts[line.graded.verdict] += 1
        if line.graded.verdict is not Verdict.GRADER_FAILED:
            self.scores[line.kind] = self.scores.get(line.kind, 0.0) + line.graded.score
        if line.correct is not None:
            if line.correct == (line.graded.verdict is Verdict.RIGHT):
                self.agree += 1
            else:
                self.differ.append(line.id)

    def mean(self, kinds: Iterable[str]) -> float | None:
        """The mean score of the records of some kinds that were judged."""
        kinds = list(kinds)
        judged = sum(n for k in kinds for v, n in self.verdicts[k].items() if v is not Verdict.GRADER_FAILED)
        return sum(self.scores.get(k, 0.0) for k in kinds) / judged if judged else None


def grade_lines(lines: Iterable[bytes], kind: str | None = None) -> Iterator[Line]:
    """Grade the records in some lines; empty lines are passed over.

    Args:
        lines: as a file opened in binary mode yields them.
        kind: the kind of records that name none; records of another kind are then left out.

    Raises:
        UserError: `kind` is not known.
    """
    if kind is not None:
        kind_of(kind)
    graders: dict[str, Callable[[Mapping[str, Any]], Graded]] = {}
    for number, raw in enumerate(lines, 1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield _grade(number, raw, kind, graders)


def _grade(
    number: int, raw: bytes, kind: str | None, graders: dict[str, Callable[[Mapping[str, Any]], Graded]]
) -> Line:
    record, problem = _read(raw)
    if record is None:
        return Line(number, problem=problem)
    name = record.get("id")
    name = number if name is None else name
    own = record.get("kind", kind)
    if own is None:
        return Line(number, name, problem='the record has no "kind"; add one, or name it with --kind.')
    if kind is not None and own != kind:
        return Line(number, name, own if isinstance(own, str) else "")
    try:
        if not isinstance(own, str):
            raise UserError(f'"kind" must be a name such as math_answer, not {short(own)}.')
        grader = graders.get(own)
        if grader is None:
            grader = graders[own] = kind_of(own).grader()
        graded = grader(record)
    except UserError as error:
        text = str(error).strip()
        return Line(number, name, str(own), problem=text if text.endswith((".", "!", "?")) else f"{text}.")
    except Exception as error:  # a defect of ours; the other records are graded all the same
        graded = failed(f"the grader raised {type(error).__name__}: {error}")
    correct = record.get("correct")
    return Line(number, name, own, graded, correct=correct if isinstance(correct, bool) else None)


def _read(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """The record in a line, or what is wrong with it."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8."
    except json.JSONDecodeError as error:
        return None, f"this is no JSON: {error.msg} at column {error.colno}; write one object a line."
    except RecursionError:
        return None, "this JSON is nested too deep; a record is one flat object."
    except ValueError:
        return None, "a number in this JSON has more digits than can be read; write it as a text."
    if not isinstance(value, dict):
        named = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
        return None, f'this is {named}; a record is an object with "kind", "prediction" and "reference".'
    return value, ""
