"""Which tasks are learned from and which are held out.

Runs of one task stay together, and so do tasks that are asked in the same words: one that is held out while its twin is
learned from would measure memory. The place of a task is a hash of its id, so that it keeps its side when logs grow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import hashed_uniform

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Splits:
    """Task ids by split.

    Attributes:
        train, dev, test: sorted ids.
        twins: tasks that were kept on one side with another one since they are asked in the same words.
    """

    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]
    twins: int

    def by_name(self) -> dict[str, tuple[str, ...]]:
        """As a gym keeps them."""
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Splits:
        """Inverse of `dataclasses.asdict`."""
        return cls(tuple(record["train"]), tuple(record["dev"]), tuple(record["test"]), int(record["twins"]))


def normalised(instruction: str) -> str:
    """An instruction's words in lower case, without signs and layout."""
    return " ".join(_WORD.findall(instruction.casefold()))


def split_tasks(episodes: Sequence[LoggedEpisode], held_out: float = 0.2, seed: int = 0) -> Splits:
    """Cut tasks into train, dev and test.

    Half of the held-out share is dev (calibration), half is test (what is reported). Where a hash leaves a split
    empty, it takes a task from another, as long as train keeps one; test comes before dev, and a single task is all
    train.

    Args:
        episodes: of all tasks.
        held_out: share of the tasks, in [0, 1).
        seed: another seed gives another cut.

    Raises:
        UserError: the share is out of range.
    """
    if not 0 <= held_out < 1:
        raise UserError(f"held_out is {held_out}; it is a share of the tasks, at least 0 and below 1.")
    together = list(_together(episodes))
    drawn = sorted((hashed_uniform(seed, "split", min(group)), group) for group in together)
    half = held_out / 2
    sides: dict[str, list[list[str]]] = {
        "test": [g for u, g in drawn if u < half],
        "dev": [g for u, g in drawn if half <= u < held_out],
        "train": [g for u, g in drawn if u >= held_out],
    }
    if held_out:
        train, dev, test = sides["train"], sides["dev"], sides["test"]
        if not train and drawn:
            train.append((dev or test).pop())
        if not test and (len(dev) > 1 or len(train) == 1) and dev:
            test.append(dev.pop(0))
        elif not test and len(train) > 1:
            test.append(train.pop(0))
        if not dev and (len(test) > 1 or len(train) > 1):
            dev.append(test.pop() if len(test) > 1 else train.pop(0))
    flat = {name: tuple(sorted(t for group in groups for t in group)) for name, groups in sides.items()}
    return Splits(flat["train"], flat["dev"], flat["test"], sum(len(g) - 1 for g in together))


def _together(episodes: Iterable[LoggedEpisode]) -> Iterable[list[str]]:
    """Tasks that must stay on one side, as lists of ids.

    Words bind the tasks that most of their runs are asked in. A simulated user opens a task in other words every time,
    and now and then in those of another task: that binds nothing. Nor do words that open more than half of all tasks.
    """
    runs: Counter[str] = Counter()
    asked: dict[str, Counter[str]] = defaultdict(Counter)
    for episode in episodes:
        runs[episode.task_id] += 1
        asked[normalised(episode.instruction)][episode.task_id] += 1
    parent = {task: task for task in runs}

    def root(task: str) -> str:
        while parent[task] != task:
            parent[task] = parent[parent[task]]
            task = parent[task]
        return task

    for words, tasks in asked.items():
        bound = sorted(task for task, n in tasks.items() if 2 * n >= runs[task])
        if not words or (len(bound) > 2 and 2 * len(bound) > len(runs)):
            continue
        for other in bound[1:]:
            a, b = sorted((root(bound[0]), root(other)))
            parent[b] = a
    groups: dict[str, list[str]] = defaultdict(list)
    for task in sorted(parent):
        groups[root(task)].append(task)
    return groups.values()
