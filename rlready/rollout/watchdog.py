"""A thread that notices when rollouts stop moving, says what is stuck, and ends the run.

Two ways to hang, two ways out:

    the event loop is blocked    an environment or reward sleeps without awaiting: the error is raised inside it
    nothing finishes             something awaits for ever and swallows its deadline: the collecting task is cancelled

Both are logged first at half the limit (a warning), then at the limit (an error; the stack of the loop's thread as
info), and end as `Stuck`. Code that holds the interpreter lock without pause cannot be seen from a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
import threading
import traceback
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any, Self

from rlready.errors import UserError

log = logging.getLogger(__name__)

# Ignored unless handled, and used by nothing we know of in Python: safe to borrow. Absent on Windows.
_SIGNAL: int | None = getattr(signal, "SIGURG", None)
_to_raise: list[BaseException] = []


class Stuck(UserError):
    """Rollouts stopped moving; the message names the environment, task and phase."""


class Activity:
    """What one episode is doing: its environment, task, phase, and seconds spent by phase.

    Attributes:
        env, task: class name and task id.
        phase: "start", "boot", "sample", "env", "score" or "close".
        since: when the phase began (`perf_counter`).
        seconds: by phase, the present one not included.
        busy: by phase, the seconds in which the episode held the event loop (as opposed to awaiting).
    """

    __slots__ = ("board", "busy", "env", "phase", "seconds", "since", "task")

    def __init__(self, board: Board, env: str, task: str) -> None:
        self.board = board
        self.env = env
        self.task = task
        self.phase = "start"
        self.since = perf_counter()
        self.seconds: dict[str, float] = {}
        self.busy: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase and close the account of the one before."""
        now = perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.since
        self.phase = phase
        self.since = now
        board = self.board
        board.current = self
        board.moved = now

    def describe(self, now: float) -> str:
        """In words, for logs and errors."""
        return f"{self.env}, task {self.task}, phase {self.phase} for {now - self.since:.1f} s"


class Board:
    """All episodes now in progress.

    Attributes:
        live: their activities.
        current: the episode that ran last on the event loop.
        moved: when any episode last changed its phase (`perf_counter`).
        stuck: set by the watchdog when it gives up; whoever sees it stops.
    """

    __slots__ = ("current", "live", "moved", "stuck")

    def __init__(self) -> None:
        self.live: dict[Activity, None] = {}
        self.current: Activity | None = None
        self.moved = perf_counter()
        self.stuck: Stuck | None = None

    def open(self, env: str, task: str) -> Activity:
        """Register an episode."""
        activity = Activity(self, env, task)
        self.live[activity] = None
        self.moved = activity.since
        return activity

    def close(self, activity: Activity) -> None:
        """The episode is over."""
        activity.enter("over")
        self.live.pop(activity, None)
        if self.current is activity:
            self.current = None

    def check(self) -> None:
        """Raise what the watchdog found, if anything.

        Raises:
            Stuck: rollouts hang.
        """
        if self.stuck is not None:
            raise self.stuck


class Watchdog:
    """Watches a board from a thread while its block runs: `with Watchdog(board, 60): await ...`.

    Enter it from a coroutine: it watches the running loop, and cancels the present task when nothing finishes.
    """

    def __init__(self, board: Board, seconds: float, *, interval: float | None = None) -> None:
        """Set the limit.

        Args:
            board: the episodes to watch.
            seconds: how long the loop may be blocked, or all episodes stand still, before the run is ended.
            interval: seconds between looks; default: an eighth of the limit, at most 1.
        """
        self.board = board
        self.seconds = seconds
        self.interval = min(1.0, seconds / 8) if interval is None else interval
        self._end = threading.Event()
        self._ticked = 0.0
        self._tick_due = False
        self._warned = False
        self._previous: Any = None
        self._armed = False

    def __enter__(self) -> Self:
        """Start watching.

        Raises:
            RuntimeError: no event loop runs here.
        """
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._ident = threading.get_ident()
        self._ticked = self.board.moved = perf_counter()
        if _SIGNAL is not None and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(_SIGNAL, _on_signal)
            self._armed = True
        self._thread = threading.Thread(target=self._watch, name="rlready-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop watching; where the watchdog ended the block, raise what it found.

        Raises:
            Stuck: rollouts hung.
        """
        self._end.set()
        self._thread.join(timeout=5)
        if self._armed and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._previous if self._previous is not None else signal.SIG_DFL)
        stuck = self.board.stuck
        if stuck is not None and error is not stuck:
            if isinstance(error, asyncio.CancelledError) and self._task is not None:
                self._task.uncancel()
            raise stuck from error

    def _watch(self) -> None:
        while not self._end.wait(self.interval):
            if not self._tick_due:
                self._tick_due = True
                try:
                    self._loop.call_soon_threadsafe(self._tick)
                except RuntimeError:  # the loop is closed
                    return
            now = perf_counter()
            ending = self.board.stuck is not None and now - self._ticked < self.seconds  # cancelled, and not blocked
            if not self.board.live or ending:
                self._warned = False
                self.board.moved = now
                continue
            blocked = now - self._ticked
            still = now - self.board.moved
            if max(blocked, still) < self.seconds / 2:
                self._warned = False
            elif max(blocked, still) < self.seconds:
                if not self._warned:
                    self._warned = True
                    log.warning("%s", self._words(now, blocked > self.interval * 2))
            elif blocked >= self.seconds:
                self._give_up(now, blocked=True)
            else:
                self._give_up(now, blocked=False)

    def _tick(self) -> None:
        self._ticked = perf_counter()
        self._tick_due = False

    def _words(self, now: float, blocked: bool) -> str:
        board = self.board
        if blocked:
            who = board.current
            what = who.describe(now) if who is not None else "no episode"
            return f"The event loop has been blocked for {now - self._ticked:.1f} s ({what})."
        live = tuple(board.live)  # a copy at once: the other thread goes on
        oldest = sorted(live, key=lambda a: a.since)[:3]
        what = "; ".join(a.describe(now) for a in oldest)
        return f"{len(live)} episodes, and none has moved for {now - board.moved:.1f} s. Longest: {what}."

    def _give_up(self, now: float, *, blocked: bool) -> None:
        words = self._words(now, blocked)
        frame = sys._current_frames().get(self._ident)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        if blocked:
            words += f" It stands in {_innermost(frame)}. Let it await, or move it out: envs.process.ProcessEnv for an "
            words += "environment, scoring.as_scorer(reward, thread=True) for a reward."
        else:
            words += " Something awaits for ever and ignores its deadline: it must let CancelledError through."
        log.error("%s", words)
        log.info("Stack of the event loop's thread:\n%s", stack)
        self.board.stuck = Stuck(words)
        self._ticked = self.board.moved = now  # the next attempt comes after another limit
        if not blocked:
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
        elif self._armed and _SIGNAL is not None:
            _to_raise.append(self.board.stuck)
            signal.pthread_kill(self._ident, _SIGNAL)  # interrupts a sleeping system call too
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(Stuck))


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _to_raise:
        raise _to_raise.pop()


def _innermost(frame: FrameType | None) -> str:
    if frame is None:
        return "unknown code"
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rsplit('/', 1)[-1]}, line {frame.f_lineno})"
