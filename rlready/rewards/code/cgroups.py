"""A control group around a sandbox, where this process may make one: a second bound on memory and processes.

The limits of a cell (`inside.cell`) and the watch over its memory (`inside.zygote`) hold without it. Version 2 needs a
group that was delegated, as systemd does for a user's session; version 1 needs root, and there only processes are
bounded: its groups of memory belong to whoever supervises this process. Groups are made below the one that this process
is in, so nothing escapes a bound that holds for this process itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_NUMBER = itertools.count()
_NAME = re.compile(r"rlready-(\d+)-\d+")


class Group:
    """One group, or none where none can be had.

    Attributes:
        folders: what was made; empty where no group can be had.
    """

    def __init__(self, memory: int, processes: int) -> None:
        """Make a group with bounds on the bytes of memory and the number of processes."""
        self.folders: list[Path] = []
        name = f"rlready-{os.getpid()}-{next(_NUMBER)}"
        for parent, files in _parents():
            folder = parent / name
            try:
                folder.mkdir()
                self.folders.append(folder)
                for file in files:
                    (folder / file).write_text(str(memory if "memory" in file else processes))
            except OSError:  # not ours to make, or to set
                if folder in self.folders:
                    self.folders.remove(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def __bool__(self) -> bool:
        """Whether there is a group at all."""
        return bool(self.folders)

    def add(self, pid: int) -> None:
        """Put a process into the group; what it starts will be in it too."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.procs").write_text(str(pid))

    def remove(self, patience: float = 5.0) -> None:
        """End what is left in the group and remove it."""
        end = time.monotonic() + patience
        for folder in self.folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # the last process is still being buried
                    self._end(folder)
                    if time.monotonic() > end:
                        break
                    time.sleep(0.005)
                    continue
                break
        self.folders = []

    @staticmethod
    def _end(folder: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def _parents() -> list[tuple[Path, tuple[str, ...]]]:
    """Folders in which a group can be made, each with the bounds to be set there."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found: list[tuple[Path, tuple[str, ...]]] = []
    for _, names, path in lines:
        if "pids" in names.split(","):
            found.append((_ROOT / "pids" / path.lstrip("/"), ("pids.max",)))
    for _, names, path in lines:
        if names or found:
            continue
        own = _ROOT / path.lstrip("/")
        for folder in (own, own.parent):  # a group that holds processes hands on no controllers, its parent may
            with contextlib.suppress(OSError):
                controllers = (folder / "cgroup.subtree_control").read_text().split()
                if {"memory", "pids"} <= set(controllers) and os.access(folder, os.W_OK):
                    found.append((folder, ("memory.max", "pids.max")))
                    break
    for folder, _ in found:
        _sweep(folder)
    return found


def _sweep(folder: Path) -> None:
    """Remove groups of processes that ended without doing so."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            match = _NAME.fullmatch(entry.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                with contextlib.suppress(OSError):
                    entry.rmdir()
