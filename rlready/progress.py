"""Progress that suits where it is read: a bar in a terminal, a line now and then in a log, nothing when quiet.

All of it goes to stderr, so that stdout holds results only. A loop that is over within 5 seconds prints nothing in a
log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Mode = Literal["auto", "bar", "lines", "quiet"]

_SHOWN = ("success", "eval/success", "reward", "loss")
_FIRST_LINE, _LONGEST_GAP = 5.0, 60.0


class Bar:
    """One loop's progress."""

    def __init__(self, label: str, total: int, done: int, board: ProgressBoard) -> None:
        """Start at `done` of `total` steps."""
        self.label, self.total, self.done, self.first = label, total, done, done
        self._board = board
        self._start = self._spoken = board.clock()
        self._gap = _FIRST_LINE
        self._metrics = ""
        self._task = board.open(self) if board.mode == "bar" else None

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the most telling of some metrics beside the bar."""
        known = [k for name in _SHOWN for k in metrics if k == name or k.endswith(f"/{name}")]
        if known:
            self._metrics = f"{known[0].rsplit('/', 1)[-1]} {metrics[known[0]]:.3g}"

    def advance(self) -> None:
        """One step is done."""
        self.done += 1
        if self._task is not None:
            self._board.update(self, self._metrics)
        elif self._board.mode == "lines":
            now = self._board.clock()
            if now - self._spoken >= self._gap or (self.done == self.total and self._spoken > self._start):
                self._spoken = now
                self._gap = min(self._gap * 1.5, _LONGEST_GAP)
                self._board.say(self.line(now))

    def line(self, now: float) -> str:
        """The progress as one plain line."""
        elapsed = now - self._start
        left = elapsed / max(self.done - self.first, 1) * (self.total - self.done)
        parts = [f"{self.label} {self.done}/{self.total}", self._metrics, f"{duration(elapsed)} elapsed"]
        if self.done < self.total:
            parts.append(f"{duration(left)} left")
        return ", ".join(p for p in parts if p)

    def close(self) -> None:
        """The loop is over."""
        if self._task is not None:
            self._board.remove(self)


class ProgressBoard:
    """Where all of a process's bars are drawn."""

    def __init__(
        self, mode: Mode = "auto", *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Choose the mode.

        Args:
            mode: "auto" draws bars in a terminal and lines elsewhere.
            console: where to draw; stderr by default.
            clock: seconds, for tests.
        """
        self.console = console or Console(file=sys.stderr)
        self.mode: Mode = ("bar" if self.console.is_terminal else "lines") if mode == "auto" else mode
        self.clock = clock
        self.current: Bar | None = None
        self._live: Progress | None = None
        self._ids: dict[Bar, int] = {}

    def say(self, text: str) -> None:
        """A line for the person watching."""
        if self.mode != "quiet":
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def track(self, label: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar for the length of a `with` block."""
        outer = self.current
        self.current = bar = Bar(label, total, done, self)
        try:
            yield bar
        finally:
            bar.close()
            self.current = outer

    def open(self, bar: Bar) -> int:
        """Draw a bar (bar mode)."""
        if self._live is None:
            self._live = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
                TextColumn("{task.fields[metrics]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                console=self.console, transient=True,
                refresh_per_second=4,
            )  # fmt: skip
            self._live.start()
        self._ids[bar] = self._live.add_task(bar.label, total=bar.total, completed=bar.done, metrics="")
        return self._ids[bar]

    def update(self, bar: Bar, metrics: str) -> None:
        """Redraw a bar (bar mode)."""
        if self._live is not None:
            self._live.update(self._ids[bar], completed=bar.done, metrics=metrics)  # type: ignore[arg-type]

    def remove(self, bar: Bar) -> None:
        """Take a bar away (bar mode); the last one ends the drawing."""
        if self._live is None or bar not in self._ids:
            return
        self._live.remove_task(self._ids.pop(bar))  # type: ignore[arg-type]
        if not self._ids:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        """Stop drawing, also when a loop was left by an exception."""
        self._ids.clear()
        if self._live is not None:
            self._live.stop()
            self._live = None


def duration(seconds: float) -> str:
    """Seconds as people say them: 8 s, 3 min 20 s, 2 h 5 min."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s" if s % 60 and s < 600 else f"{round(s / 60)} min"
    return f"{s // 3600} h {s % 3600 // 60} min"
