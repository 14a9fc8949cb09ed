"""Steps begin together.

A simulator that batches is best asked by everybody at once. In one process that comes by itself; over a network the
first request of a round would begin alone, and a batch of one takes nearly as long as a batch of many. So what comes
waits a moment for the others:

    until every open session has sent its request
    or nothing has come for QUIET (10 ms) or a tenth of a typical step, whichever is shorter
    or a fifth of a typical step has passed

and not at all where steps are quick, nor while others are at work: a simulator that lets the loop run meanwhile takes
newcomers into its running batch. The numbers are ours: a lone client loses at most a tenth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

QUIET = 10e-3
QUICK = 5e-3


class Assembly:
    """What is about to begin.

    Attributes:
        typical: seconds of a typical step, a running mean.
        working: how many have begun and are not over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, complete: Callable[[], bool]) -> None:
        """Start with nobody.

        Args:
            loop: the server's.
            complete: whether nobody is left to wait for.
        """
        self.typical = 0.0
        self.working = 0
        self._loop, self._complete = loop, complete
        self._waiting: list[Callable[[], None]] = []
        self._last = self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def took(self, seconds: float) -> None:
        """A step is over."""
        self.typical += 0.05 * (seconds - self.typical)

    def join(self, begin: Callable[[], None]) -> None:
        """Call `begin`, now or in a moment."""
        if not self._waiting and (self.typical < QUICK or self.working):
            begin()
            return
        self._waiting.append(begin)
        if self._complete():
            self.release()
            return
        self._last = self._loop.time()
        if self._timer is None:
            self._ends = self._last + self.typical / 5
            self._timer = self._loop.call_at(self._next(), self._look)

    def release(self) -> None:
        """All that wait begin."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for begin in waiting:
            begin()

    def _next(self) -> float:
        return min(self._ends, self._last + min(QUIET, self.typical / 10))

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() >= self._next():
            self.release()
        else:
            self._timer = self._loop.call_at(self._next(), self._look)
