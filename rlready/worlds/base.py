"""A world is a real domain, ready for RL: tasks with splits, environment, state mapper, vocabulary, scripted play.

Scripted policies make demonstrations and logs: `rollout.actors.ScriptActor` plays them. When a script returns, the
world's closing action (`World.closing`) is played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rlready.envs.base import Env, Script
from rlready.tasks.base import TaskSet


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
