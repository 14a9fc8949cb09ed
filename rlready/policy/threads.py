"""How many torch threads to use, found by a short measurement.

For tiny models on a shared machine the best number is often one, and the worst is ten times slower: OpenMP's threads
wait for each other by spinning. So the number is measured at start-up; `RLREADY_THREADS` or an argument overrides it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from rlready.errors import UserError

VARIABLE = "RLREADY_THREADS"
_BUDGET_S = 0.8
_MARGIN = 0.9


@dataclass(frozen=True)
class ThreadChoice:
    """What was chosen, and why.

    Attributes:
        threads: the number that was set.
        reason: "argument", "environment" or "measured".
        seconds: time of the measured piece of work by number of threads; empty where nothing was measured.
    """

    threads: int
    reason: str
    seconds: dict[int, float]

    def __str__(self) -> str:
        """One line for people."""
        if self.reason != "measured":
            return f"{self.threads} torch thread{'s' * (self.threads != 1)} ({self.reason})"
        times = ", ".join(f"{n}: {s * 1e3:.1f} ms" for n, s in self.seconds.items())
        return f"{self.threads} torch thread{'s' * (self.threads != 1)} (measured {times}; {VARIABLE} overrides)"


def choose_threads(threads: int | None = None, measure: Callable[[], object] | None = None) -> ThreadChoice:
    """Set the number of torch threads: the argument's, else `RLREADY_THREADS`, else the fastest measured.

    More threads must be at least 10% faster than fewer to be chosen. The measurement takes under a second.

    Args:
        threads: the number to use; None lets the environment or the measurement decide.
        measure: the piece of work that is timed; a small forward and backward pass by default.

    Raises:
        UserError: the number asked for is not a positive whole number.
    """
    given, reason = threads, "argument"
    if given is None and os.environ.get(VARIABLE):
        reason = "environment"
        try:
            given = int(os.environ[VARIABLE])
        except ValueError:
            raise UserError(f"{VARIABLE} is {os.environ[VARIABLE]!r}; it must be a whole number.") from None
    if given is not None:
        if given < 1:
            raise UserError(f"The number of torch threads is {given}; it must be at least 1.")
        torch.set_num_threads(given)
        return ThreadChoice(given, reason, {})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options = sorted({1, cores, *(2**i for i in range(1, cores.bit_length()) if 2**i < cores)})
    seconds: dict[int, float] = {}
    best = 1
    for n in options:
        torch.set_num_threads(n)
        seconds[n] = _time(measure or _work, _BUDGET_S / len(options))
        if seconds[n] < _MARGIN * seconds[best]:
            best = n
        elif seconds[n] > 3 * seconds[best]:
            break
    torch.set_num_threads(best)
    return ThreadChoice(best, "measured", seconds)


def _time(work: Callable[[], object], budget: float) -> float:
    """Median seconds of a piece of work, within a budget of seconds."""
    end = time.perf_counter() + budget
    work()
    times: list[float] = []
    while not times or (time.perf_counter() < end and len(times) < 50):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def _work() -> None:
    """A feed-forward block over 1,024 tokens of width 128, forward and backward, as in a tiny model."""
    x = torch.ones(1024, 128, requires_grad=True)
    up = torch.full((384, 128), 0.01, requires_grad=True)
    down = torch.full((128, 384), 0.01, requires_grad=True)
    for _ in range(2):
        F.linear(F.silu(F.linear(x, up)), down).sum().backward()  # type: ignore[no-untyped-call]
