"""Several task sets as one: each task is scored by the set that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlready.errors import UserError
from rlready.seeds import rng
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory


def concat(sets: Sequence[TaskSet], *, name: str = "concat") -> TaskSet:
    """All tasks of several sets in order.

    Raises:
        UserError: no set is given, or two sets hold the same task.
    """
    if not sets:
        raise UserError("concat needs at least one task set.")
    owner: dict[str, TaskSet] = {}
    for part in sets:
        for task in part:
            if task.id in owner:
                raise UserError(f'The task {task.id} is in both "{owner[task.id].name}" and "{part.name}".')
            owner[task.id] = part

    async def score(task: Task, trajectory: Trajectory) -> Score:
        if task.id not in owner:
            return Score.failed(f"task {task.id} belongs to none of the sets that were put together")
        return await owner[task.id].score(task, trajectory)

    return TaskSet([task for part in sets for task in part], score, name=name)


def mix(sets: Mapping[str, tuple[TaskSet, float]], n: int, seed: int, *, name: str = "mix") -> TaskSet:
    """Draw n tasks without replacement, in shares proportional to the weights, in random order.

    Args:
        sets: name to (task set, weight). Weights need not sum to 1. The counts are the largest-remainder rounding.
        n: how many tasks.
        seed: another seed draws other tasks.
        name: name of the new set.

    Raises:
        UserError: a weight is not positive, a set is smaller than its share, or two sets hold the same task.
    """
    if not sets or any(not weight > 0 for _, weight in sets.values()):
        raise UserError("mix needs at least one task set, each with a positive weight.")
    total = sum(weight for _, weight in sets.values())
    exact = {key: n * weight / total for key, (_, weight) in sets.items()}
    counts = {key: int(share) for key, share in exact.items()}
    by_remainder = sorted(sets, key=lambda key: (counts[key] - exact[key], key))
    for key in by_remainder[: n - sum(counts.values())]:
        counts[key] += 1
    drawn: list[TaskSet] = []
    for key, (tasks, _) in sets.items():
        if counts[key] > len(tasks):
            raise UserError(f'mix needs {counts[key]} tasks of "{key}", which has {len(tasks)}. Lower n or its weight.')
        order = rng(seed, "mix", key).sample(range(len(tasks)), counts[key])
        part = TaskSet([tasks[i] for i in order], name=key)
        part.scorer = tasks.scorer
        drawn.append(part)
    whole = concat(drawn, name=name)
    return whole.shuffle(seed)
