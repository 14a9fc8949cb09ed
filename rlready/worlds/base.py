"""A world is a real domain, ready for RL: tasks with splits, environment, state mapper, vocabulary, scripted play.

Scripted policies make demonstrations and logs. A *script* is a generator: it yields an action and receives the reply's
text; when it returns, the world's closing action (`World.closing`) is played.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from rlready.envs.base import Env
from rlready.tasks.base import TaskSet
from rlready.types import Task

Script = Callable[[Task, random.Random], Generator[str, str, None]]


class World(Protocol):
    """What recipes and the dream use of a real domain."""

    @property
    def name(self) -> str:
        """Short name, such as "tau2-telecom"."""
        ...

    @property
    def splits(self) -> Mapping[str, TaskSet]:
        """Disjoint task sets: at least train, dev, test; harder or official ones beside."""
        ...

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Scripted policies by name; "random" is always there."""
        ...

    @property
    def actions(self) -> Sequence[str]:
        """Every action there is, as text."""
        ...

    @property
    def vocabulary(self) -> Sequence[str]:
        """Every word that observations and actions can contain."""
        ...

    @property
    def closing(self) -> str:
        """The action that ends an episode."""
        ...

    def env(self) -> Env:
        """A fresh real environment for one episode, state mapper included."""
        ...
