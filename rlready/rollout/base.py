"""A curriculum chooses tasks and says which groups are worth training on.

It is one sampler plus gates. Both carry `state_dict` (a resumed run draws the same tasks) and `metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlready.types import Group, Task


class Curriculum(Protocol):
    """What the collector asks of a curriculum."""

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
