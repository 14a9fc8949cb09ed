"""Success criteria that are pinned before any rollout: what the recorded successes of a task changed.

An episode meets them where the changes it made (calls of tools that write, in any order, failed ones left out) are
those of a recorded success of the same task. A success that changed nothing makes doing nothing right. A judge that
reads transcripts was measured to be right 4 times in 5 and to punish correct inaction; this one only compares calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rlready.dream import base
from rlready.dream.base import Action, Reply

Changes = tuple[str, ...]
"""The canonical texts of the changing calls, sorted."""


class Criteria:
    """For each task, the sets of changes that are right.

    Attributes:
        right: task id to the accepted changes.
        reads: tools that change nothing.
    """

    def __init__(self, right: Mapping[str, frozenset[Changes]], reads: Iterable[str]) -> None:
        """See `learn`."""
        self.right, self.reads = dict(right), frozenset(reads)

    @classmethod
    def learn(
        cls, episodes: Iterable[tuple[str, bool, Iterable[tuple[Action, Reply]]]], reads: Iterable[str]
    ) -> Criteria:
        """From recorded episodes.

        Args:
            episodes: (task id, success, steps) of judged ones.
            reads: tools that change nothing.
        """
        readers = frozenset(reads)
        won: dict[str, Counter[Changes]] = {}
        lost: dict[str, Counter[Changes]] = {}
        for task, success, steps in episodes:
            (won if success else lost).setdefault(task, Counter())[changes(steps, readers)] += 1
        # The same changes may succeed once and fail once (what the agent said counted too): the more frequent wins.
        right = {
            task: frozenset(c for c, n in counts.items() if n > lost.get(task, Counter())[c])
            for task, counts in won.items()
        }
        return cls({task: accepted for task, accepted in right.items() if accepted}, readers)

    def known(self, task_id: str) -> bool:
        """Whether there are criteria for a task."""
        return task_id in self.right

    def met(self, task_id: str, steps: Iterable[tuple[Action, Reply]]) -> bool:
        """Whether an episode's changes are right.

        Raises:
            KeyError: there are no criteria for the task.
        """
        return changes(steps, self.reads) in self.right[task_id]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "right": {task: sorted(map(list, found)) for task, found in sorted(self.right.items())},
            "reads": sorted(self.reads),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Criteria:
        """Inverse of `to_json`."""
        return cls({task: frozenset(map(tuple, found)) for task, found in record["right"].items()}, record["reads"])


def changes(steps: Iterable[tuple[Action, Reply]], reads: frozenset[str]) -> Changes:
    """The changing calls of an episode, see `base.changes`: successful calls of tools that are no reading tools."""
    return tuple(sorted(a.text for a, r in steps if base.changes(a, r, reads)))
