"""Splits: is a held-out task a training task, by id, by text, or by a seed that was added to an index?"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from rlready.findings import Findings, Where
from rlready.tasks.base import TaskSet, score_by_env
from rlready.types import Task


def check_splits(train: TaskSet, splits: Mapping[str, TaskSet], found: Findings) -> None:
    """Compare every held-out split with the training tasks.

    Args:
        train: what is trained on.
        splits: held-out sets by name; the training tasks themselves, given once more, are passed over.
        found: where findings go.
    """
    distinct = {name: tasks for name, tasks in splits.items() if [t.id for t in tasks] != [t.id for t in train]}
    ids = {task.id: i for i, task in enumerate(train)}
    played = train.scorer is score_by_env
    texts: dict[str, int] = {}
    for i, task in enumerate(train):
        texts.setdefault(fingerprint(task, played), i)
    for name, tasks in distinct.items():
        same = [(j, ids[task.id]) for j, task in enumerate(tasks) if task.id in ids]
        alike = [
            (j, texts[key]) for j, task in enumerate(tasks)
            if (key := fingerprint(task, played)) in texts and task.id not in ids
        ]  # fmt: skip
        hits = same + alike
        if not hits:
            continue
        j, i = hits[0]
        where = Where(place=f"{name}, item {j}; train, item {i}", task=tasks[j].id)
        shift, times = Counter(i - j for j, i in hits).most_common(1)[0]
        if shift != 0 and times >= max(4, 0.8 * len(hits)) and times >= 0.5 * (len(tasks) - abs(shift)):
            found.error(
                "shifted seeds", f"{times} of {len(tasks)} tasks of {name} are training tasks shifted by {abs(shift)}: "
                "as if a seed had been added to the index, or slices of one list overlapped.", where,
            )  # fmt: skip
            continue
        how = " and ".join(
            f"{len(hit)} {what}"
            for hit, what in ((same, "by id"), (alike, "by text, case and punctuation aside"))
            if hit
        )
        share = len(hits) / len(tasks)
        tell = found.error if share > 0.01 or same else found.warning
        tell("leaks", f"{len(hits)} of {len(tasks)} tasks of {name} are training tasks: {how}.", where)


def fingerprint(task: Task, played: bool) -> str:
    """What makes two tasks the same to a policy: their words, and what an environment makes of their data."""
    text = " ".join(re.sub(r"[^\w\s+\-*/=<>%]", " ", m.text.casefold()) for m in task.prompt)
    words = " ".join(text.split())
    if played or not words:
        return words + json.dumps(dict(task.data), sort_keys=True, default=str)
    return words
