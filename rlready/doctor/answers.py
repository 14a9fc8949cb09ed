"""What a task's data say about right answers: where the gold one stands, and which options there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlready.types import Task

GOLD = ("answer", "gold", "target", "solution", "label", "reference", "expected")
"""Keys under which a right answer is looked for, in this order."""


def gold_key(task: Task, scorer: Any = None) -> str | None:
    """The key of a task's data that holds the right answer, as far as that can be told."""
    columns = [c for c in getattr(scorer, "columns", ()) if is_text(task.data.get(c))]
    if len(columns) == 1:
        return str(columns[0])
    return next((k for k in GOLD if is_text(task.data.get(k))), None)


def gold_of(task: Task, scorer: Any = None) -> tuple[Task, str] | None:
    """A task with its right answer as text."""
    key = gold_key(task, scorer)
    return None if key is None else (task, str(task.data[key]))


def options_of(task: Task) -> list[str]:
    """The options that a task's data list."""
    for key in ("choices", "options", "classes", "labels", "actions"):
        value = task.data.get(key)
        if isinstance(value, (list, tuple)) and value:
            return [str(v) for v in value]
        if isinstance(value, Mapping) and value:
            return [str(v) for v in value.values()]
    return []


def is_text(value: Any) -> bool:
    """Whether a value could be an answer: a text or a number that is not blank."""
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and bool(str(value).strip())
