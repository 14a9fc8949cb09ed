"""Programming tasks judged by input and output: their record, and how a prompt is written.

A record has `id`, `description`, `input_format`, `output_format`, perhaps `notes`, `tests` (`input` and `output` each)
and `lang`. The prompt shows all tests but the last, none where there is only one; grading uses them all.

A prompt's form is drawn by hash: 30 in 100 have the standard headings, half of the others have other headings, the
rest is bare text; a part of those that are not standard shows no samples (a quarter; ours). What the language's file
says stands last: all of it in training, its first line in evaluation, where tips are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlready.errors import UserError
from rlready.rewards.code import Test

Form = Literal["standard", "other", "bare"]
FORMS: tuple[Form, ...] = ("standard", "other", "bare")
STANDARD_SHARE, OTHER_SHARE, NO_SAMPLES = 0.3, 0.5, 0.25
HEADINGS: dict[Form, tuple[str, str, str, str]] = {
    "standard": ("# Problem", "## Input", "## Output", "## Samples"),
    "other": ("TASK", "What is read", "What is printed", "For example"),
}
KEYS = ("id", "description", "input_format", "output_format", "notes", "tests", "lang")


@dataclass(frozen=True)
class Problem:
    """A task record; see the module's docstring."""

    id: str
    description: str
    input_format: str
    output_format: str
    tests: tuple[Test, ...]
    notes: str = ""
    lang: str = ""

    @property
    def shown(self) -> tuple[Test, ...]:
        """The tests that the prompt shows."""
        return self.tests[:-1]

    def to_json(self) -> dict[str, Any]:
        """As a record."""
        return asdict(self) | {"tests": [asdict(test) for test in self.tests]}

    @classmethod
    def of(cls, record: Mapping[str, Any], where: str = "record") -> Problem:
        """From a record.

        Raises:
            UserError: a key is unknown, missing or of the wrong kind; it is named.
        """
        for key in record:
            if key not in KEYS:
                raise UserError(f'{where}: unknown key "{key}". A task has {", ".join(KEYS)}.')
        for key in ("description", "input_format", "output_format"):
            if not isinstance(record.get(key), str) or not record[key].strip():
                raise UserError(f'{where}: "{key}" must be a text that is not empty.')
        for key in ("id", "notes", "lang"):
            if not isinstance(record.get(key, ""), str):
                raise UserError(f'{where}: "{key}" must be a text.')
        tests = record.get("tests")
        if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
            raise UserError(f'{where}: "tests" must be a list with at least one test, or nothing could be judged.')
        return cls(
            id=record.get("id", ""),
            description=record["description"].strip(),
            input_format=record["input_format"].strip(),
            output_format=record["output_format"].strip(),
            tests=tuple(_test(test, f"{where}, test {i}") for i, test in enumerate(tests, 1)),
            notes=record.get("notes", "").strip(),
            lang=record.get("lang", ""),
        )


def _test(test: Any, where: str) -> Test:
    if not isinstance(test, Mapping) or set(test) != {"input", "output"}:
        raise UserError(f'{where} must have "input" and "output", and nothing else.')
    if not isinstance(test["input"], str) or not isinstance(test["output"], str):
        raise UserError(f'{where}: "input" and "output" must be texts, as they are read and printed.')
    return Test(test["input"], test["output"])


def draw_form(chance: random.Random) -> tuple[Form, bool]:
    """The form of a prompt, and whether it shows samples."""
    if chance.random() < STANDARD_SHARE:
        return "standard", True
    form: Form = "other" if chance.random() < OTHER_SHARE else "bare"
    return form, chance.random() >= NO_SAMPLES


def write_prompt(
    problem: Problem, language: str, form: Form = "standard", *, samples: bool = True, tips: bool = True
) -> str:
    """The prompt for a problem.

    Args:
        problem: what is asked.
        language: what the language's file tells the model.
        form: headings.
        samples: whether tests are shown at all; all but the last are.
        tips: False keeps only the first line of `language`, as in evaluation.
    """
    shown = [f"{test.input}\n->\n{test.output}" for test in problem.shown] if samples else []
    parts = [problem.description, problem.input_format, problem.output_format, "\n\n".join(shown)]
    if form in HEADINGS:
        parts = [f"{head}\n{text}" if text else "" for head, text in zip(HEADINGS[form], parts, strict=True)]
    if problem.notes:
        parts.append(problem.notes)
    told = language.strip()
    parts.append(told if tips else told.split("\n", 1)[0])
    return ("\n" if form == "bare" else "\n\n").join(part for part in parts if part)


def fenced(program: str) -> str:
    """A program as a response."""
    return f"```\n{program}\n```"
