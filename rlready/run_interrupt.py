"""Ctrl-C: once finishes the step and saves, twice leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed and the run stopped in good order; the message says how to go on."""


class Interrupts:
    """Counts Ctrl-C while a loop runs. Outside of the main thread, where no handler can be set, it does nothing."""

    def __init__(self, safe: Callable[[], str]) -> None:
        """Give what says, in a sentence, what is saved."""
        self._safe = safe
        self._count = 0
        self._old: Any = None

    @property
    def asked(self) -> bool:
        """Whether the loop was asked to stop."""
        return self._count > 0

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Take over Ctrl-C for a block; an inner block leaves it to the outer one."""
        if threading.current_thread() is not threading.main_thread() or self._old is not None:
            yield
            return
        self._count = 0
        self._old = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give Ctrl-C back, if it was taken."""
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)
            self._old = None

    def _handle(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt(f"Left at once. {self._safe()}")
        # A handler may cut into any write of the program, so it speaks by one write of its own.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), b"\nFinishing this step, then saving. Ctrl-C again leaves at once.\n")
