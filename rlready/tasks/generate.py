"""Task sets from a function: item i of seed s is drawn from hash(s, i), so seeds share nothing but chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from rlready.errors import UserError
from rlready.seeds import rng
from rlready.tasks.files import to_messages
from rlready.types import Task

Generator = Callable[[random.Random, int], "Task | Mapping[str, Any]"]
Duplicates = Literal["redraw", "drop", "error"]
_ATTEMPTS = 100


def generate(
    fn: Generator, n: int, seed: int, *, duplicates: Duplicates = "redraw", exclude: Collection[Task] = ()
) -> list[Task]:
    """Draw n tasks.

    Args:
        fn: called with a random generator of the item's own, and the item's index. Returns a task, or a mapping with
            "prompt" (text or chat) whose other keys become the task's data.
        n: how many items to draw.
        seed: the set's seed. The first tasks of a longer set are those of a shorter one.
        duplicates: what to do with a task that was drawn before: draw the item again, leave it out, or stop.
        exclude: tasks that must not be drawn again (a training set, when drawing the test set); always redrawn or
            left out.

    Raises:
        UserError: the function returns something else, or has too few distinct tasks to give.
    """
    if n < 1:
        raise UserError(f"from_generator was asked for {n} tasks; it needs at least 1.")
    taken = {task.id for task in exclude}
    index_of: dict[str, int] = {}
    tasks: list[Task] = []
    for index in range(n):
        for attempt in range(_ATTEMPTS if duplicates == "redraw" else 1):
            task = _as_task(fn(rng(seed, "task", index, attempt), index), fn, index)
            if task.id not in taken and task.id not in index_of:
                index_of[task.id] = index
                tasks.append(task)
                break
            if duplicates == "error" and task.id in index_of:
                raise UserError(
                    f"{_name(fn)}: item {index} is the same task as item {index_of[task.id]}. "
                    'Make them differ, or pass duplicates="redraw" or "drop".'
                )
        else:
            if duplicates == "redraw":
                raise UserError(
                    f"{_name(fn)} gave {len(tasks)} distinct tasks and then none in {_ATTEMPTS} draws; {n} were asked "
                    'for. Ask for fewer, widen it, or pass duplicates="drop".'
                )
    return tasks


def _as_task(made: Any, fn: Generator, index: int) -> Task:
    if isinstance(made, Task):
        return made
    if not isinstance(made, Mapping) or "prompt" not in made:
        raise UserError(
            f'{_name(fn)} must return a Task or a mapping with a "prompt", but item {index} is a {type(made).__name__}.'
        )
    try:
        prompt = to_messages(made["prompt"])
    except UserError as error:
        raise UserError(f"{_name(fn)}, item {index}: {error}") from None
    meta = {} if isinstance(made["prompt"], str) else {"format": "chat"}
    return Task(prompt, {k: v for k, v in made.items() if k != "prompt"}, meta)


def _name(fn: Generator) -> str:
    return f"The generator {getattr(fn, '__name__', type(fn).__name__)}"
