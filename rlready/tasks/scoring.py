"""One adapter from every accepted form of reward function to `async (task, trajectory) -> Score`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rlready.types import Score, Task, Trajectory

Scorer = Callable[[Task, Trajectory], Awaitable[Score]]
RewardFn = Callable[..., Any]


def as_scorer(fn: RewardFn) -> Scorer:
    raise NotImplementedError
