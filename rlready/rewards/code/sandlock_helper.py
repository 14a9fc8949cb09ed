"""Starts one cell in sandlock: a process of its own, since sandlock supervises what it starts from within."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys


def main() -> int:
    """Start the command that follows the settings, and wait for it."""
    home, folder, memory_mb, processes, seen, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become ours, so that they can be ended
    sys.path.insert(0, home)
    sandlock = importlib.import_module("sandlock")

    system = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/sbin",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/R",
        "/proc/self",
    ]
    devices = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/proc/meminfo", "/proc/cpuinfo"]
    readable = [p for p in [*system, *devices, f"{folder}/harness", *seen.split(":")] if p and os.path.exists(p)]
    kept = {**os.environ, "HOME": f"{folder}/run", "TMPDIR": f"{folder}/run"}
    box = sandlock.Sandbox(
        fs_readable=readable,
        fs_writable=[f"{folder}/run", "/dev/null"],
        max_memory=f"{memory_mb}M",
        max_processes=int(processes),
        clean_env=True,
        env=kept,
        cwd=f"{folder}/run",
        no_coredump=False,
    )
    process = box.popen(command)
    process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
