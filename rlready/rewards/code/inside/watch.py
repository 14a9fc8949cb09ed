"""How much memory a process and all its descendants hold, read from /proc."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")


def table() -> dict[int, tuple[int, int]]:
    """Of each process that is seen: its parent, and its resident memory in bytes."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = (int(fields[1]), int(fields[21]) * _PAGE)
        except (OSError, IndexError, ValueError):  # it ended meanwhile
            continue
    return found


def family(root: int, processes: dict[int, tuple[int, int]]) -> list[int]:
    """The process and its descendants."""
    below: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        below.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid in processes:
            found.append(pid)
            todo.extend(below.get(pid, ()))
    return found


def memory(root: int, processes: dict[int, tuple[int, int]], limit: int) -> int:
    """Bytes held by a process and its descendants; shared pages are divided up where the sum is over the limit."""
    members = family(root, processes)
    total = sum(processes[pid][1] for pid in members)
    return total if total <= limit else sum(_share(pid, processes[pid][1]) for pid in members)


def _share(pid: int, resident: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return resident
