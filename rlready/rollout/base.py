"""What the collector asks of a curriculum, which chooses tasks and says which groups are worth training on.

A curriculum is one sampler plus gates (`rlready.curriculum`). Both carry `state_dict` (a resumed run draws the same
tasks) and `metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rlready.types import Group, Task


class Curriculum(Protocol):
    """Chooses tasks, learns from their outcomes, admits groups."""

    def next(self) -> Task:
        """The next task to roll out."""
        ...

    def observe(self, groups: Sequence[Group]) -> None:
        """Learn from the outcomes, admitted or not."""
        ...

    def admit(self, group: Group) -> bool:
        """Whether this group goes into the update; a refused one is refilled by another task."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...


@runtime_checkable
class Batched(Protocol):
    """A curriculum that wants to know where a batch begins (mixing caps, refill caps)."""

    def begin(self, groups: int) -> None:
        """A batch of so many groups begins."""
        ...
