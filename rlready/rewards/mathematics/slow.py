"""SymPy as the last resort, in a process of its own with a deadline.

The tree is sent as JSON and built into SymPy's objects node by node; no text is ever parsed there. One helper process
serves all threads of this one, one question at a time; it starts on the first question and ends with this process.
Past the deadline it is ended, and the next question gets a new one. It needs no signals and no event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from rlready.rewards.mathematics.tree import Node, walk

_START_SECONDS = 20.0
_MAX_NODES = 120
_REMEMBERED = 1024
_MAX_DIGITS = 2000


class Prover:
    """Asks SymPy whether two trees are equal; True, False, or None where it does not say in time."""

    def __init__(self, deadline: float = 5.0) -> None:
        """Set the seconds that one question may take; the first one waits for the start of the helper as well."""
        self.deadline = deadline
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._owner = 0
        self._known: dict[str, bool | None] = {}  # silence too, so that a hard question costs its time once

    def __call__(self, gold: Node, given: Node) -> bool | None:
        """Whether the two are equal; None where that is not decided."""
        if len(walk(gold)) + len(walk(given)) > _MAX_NODES:
            return None
        try:
            line = json.dumps([_plain(gold), _plain(given)])
        except ValueError:
            return None
        if line in self._known:
            return self._known[line]
        if os.getpid() != self._owner:  # a forked child must not talk to its parent's helper
            self._lock, self._process, self._owner = threading.Lock(), None, os.getpid()
        if not self._lock.acquire(timeout=self.deadline * 4):
            return None
        try:
            reply = self._ask(line)
        finally:
            self._lock.release()
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[line] = reply
        return reply

    def _ask(self, line: str) -> bool | None:
        if (self._process is None or self._process.poll() is not None) and not self._start():
            return None
        process = self._process
        if process is None or process.stdin is None:
            return None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply = self._lines.get(timeout=self.deadline)
        except (queue.Empty, OSError, ValueError):
            self.close()
            return None
        return {"equal": True, "different": False}.get(reply.strip())

    def _start(self) -> bool:
        folder = os.path.dirname(os.path.abspath(__file__))
        command = [sys.executable, "-I", os.path.join(folder, "slow_worker.py"), str(self.deadline)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None
            return False
        self._lines = queue.Queue()
        threading.Thread(target=_pump, args=(self._process, self._lines), daemon=True).start()
        atexit.register(self.close)
        try:
            return self._lines.get(timeout=_START_SECONDS).strip() == "ready"
        except queue.Empty:
            self.close()
            return False

    def close(self) -> None:
        """End the helper process."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.wait(timeout=5)


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout or ():
            lines.put(line)
    lines.put("closed")


def _plain(node: Node) -> list[Any]:
    """A tree as JSON."""
    value = node.value
    if node.op == "num":
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_DIGITS * 3:
            raise ValueError("a number has too many digits")
        value = [str(value.numerator), str(value.denominator)]
    elif not isinstance(value, str | None):
        raise ValueError(f"a {node.op} is no expression")
    return [node.op, value, [_plain(a) for a in node.args]]


_SHARED = Prover()


def prove(gold: Node, given: Node) -> bool | None:
    """Ask the process-wide prover."""
    return _SHARED(gold, given)
