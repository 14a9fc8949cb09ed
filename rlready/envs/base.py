"""The environment contract.

An environment object serves one episode. `reset(task, seed)` draws everything hidden once, from (task, seed) alone,
so a group that shares its seed shares its world, and the same actions give the same episode. An `Observation` is the
*whole* next context: the policy sees its messages and nothing else. Scoring belongs to the task set, since one task set
serves several environments (real and dream, long context and chunked).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlready.types import Message, Task


@dataclass(slots=True)
class Observation:
    """What the policy sees next: the whole context.

    Attributes:
        messages: the whole conversation so far. A plain string is taken as one user message.
        actions: the admissible actions as text, where the environment knows them; decoding is limited to them.
        info: facts for logs and reports, never shown to the policy.
    """

    messages: tuple[Message, ...]
    actions: tuple[str, ...] | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        messages: str | Sequence[Message],
        actions: Sequence[str] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Accept a string for the one-message case."""
        self.messages = (Message.user(messages),) if isinstance(messages, str) else tuple(messages)
        self.actions = None if actions is None else tuple(actions)
        self.info = info or {}


@dataclass(slots=True)
class Step:
    """Gymnasium's words for what an action led to.

    `info` keys that the collector understands: `"failure"` (a sentence: the episode is void, exclude and count it).
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class Env(ABC):
    """One episode of interaction. Subclass, implement `reset` and `step`; the rest has defaults."""

    @abstractmethod
    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode; everything random is a function of (task, seed)."""

    @abstractmethod
    async def step(self, action: str) -> Step:
        """Apply an action, given as the text the policy wrote."""

    async def fork(self) -> Env:
        """A second environment in the same state, for tree search.

        Raises:
            NotImplementedError: this environment can only be replayed from its start.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot fork; replay its actions from reset instead.")

    async def close(self) -> None:  # noqa: B027  (optional hook)
        """Release what the episode holds. Called always, also after a failure."""


EnvFactory = Callable[[], Env]

Script = Callable[[Task, random.Random], Generator[str, str, None]]
"""A scripted policy: a generator that yields an action and receives the reply's text."""
