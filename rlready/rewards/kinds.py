"""The kinds of records that can be graded, by name: `KINDS["math_answer"].grade(record)`.

A record is a mapping with `prediction` and `reference`, besides what its kind allows (named in the kind's module). A
kind's module is imported when it is first used, so that nobody pays for what is not graded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.rewards.verdict import Graded

Record = Mapping[str, Any]

__all__ = ["KINDS", "Kind", "Record", "kind"]


@dataclass(frozen=True)
class Kind:
    """One kind of record.

    Attributes:
        name: its name, as in a record's `kind`.
        help: what is compared, in a few words.
        where: "module:function" of its grader, the module relative to `rlready.rewards`.
    """

    name: str
    help: str
    where: str

    def grade(self, record: Record) -> Graded:
        """Grade a record.

        Raises:
            UserError: the record lacks a key, or a value has a form that the kind does not take.
        """
        return self.grader()(record)

    def grader(self) -> Callable[[Record], Graded]:
        """The function behind the kind, imported."""
        module, _, function = self.where.partition(":")
        found: Callable[[Record], Graded] = getattr(importlib.import_module(f"rlready.rewards.{module}"), function)
        return found


def _table(*rows: tuple[str, str, str]) -> dict[str, Kind]:
    return {name: Kind(name, help, where) for name, help, where in rows}


KINDS: dict[str, Kind] = _table(
    ("math_answer", "a bare mathematical answer", "records:grade_math_answer"),
    ("math_response", "a whole response that holds a mathematical answer", "records:grade_math_response"),
    ("mcq_response", "a response that names one or several choices", "choices:grade_mcq_response"),
    ("qa_em", "the same short answer after normalisation", "qa:grade_qa_em"),
    ("qa_f1", "words shared with a short answer", "qa:grade_qa_f1"),
    ("rouge", "words and sequences shared with a text (ROUGE)", "overlap:grade_rouge"),
    ("chrf", "character n-grams shared with a text (chrF)", "overlap:grade_chrf"),
    ("bleu", "word n-grams shared with a text (BLEU)", "overlap:grade_bleu"),
    ("readability", "how hard a text is to read", "readability:grade_readability"),
    ("language", "the language a text is in", "records:grade_language"),
    ("tool_call", "a tool call: name and arguments", "tools:grade_tool_call"),
    ("json_extract", "a JSON value in a response", "jsons:grade_json_extract"),
    ("code_stdout", "what a program printed", "code:grade_code_stdout"),
    ("code_value", "a value that a function returned", "code:grade_code_value"),
    ("code_tests", "a program that is to pass tests, run in the sandbox", "code:grade_code_tests"),
    ("teds", "a table as HTML: structure and cells (TEDS)", "table:grade_teds"),
    ("teds_structure", "a table as HTML: structure only (TEDS)", "table:grade_teds_structure"),
    ("judge_score", "the score in a judge's reply", "judge:grade_judge_score"),
    ("aggregate", "whether a list of checks passed", "aggregate:grade_aggregate"),
)


def kind(name: str) -> Kind:
    """A kind by its name.

    Raises:
        UserError: there is none of that name.
    """
    if not isinstance(name, str):
        raise UserError(f"A kind is a name such as math_answer, not {name!r}.")
    if name not in KINDS:
        raise did_you_mean("kind", name, list(KINDS))
    return KINDS[name]
