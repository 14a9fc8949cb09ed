"""A task set is tasks together with the way they are scored.

Splits are by hash of a task's key, never by position, so that the same task lands in the same split whatever else is
in the set, and splits cannot overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, overload

from rlready.errors import UserError, did_you_mean
from rlready.scoring import RewardFn, Scorer, as_scorer, columns_of
from rlready.seeds import hashed_uniform, rng
from rlready.tasks import files
from rlready.tasks.generate import Duplicates, Generator, generate
from rlready.types import Score, Task, Trajectory, Verdict


async def score_by_env(task: Task, trajectory: Trajectory) -> Score:
    """The default score: the environment's rewards summed; right where the sum is positive."""
    total = sum(turn.reward for turn in trajectory.turns)
    return Score(total, Verdict.RIGHT if total > 0 else Verdict.WRONG)


class TaskSet(Sequence[Task]):
    """A named sequence of tasks with unique ids, and a scorer."""

    def __init__(self, tasks: Iterable[Task], score: RewardFn | None = None, *, name: str = "tasks") -> None:
        """Collect the tasks.

        Args:
            tasks: the tasks; duplicates by id are refused.
            score: a reward function in any accepted form (see `tasks.scoring`); default: the environment's rewards
                summed.
            name: used in messages and file names.

        Raises:
            UserError: two tasks have the same id.
        """
        self.tasks = list(tasks)
        self.name = name
        self.scorer: Scorer = score_by_env if score is None else as_scorer(score)
        seen: dict[str, int] = {}
        for i, task in enumerate(self.tasks):
            if task.id in seen:
                raise UserError(
                    f"{name}: tasks {seen[task.id]} and {i} are the same (id {task.id}). Remove one, or give them ids."
                )
            seen[task.id] = i

    @classmethod
    def from_records(
        cls,
        records: Iterable[Mapping[str, Any]],
        score: RewardFn | None = None,
        *,
        name: str = "records",
        **reading: Any,
    ) -> TaskSet:
        """From mappings in memory.

        Args:
            records: one mapping per task.
            score: the reward.
            name: used in messages.
            reading: the fields of `tasks.files.Reading`: `prompt` (column, or function of the record), `columns`,
                `meta`, `id`, `system`, `skip_incomplete`, `drop_duplicates`.

        Raises:
            UserError: records are incomplete, repeated or malformed; names the first.
        """
        return cls._read(enumerate(records, start=1), score, name, "record", reading)

    @classmethod
    def from_jsonl(
        cls, path: str | Path, score: RewardFn | None = None, *, name: str | None = None, **reading: Any
    ) -> TaskSet:
        """From a file with one JSON object a line: `TaskSet.from_jsonl("q.jsonl", prompt="question", score=...)`.

        Takes what `from_records` takes. Every column but the prompt is kept in `task.data`. Columns that the reward
        needs must be there.

        Raises:
            UserError: the file cannot be read, or a line is malformed, incomplete or repeated; names file, line,
            column.
        """
        path = Path(path)
        return cls._read(files.read_jsonl(path), score, name or path.stem, "line", reading, source=path.name)

    @classmethod
    def from_parquet(
        cls, path: str | Path, score: RewardFn | None = None, *, name: str | None = None, **reading: Any
    ) -> TaskSet:
        """From a Parquet file (needs pyarrow). Takes what `from_records` takes; raises likewise."""
        path = Path(path)
        return cls._read(files.read_parquet(path), score, name or path.stem, "row", reading, source=path.name)

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        score: RewardFn | None = None,
        *,
        split: str | None = "train",
        config: str | None = None,
        load: Mapping[str, Any] | None = None,
        name: str | None = None,
        **reading: Any,
    ) -> TaskSet:
        """From a Hugging Face dataset, by name or as an object (needs the datasets library).

        Args:
            dataset: such as "openai/gsm8k", or a `Dataset` or `DatasetDict`.
            score: the reward.
            split: which split.
            config: the dataset's configuration, such as "main".
            load: further arguments of `datasets.load_dataset`, such as `data_files` or `revision`.
            name: used in messages.
            reading: what `from_records` takes.

        Raises:
            UserError: the dataset cannot be loaded, or its records are incomplete or repeated.
        """
        label = name or (dataset if isinstance(dataset, str) else "dataset")
        return cls._read(files.read_hf(dataset, split, config, **(load or {})), score, label, "row", reading)

    @classmethod
    def from_generator(
        cls,
        fn: Generator,
        n: int,
        seed: int,
        score: RewardFn | None = None,
        *,
        duplicates: Duplicates = "redraw",
        exclude: Sequence[Task] = (),
        name: str | None = None,
    ) -> TaskSet:
        """Draw n tasks from `fn(rng, index) -> Task | dict`; see `tasks.generate.generate` for the arguments.

        Raises:
            UserError: the function returns something else, or has too few distinct tasks.
        """
        tasks = generate(fn, n, seed, duplicates=duplicates, exclude=exclude)
        return cls(tasks, score, name=name or str(getattr(fn, "__name__", "generated")))

    @classmethod
    def _read(
        cls,
        records: Iterable[tuple[int, Mapping[str, Any]]],
        score: RewardFn | None,
        name: str,
        unit: str,
        reading: Mapping[str, Any],
        source: str | None = None,
    ) -> TaskSet:
        known = [f.name for f in fields(files.Reading)]
        for key in reading:
            if key not in known:
                raise did_you_mean("argument", key, known)
        how = files.Reading(**reading)
        how = replace(how, required=tuple(dict.fromkeys([*how.required, *columns_of(score)])))
        return cls(files.tasks_from_records(records, how, source=source or name, unit=unit), score, name=name)

    def __iter__(self) -> Iterator[Task]:
        """Over the tasks in order."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        """A task, or a smaller set."""
        return self._with(self.tasks[index]) if isinstance(index, slice) else self.tasks[index]

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Judge a trajectory. An exception of the scorer becomes `Score.failed`, never a wrong answer."""
        try:
            return await self.scorer(task, trajectory)
        except Exception as error:
            return Score.failed(f"{type(error).__name__}: {error}")

    def head(self, n: int) -> TaskSet:
        """The first n tasks."""
        return self[:n]

    def shuffle(self, seed: int) -> TaskSet:
        """The same tasks in an order that depends on the seed."""
        tasks = list(self.tasks)
        rng(seed, "shuffle").shuffle(tasks)
        return self._with(tasks)

    def filter(self, keep: Callable[[Task], bool]) -> TaskSet:
        """The tasks for which `keep` is true."""
        return self._with([t for t in self.tasks if keep(t)])

    def split(
        self, shares: Mapping[str, float], *, seed: int = 0, key: Callable[[Task], str] = lambda task: task.id
    ) -> dict[str, TaskSet]:
        """Cut into disjoint named sets, such as `{"train": .8, "dev": .1, "test": .1}`.

        Args:
            shares: name to share; the shares must sum to 1.
            seed: another seed gives another cut.
            key: tasks with the same key stay together (a template, a fault set, a source document).

        Raises:
            UserError: the shares do not sum to 1.
        """
        if abs(sum(shares.values()) - 1) > 1e-9 or any(s < 0 for s in shares.values()):
            raise UserError(f"{self.name}: split shares {dict(shares)} must be positive and sum to 1.")
        parts: dict[str, list[Task]] = {name: [] for name in shares}
        for task in self.tasks:
            u = hashed_uniform(seed, "split", key(task))
            for name, share in shares.items():  # noqa: B007  (the last name catches rounding)
                if u < share:
                    break
                u -= share
            parts[name].append(task)
        return {name: self._with(tasks, f"{self.name}/{name}") for name, tasks in parts.items()}

    def _with(self, tasks: Iterable[Task], name: str | None = None) -> TaskSet:
        other = TaskSet(tasks, name=name or self.name)
        other.scorer = self.scorer
        return other
