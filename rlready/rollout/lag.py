"""Groups that are played while the policy learns, and how old they may be when they are learned from.

The bound is kept by *admission*: `Staleness` says how many groups may be started, and what was started is used, in the
order in which it was started. Nothing is thrown away for being late. (In the order in which they finish, a slow group
could be overtaken again and again and come later than the bound says, and quick groups would be over-represented;
throwing away what came late would starve slow tasks outright.) A group that the curriculum refuses gives its place to a
new one at the end of the line, within the bound on refills.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlready.errors import UserError
from rlready.rollout.gather import settle
from rlready.types import Group, IntArray, Task


@dataclass
class Staleness:
    """How far rollouts may run ahead of learning: one rule.

    When the trainer asks for batch number `asked` (from 1), `asked - 1` updates are done. Groups are used in the
    order they were started, so one started now is used in batch `asked + max_lag` at the latest: no group is older than
    `max_lag` updates when it is used. A batch that stayed smaller has used up its places all the same (`short`), and a
    resumed run starts counting anew, with nothing started: neither lets more run ahead.
    """

    batch: int
    max_lag: int = 0
    asked: int = 0
    started: int = 0

    @property
    def capacity(self) -> int:
        """Groups that may be started now: (asked + max_lag) * batch - started."""
        return (self.asked + self.max_lag) * self.batch - self.started

    def short(self, missing: int) -> None:
        """A batch was handed over with so many groups missing."""
        self.started += missing


class Draw(NamedTuple):
    """What a group is played on: a task and its environment seed. The same draw is the same question."""

    task: Task
    seed: int

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"task": self.task.to_json(), "seed": self.seed}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], known: Mapping[str, Task]) -> Draw:
        """Inverse of `to_json`; the task is the known one of its id where there is one."""
        task = Task.from_json(record["task"])
        return cls(known.get(task.id, task), int(record["seed"]))


class Plays(Protocol):
    """What `Ahead` asks of a collector."""

    def begin(self, groups: int) -> None:
        """A batch of so many groups is about to be drawn."""
        ...

    def draw(self) -> Draw:
        """The next task and its environment seed."""
        ...

    def play(self, draw: Draw, slots: asyncio.Semaphore) -> Coroutine[Any, Any, Group]:
        """Play a group."""
        ...

    def judge(self, group: Group) -> bool:
        """Learn from a group's outcome; whether it may be trained on."""
        ...


@dataclass(slots=True, eq=False)
class _Place:
    """A place in the line."""

    draw: Draw
    work: asyncio.Task[Group]
    admitted: bool = False


class Ahead:
    """Plays groups in the background, as many as `Staleness` allows; hands them over in the order they were started."""

    def __init__(self, plays: Plays, rule: Staleness, *, concurrency: int, max_refills: float) -> None:
        """Begin with nothing started.

        Args:
            plays: draws, plays and judges.
            rule: the bound.
            concurrency: episodes at once; the oldest groups' come first.
            max_refills: groups played in place of refused ones, per group of a batch.
        """
        self.rule = rule
        self._plays = plays
        self._max_refills = max_refills
        self._slots = asyncio.Semaphore(concurrency)
        self._line: list[_Place] = []
        self._refused: list[Group] = []
        self._refills = 0.0
        self._begun = 0
        self._error: BaseException | None = None
        self._wake = asyncio.Event()

    @property
    def draws(self) -> list[Draw]:
        """What stands in the line, the oldest first: playing, or played and not handed over yet."""
        return [place.draw for place in self._line]

    async def take(self, groups: int) -> tuple[list[Group], list[Group]]:
        """The next batch; fewer groups where the refills ran out.

        Returns:
            The batch with what was refused since the last one, and the batch alone. Every group comes once.

        Raises:
            UserError: the batch has another size than the one before.
            BaseException: whatever playing or judging raised.
        """
        rule = self.rule
        if groups != rule.batch:
            raise UserError(f"Collector: with max_lag all batches have one size; {rule.batch} became {groups}.")
        rule.asked += 1
        self._refills = self._max_refills * groups
        self._launch()
        while self._error is None and not all(place.admitted for place in self._line[:groups]):
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            await self.close()
            raise self._error
        batch, self._line = self._line[:groups], self._line[groups:]
        rule.short(groups - len(batch))
        admitted = [place.work.result() for place in batch]
        refused, self._refused = self._refused, []
        return refused + admitted, admitted

    async def close(self) -> None:
        """Cancel what is running."""
        work = [place.work for place in self._line]
        for task in work:
            task.cancel()
        await settle(work)

    def _launch(self) -> None:
        rule = self.rule
        while rule.capacity > 0:
            if rule.started >= self._begun * rule.batch:
                self._begun = rule.started // rule.batch + 1
                self._plays.begin(rule.batch)
            rule.started += 1
            draw = self._plays.draw()
            place = _Place(draw, asyncio.ensure_future(self._plays.play(draw, self._slots)))
            self._line.append(place)
            place.work.add_done_callback(lambda task, place=place: self._done(place))  # type: ignore[misc]

    def _done(self, place: _Place) -> None:
        self._wake.set()
        if place.work.cancelled() or self._error is not None:
            return
        try:
            group = place.work.result()
            place.admitted = self._plays.judge(group)
            if place.admitted:
                return
            self._line.remove(place)
            self._refused.append(group)
            self.rule.started -= 1
            if self._refills >= 1:
                self._refills -= 1
                self._launch()
        except Exception as error:
            self._error = error


def lags(groups: Sequence[Group], versions: Sequence[int]) -> IntArray:
    """By how many updates each sampled token is behind, [N].

    Args:
        groups: played by a policy.
        versions: the policy's, after each update so far, ascending; the last is the present one. An update may be many
            optimizer steps, so a difference of versions is not a number of updates.
    """
    out: list[int] = []
    for turn in (turn for group in groups for trajectory in group for turn in trajectory.turns):
        if not turn.logprobs:
            continue
        each = [turn.version] * turn.length if isinstance(turn.version, int) else turn.version
        out += [len(versions) - bisect_right(versions, version) for version in each]
    return np.asarray(out, dtype=np.int64)
