"""Task sets of the telecom domain, cut in four ways.

32 of the 2,285 tasks are left out: in them the right conduct is to hand over to a person, their end-state assertions
hold before anything is done, and the benchmark judges them by the actions taken. Every other task is judged by its
end state alone.

- `faults`: by the set of faults, hashed. The sets of train, dev and test differ, but nearly every test set is a train
  set with one fault more.
- `pairs`: by *pairs* of faults. Every test task contains a pair of faults that no train task contains; dev has pairs
  of its own. Each fault alone occurs in train.
- `both`: one train set for two questions. `hard` is the test set of `pairs`; of the rest, `test` and `dev` are held out
  by fault set, as in `faults`, and no train task contains a pair of `hard`.
- `official`: the benchmark's own train and test ids (66 of 74 and 28 of 40 are judged by their end state); dev is
  drawn from the tasks outside both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from itertools import combinations
from typing import Any, Literal

from rlready.errors import did_you_mean
from rlready.seeds import derive, hashed_uniform
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task
from rlready.worlds.tau2.mapper import ticket_words
from rlready.worlds.tau2.simulator import official_splits, records

Split = Literal["faults", "pairs", "both", "official"]
SPLITS: tuple[Split, ...] = ("faults", "pairs", "both", "official")
_NAME = "tau2-telecom"
_TEST, _DEV = 0.19, 0.09
_TEST_OF_REST = 0.24
"""Of the tasks without a held-out pair, so that the test set of `both` has about 450 tasks, too."""
_PAIR = (0.02, 0.12)
"""Share of tasks that contain a held-out pair: rarer pairs test nothing, commoner ones leave too little to train."""
_OFFICIAL_DEV = 200


def all_tasks() -> TaskSet:
    """Every telecom task that is judged by its end state alone.

    The order is hashed, so that any head of the set is a fair one.
    A task's id is the benchmark's; its prompt is the ticket's words; `meta["faults"]` is its sorted faults, for
    selecting and reporting (the policy never sees them).

    Raises:
        UserError: the benchmark is not installed.
    """
    tasks = [_task(r) for r in records().values() if r["evaluation_criteria"]["reward_basis"] == ["ENV_ASSERTION"]]
    return TaskSet(sorted(tasks, key=lambda t: derive("tau2", "order", t.id)), name=_NAME)


def make_splits(split: str, seed: int = 0) -> dict[str, TaskSet]:
    """Disjoint train, dev and test sets (and `hard` in `both`).

    Args:
        split: "faults", "pairs", "both" or "official".
        seed: another seed gives another cut (of `official`, another dev set only).

    Raises:
        UserError: there is no such split, or the benchmark is not installed.
    """
    tasks = all_tasks()
    if split == "faults":
        shares = {"train": 1 - _TEST - _DEV, "dev": _DEV, "test": _TEST}
        return tasks.split(shares, seed=seed, key=_fault_set)
    if split == "pairs":
        return _by_pairs(tasks, seed)
    if split == "both":
        return _both(tasks, seed)
    if split == "official":
        return _official(tasks, seed)
    raise did_you_mean("split of tau2 telecom", split, SPLITS)


def pairs_of(task: Task) -> set[tuple[str, str]]:
    """All pairs of a task's faults, each pair sorted."""
    return set(combinations(task.meta["faults"], 2))


def held_out_pairs(tasks: Iterable[Task], seed: int = 0) -> dict[str, set[tuple[str, str]]]:
    """The pairs of faults that the split `pairs` keeps for test and for dev.

    Pairs come in hashed order. One is kept if none of its faults is in a kept pair of the same set already (so that
    every fault is still seen in other company), and if the tasks that contain a kept pair do not outgrow the intended
    share.

    Args:
        tasks: all tasks.
        seed: another seed gives other pairs.
    """
    contained = {task.id: pairs_of(task) for task in tasks}
    count = Counter(pair for pairs in contained.values() for pair in pairs)
    least, most = (share * len(contained) for share in _PAIR)
    order = sorted((p for p, n in count.items() if least <= n <= most), key=lambda p: derive(seed, "pair", *p))
    held: dict[str, set[tuple[str, str]]] = {}
    taken: set[str] = set()
    for name, share in (("test", _TEST), ("dev", _DEV)):
        mine: set[str] = set()
        faults: set[str] = set()
        kept = held[name] = set()
        for pair in order:
            new = {i for i, pairs in contained.items() if pair in pairs} - taken
            fits = len(mine | new) <= share * len(contained)
            if fits and faults.isdisjoint(pair) and pair not in held["test"]:
                kept.add(pair)
                faults.update(pair)
                mine |= new
        taken |= mine
    return held


def _by_pairs(tasks: TaskSet, seed: int) -> dict[str, TaskSet]:
    held = held_out_pairs(tasks, seed)

    parts: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for task in tasks:
        pairs = pairs_of(task)
        parts["test" if pairs & held["test"] else "dev" if pairs & held["dev"] else "train"].add(task.id)
    return _parts(tasks, parts)


def _both(tasks: TaskSet, seed: int) -> dict[str, TaskSet]:
    held = held_out_pairs(tasks, seed)["test"]
    hard = {task.id for task in tasks if pairs_of(task) & held}
    shares = {"train": 1 - _TEST_OF_REST - _DEV, "dev": _DEV, "test": _TEST_OF_REST}
    rest = tasks.filter(lambda t: t.id not in hard)
    return rest.split(shares, seed=seed, key=_fault_set) | _parts(tasks, {"hard": hard})


def _official(tasks: TaskSet, seed: int) -> dict[str, TaskSet]:
    ids = official_splits()
    free = [t for t in tasks if t.id not in ids["train"] | ids["test"]]
    dev = {t.id for t in sorted(free, key=lambda t: hashed_uniform(seed, "official dev", t.id))[:_OFFICIAL_DEV]}
    return _parts(tasks, {"train": ids["train"], "dev": dev, "test": ids["test"]})


def _parts(tasks: TaskSet, ids: Mapping[str, Set[str]]) -> dict[str, TaskSet]:
    return {
        name: TaskSet([t for t in tasks if t.id in keep], tasks.scorer, name=f"{_NAME}/{name}")
        for name, keep in ids.items()
    }


def _fault_set(task: Task) -> str:
    return " ".join([task.meta["ticket"], *task.meta["faults"]])


def _task(record: Mapping[str, Any]) -> Task:
    match = re.fullmatch(r"\[(?P<kind>\w+)\](?P<faults>.*)\[PERSONA:(?P<persona>\w+)\]", record["id"])
    if match is None:
        raise ValueError(f"tau2 telecom: cannot read the task id {record['id']!r}")
    ticket = ticket_words(record["ticket"])
    meta = {"ticket": ticket, "faults": sorted(match["faults"].split("|")), "persona": match["persona"]}
    return Task((Message.user(ticket),), {"tau2": record["id"]}, meta, id=record["id"])
