"""The first process of a cell: it sets the cell up and runs a program, for one test after another.

It is told what to do over a socket that the program never holds, and answers with how the program ended; what the
program prints goes straight to the outside. Before the next test, or the next program, everything that the program
started has ended. Where the program left a trace in its folders the cell says so and is given up; so a cell in which
another program runs is as it was when it was new.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket

from . import image, kernel, program

TYPE_CHECKING = False  # what is imported makes every fork dearer, and typing is much
if TYPE_CHECKING:
    from typing import Any

_CLOSE_ON_EXEC = 0x40000000
_DEFAULT_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD]
_MESSAGE = 1 << 16


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and the files that came with it; an empty message at the end."""
    data, fds, _, _ = socket.recv_fds(sock, _MESSAGE, 8, _CLOSE_ON_EXEC)
    return (json.loads(data) if data else {}), list(fds)


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a message; nobody may be listening any more."""
    with contextlib.suppress(OSError):
        sock.send(json.dumps(message).encode())


def serve(sock: socket.socket, tmp: int = 0) -> None:
    """Serve until the socket is closed at the other end.

    Args:
        sock: the socket.
        tmp: bytes of /tmp where this process was cloned into namespaces of its own, which are set up before a program
            is known; else 0.
    """
    try:
        if tmp:
            kernel.enter_cell(tmp)
        spec, fds = receive(sock)
        if not spec:
            return
        cell = Cell(spec, fds)
    except OSError as error:
        send(sock, {"failed": f"the cell could not be set up: {error}"})
        return
    while True:
        message, fds = receive(sock)
        if not message:
            return
        if message["op"] == "pack":
            why = image.pack_folder(cell.place, fds[0], spec["limits"]["file"])
            send(sock, {"error": why})
        elif message["op"] == "load":
            try:
                cell.load(message, fds[0])
            except OSError as error:
                send(sock, {"failed": f"a program could not be put into its cell: {error}"})
                return
        else:
            send(sock, cell.run(message, fds))
        for fd in fds:
            os.close(fd)


class Cell:
    """One cell.

    Args:
        spec: `alone` (every process that it can see, but the init above it, belongs to the program), `place` (the
            working folder), `limits`, `argv`, `file`.
        fds: the image of the program, and where its standard output and error go.
    """

    def __init__(self, spec: dict[str, Any], fds: list[int]) -> None:
        """Set the cell up; nothing can be undone afterwards."""
        picture, self.out, self.err = fds
        limits = spec["limits"]
        self.place: str = spec["place"]
        self.alone = bool(spec["alone"]) and os.getpid() <= 2  # only in a process-id namespace of our own
        os.makedirs(os.path.dirname(self.place), exist_ok=True)
        with contextlib.suppress(OSError):
            kernel.write("/proc/self/oom_score_adj", "1000")
        _limit(limits)
        if self.alone:
            kernel.no_new_privileges()
            kernel.filter_calls()
            kernel.hide_memory()
        else:  # another sandbox around this process may have done it, and forbid it
            for call in (kernel.adopt_orphans, kernel.no_new_privileges, kernel.hide_memory):
                with contextlib.suppress(OSError):
                    call()
        self.load(spec, picture)
        os.close(picture)

    def load(self, message: dict[str, Any], picture: int) -> None:
        """Put a program into its folder, which is made anew."""
        self.argv: list[str] = message["argv"]
        self.file: str = message["file"]
        os.chdir("/")
        with contextlib.suppress(FileNotFoundError):
            image.remove(self.place)
        os.mkdir(self.place, 0o700)
        os.chdir(self.place)
        image.unpack(picture, self.place)
        self.before = self._files()

    def run(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the program once and end all that it started; how it ended."""
        try:
            child = self._start(message, fds)
        except OSError as error:
            return {"failed": f"{self.argv[0]} could not be started: {error.strerror}"}
        while True:
            pid, status, usage = os.wait4(-1, 0)
            if pid == child:
                break
        self._end_all(child)
        used = usage.ru_utime + usage.ru_stime
        return {"status": status, "cpu": used, "memory": usage.ru_maxrss * 1024, "clean": self._files() == self.before}

    def _start(self, message: dict[str, Any], fds: list[int]) -> int:
        role = message["role"]
        if role == "execute":
            actions = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate((fds[0], self.out, self.err))]
            return os.posix_spawnp(
                self.argv[0], self.argv, os.environ, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS
            )
        child = os.fork()
        if child == 0:
            program.become(role, self.file, (fds[0], self.out, self.err), fds[1:], self.alone)
        return child

    def _end_all(self, child: int) -> None:
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait4(-1, 0)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        end_children()

    def _files(self) -> list[tuple[str, int, int, int]]:
        """What lies in the working folder and beside it, so that a change is seen."""
        found: list[tuple[str, int, int, int]] = []
        for folder in ("/tmp", self.place) if self.alone else (self.place,):
            stat = os.stat(folder, follow_symlinks=False)
            size = len(os.listdir(folder)) + len(os.listxattr(folder, follow_symlinks=False))
            found.append((folder, stat.st_ino, stat.st_mode, size))
        with os.scandir(self.place) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                found.append((entry.name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return sorted(found)


def end_children() -> None:
    """End all children of this process and those that it adopts, until none is left."""
    for _ in range(1000):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _limit(limits: dict[str, int]) -> None:
    kinds = {
        "address": resource.RLIMIT_AS,
        "cpu": resource.RLIMIT_CPU,
        "processes": resource.RLIMIT_NPROC,
        "file": resource.RLIMIT_FSIZE,
        "open_files": resource.RLIMIT_NOFILE,
        "stack": resource.RLIMIT_STACK,
        "core": resource.RLIMIT_CORE,
        "locked": resource.RLIMIT_MEMLOCK,
    }
    for name, kind in kinds.items():
        if name not in limits:
            continue
        hard = resource.getrlimit(kind)[1]
        value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
        above = value + 1 if name == "cpu" and hard == resource.RLIM_INFINITY else value
        resource.setrlimit(kind, (value, above))
