"""Which task comes next.

    Uniform     epochs of shuffled tasks
    Band        tasks whose running pass rate is neither too low nor too high
    Variance    tasks in proportion to the variance of their group's rewards ("reward entropy", DreamGym)
    Pool        generated tasks, dropped where they turn out to teach nothing
    Mixed       original and generated tasks under a mixing cap

Every draw is a hash of (seed, count), so the JSON-ready state is a few counters and what was learned of each task.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rlready.errors import UserError
from rlready.rollout.base import Batched, Curriculum
from rlready.seeds import hashed_uniform, np_rng
from rlready.types import Group, Task

NO_VARIANCE = 1e-12


class Valued(Protocol):
    """A sampler that knows how uncertain its tasks are."""

    def valued(self) -> list[tuple[float, Task]]:
        """(variance, task) of every task that was tried."""
        ...


def top_by_variance(m: int, *samplers: Valued) -> list[Task]:
    """The m tasks with the highest positive variance, ties by task id: DreamGym's seeds of new tasks."""
    found = [(value, task) for sampler in samplers for value, task in sampler.valued() if value > NO_VARIANCE]
    found.sort(key=lambda pair: (-pair[0], pair[1].id))
    return [task for _, task in found[:m]]


class Uniform:
    """Epochs of shuffled tasks: every task once before any comes twice."""

    def __init__(self, tasks: Sequence[Task], seed: int = 0) -> None:
        """Take the tasks.

        Raises:
            UserError: there are none.
        """
        if not len(tasks):
            raise UserError("The curriculum has no tasks. Check the file and the split it is made from.")
        self.tasks = tasks
        self.seed = seed
        self._drawn = 0
        self._order: list[int] = []
        self._epoch = -1

    def next(self) -> Task:
        """The next task of the epoch."""
        epoch, place = divmod(self._drawn, len(self.tasks))
        if epoch != self._epoch:
            self._order = np_rng(self.seed, "uniform", epoch).permutation(len(self.tasks)).tolist()
            self._epoch = epoch
        self._drawn += 1
        return self.tasks[self._order[place]]

    def observe(self, groups: Sequence[Group]) -> None:
        """Nothing is learned."""

    def admit(self, group: Group) -> bool:
        """Every group is admitted."""
        return True

    def metrics(self) -> dict[str, float]:
        """Epochs done so far."""
        return {"epoch": self._drawn / len(self.tasks)}

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._drawn = int(state["drawn"])


class Band(Uniform):
    """Tasks whose running pass rate lies within [low, high], and tasks not tried yet.

    A share of draws takes the next task of the epoch whatever its rate, so that what became easier or harder is seen
    again.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        low: float = 0.2,
        high: float = 0.8,
        *,
        seed: int = 0,
        revisit: float = 0.1,
        memory: float = 0.5,
    ) -> None:
        """Set the band.

        Args:
            tasks: all tasks.
            low: lowest pass rate that is drawn.
            high: highest pass rate that is drawn.
            seed: of the order.
            revisit: share of draws that ignore the band.
            memory: weight of the old rate when a new group is seen; 0 keeps the last group only.

        Raises:
            UserError: the numbers are no shares, or no tasks were given.
        """
        super().__init__(tasks, seed)
        if not 0 <= low <= high <= 1 or not 0 <= revisit <= 1 or not 0 <= memory < 1:
            raise UserError(
                f"Band: needs 0 <= low <= high <= 1 and shares, not {low=}, {high=}, {revisit=}, {memory=}."
            )
        self.low, self.high, self.revisit, self.memory = low, high, revisit, memory
        self._ids = {task.id for task in tasks}
        self._rate: dict[str, float] = {}
        self._calls = 0

    def inside(self, task: Task) -> bool:
        """Whether the task is within the band or untried."""
        rate = self._rate.get(task.id)
        return rate is None or self.low <= rate <= self.high

    def next(self) -> Task:
        """The next task within the band; any task where there is none."""
        self._calls += 1
        task = super().next()
        if hashed_uniform(self.seed, "band", self._calls) < self.revisit:
            return task
        for _ in range(2 * len(self.tasks)):  # first in one epoch and last in the next: so far apart can a task be
            if self.inside(task):
                break
            task = super().next()
        return task

    def observe(self, groups: Sequence[Group]) -> None:
        """Update the pass rates of this sampler's tasks."""
        for group in groups:
            valid = group.valid
            if valid and group.task.id in self._ids:
                rate = sum(t.success for t in valid) / len(valid)
                old = self._rate.get(group.task.id)
                self._rate[group.task.id] = rate if old is None else self.memory * old + (1 - self.memory) * rate

    def metrics(self) -> dict[str, float]:
        """Share of tasks tried, and of those: too easy, too hard."""
        rates = self._rate.values()
        n = max(len(rates), 1)
        return super().metrics() | {
            "tried": len(rates) / len(self.tasks),
            "too_easy": sum(r > self.high for r in rates) / n,
            "too_hard": sum(r < self.low for r in rates) / n,
        }

    def state_dict(self) -> dict[str, Any]:
        """Position and pass rates."""
        return super().state_dict() | {"calls": self._calls, "rate": dict(self._rate)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self._calls = int(state["calls"])
        self._rate = dict(state["rate"])


class Variance(Uniform):
    """Tasks in proportion to V, the population variance of their last group's rewards.

    V = (1/n) sum_i (r_i - mean)^2 (DreamGym, "reward entropy"; with 0/1 rewards p(1 - p)): highest where the outcome is
    most uncertain, 0 where a task is always or never solved. A share of draws explores in epochs.
    """

    def __init__(self, tasks: Sequence[Task], seed: int = 0, *, explore: float = 0.5) -> None:
        """Set the share of exploring draws.

        Raises:
            UserError: `explore` is no share, or no tasks were given.
        """
        super().__init__(tasks, seed)
        if not 0 < explore <= 1:
            raise UserError(f"Variance: explore is {explore}; it must be above 0 and at most 1.")
        self.explore = explore
        self._index = {task.id: i for i, task in enumerate(tasks)}
        self._value: dict[str, float] = {}
        self._calls = 0

    def next(self) -> Task:
        """A task by its variance, or the next of the epoch."""
        self._calls += 1
        known = [(self._index[name], value) for name, value in self._value.items() if value > NO_VARIANCE]
        if not known or hashed_uniform(self.seed, "variance", "explore", self._calls) < self.explore:
            return super().next()
        known.sort()  # the order of observation must not matter
        sums = list(itertools.accumulate(value for _, value in known))
        at = hashed_uniform(self.seed, "variance", "pick", self._calls) * sums[-1]
        return self.tasks[known[min(bisect.bisect_right(sums, at), len(known) - 1)][0]]

    def observe(self, groups: Sequence[Group]) -> None:
        """Take the variance of this sampler's tasks; a group with fewer than two valid episodes has none."""
        for group in groups:
            if group.task.id in self._index and len(group.valid) > 1:
                self._value[group.task.id] = group.variance

    def valued(self) -> list[tuple[float, Task]]:
        """(variance, task) of every task that was tried."""
        return [(value, self.tasks[self._index[name]]) for name, value in self._value.items()]

    def top(self, m: int) -> list[Task]:
        """The m tasks with the highest positive variance."""
        return top_by_variance(m, self)

    def metrics(self) -> dict[str, float]:
        """Share of tasks tried, share of those with V > 0, and their mean V."""
        positive = [v for v in self._value.values() if v > NO_VARIANCE]
        return super().metrics() | {
            "tried": len(self._value) / len(self.tasks),
            "uncertain": len(positive) / max(len(self._value), 1),
            "variance": sum(positive) / max(len(positive), 1),
        }

    def state_dict(self) -> dict[str, Any]:
        """Position and variances."""
        return super().state_dict() | {"calls": self._calls, "value": dict(self._value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self._calls = int(state["calls"])
        self._value = {name: value for name, value in state["value"].items() if name in self._index}


class Pool:
    """Generated tasks: the least tried comes next.

    One whose trial group had no variance is dropped, and not taken again.
    """

    def __init__(self, size: int = 512) -> None:
        """Keep at most so many tasks; the oldest go first."""
        self.size = size
        self._tasks: dict[str, Task] = {}
        self._drawn: dict[str, int] = {}
        self._value: dict[str, float] = {}
        self._dropped: dict[str, None] = {}

    def __len__(self) -> int:
        """Number of tasks now in the pool."""
        return len(self._tasks)

    def add(self, tasks: Iterable[Task]) -> int:
        """Add tasks that are neither in the pool nor were dropped; how many were new."""
        added = 0
        for task in tasks:
            if task.id not in self._tasks and task.id not in self._dropped:
                self._tasks[task.id] = task
                self._drawn[task.id] = 0
                added += 1
        while len(self._tasks) > self.size:
            self._remove(next(iter(self._tasks)))
        return added

    def _remove(self, name: str) -> None:
        for of in (self._tasks, self._drawn, self._value):
            of.pop(name, None)

    def next(self) -> Task:
        """The least tried task, the oldest of those.

        Raises:
            UserError: the pool is empty.
        """
        if not self._tasks:
            raise UserError("The pool of generated tasks is empty. Add tasks, or mix it with original ones.")
        name = min(self._drawn, key=self._drawn.__getitem__)
        self._drawn[name] += 1
        return self._tasks[name]

    def observe(self, groups: Sequence[Group]) -> None:
        """Take the variance of this pool's tasks; drop those without."""
        for group in groups:
            name = group.task.id
            if name in self._tasks and len(group.valid) > 1:
                self._value[name] = group.variance
                if group.variance <= NO_VARIANCE:
                    self._remove(name)
                    self._dropped[name] = None

    def admit(self, group: Group) -> bool:
        """Every group is admitted."""
        return True

    def valued(self) -> list[tuple[float, Task]]:
        """(variance, task) of every task that was tried and kept."""
        return [(value, self._tasks[name]) for name, value in self._value.items()]

    def metrics(self) -> dict[str, float]:
        """Tasks in the pool, and dropped so far."""
        return {"pool": float(len(self._tasks)), "dropped": float(len(self._dropped))}

    def state_dict(self) -> dict[str, Any]:
        """The tasks themselves, and what is known of them."""
        return {
            "tasks": [task.to_json() for task in self._tasks.values()],
            "drawn": dict(self._drawn),
            "value": dict(self._value),
            "dropped": list(self._dropped),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        tasks = [Task.from_json(record) for record in state["tasks"]]
        self._tasks = {task.id: task for task in tasks}
        self._drawn = dict(state["drawn"])
        self._value = dict(state["value"])
        self._dropped = dict.fromkeys(state["dropped"])


class Mixed:
    """Original tasks, and at most a share `cap` of generated ones (lambda in DreamGym).

    In a batch of n draws, floor(cap * n) are generated, spread evenly, as long as the pool has any; refills are
    original.
    """

    def __init__(self, original: Curriculum, generated: Pool, cap: float = 0.5, *, batch: int = 16) -> None:
        """Set the cap.

        Args:
            original: sampler of original tasks.
            generated: pool of generated tasks.
            cap: highest share of generated tasks per batch.
            batch: size of a batch where nobody calls `begin`.

        Raises:
            UserError: the cap is no share.
        """
        if not 0 <= cap <= 1 or batch < 1:
            raise UserError(f"Mixed: needs a cap within 0 and 1 and a batch of at least 1, not {cap=}, {batch=}.")
        self.original = original
        self.generated = generated
        self.cap = cap
        self._batch = batch
        self._told = False
        self._place = 0
        self._used = 0

    def begin(self, groups: int) -> None:
        """A batch of so many groups begins."""
        self._told = True
        self._start(groups)
        if isinstance(self.original, Batched):
            self.original.begin(groups)

    def _start(self, groups: int) -> None:
        self._batch = groups
        self._place = self._used = 0

    def next(self) -> Task:
        """An original task, or a generated one where its turn has come."""
        if not self._told and self._place >= self._batch:
            self._start(self._batch)
        place, n = self._place, self._batch
        self._place += 1
        quota = int(self.cap * n + 1e-9)
        if place < n and (place + 1) * quota // n > place * quota // n and len(self.generated):
            self._used += 1
            return self.generated.next()
        return self.original.next()

    def observe(self, groups: Sequence[Group]) -> None:
        """Both samplers look for their own tasks."""
        self.original.observe(groups)
        self.generated.observe(groups)

    def admit(self, group: Group) -> bool:
        """As the original sampler says."""
        return self.original.admit(group)

    def top(self, m: int) -> list[Task]:
        """The m tasks with the highest positive variance, original or generated.

        Raises:
            UserError: the original sampler keeps no variances.
        """
        if not isinstance(self.original, Variance):
            raise UserError("Mixed.top needs the Variance sampler for the original tasks.")
        return top_by_variance(m, self.original, self.generated)

    def metrics(self) -> dict[str, float]:
        """Share of generated tasks in this batch, and both samplers' own numbers."""
        share = self._used / max(min(self._place, self._batch), 1)
        return self.original.metrics() | self.generated.metrics() | {"generated": share}

    def state_dict(self) -> dict[str, Any]:
        """Both samplers and the position in the batch."""
        return {
            "original": self.original.state_dict(),
            "generated": self.generated.state_dict(),
            "batch": self._batch,
            "told": self._told,
            "place": self._place,
            "used": self._used,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.original.load_state_dict(state["original"])
        self.generated.load_state_dict(state["generated"])
        self._batch, self._told = int(state["batch"]), bool(state["told"])
        self._place, self._used = int(state["place"]), int(state["used"])
