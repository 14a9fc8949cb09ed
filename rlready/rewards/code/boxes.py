"""A box: one sandbox that runs one program at a time, in cells that are opened and ended from here.

A warm box is one bubblewrap with the zygote in it, which clones a cell in under a millisecond. Where it cannot (no
nested user namespaces), or isolation is another, each cell is a start of its own: slower, and the same to the caller.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rlready.rewards.code.backends import (
    BoxBroken,
    Start,
    bubblewrap_start,
    find_bubblewrap,
    harness_files,
    sandlock_start,
    unsafe_start,
)
from rlready.rewards.code.cgroups import Group
from rlready.rewards.code.inside import watch
from rlready.rewards.code.limits import Limits

_START_SECONDS = 30.0
_END_SECONDS = 5.0
_NUMBERS = itertools.count(1)


class _Launcher:
    """Starts processes from one thread that never ends: a sandbox ends with the thread that started it."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._owner = 0
        self._lock = threading.Lock()

    def call(self, fn: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """The result of a function, called in the thread."""
        with self._lock:
            if self._owner != os.getpid():
                self._asked, self._owner = queue.SimpleQueue(), os.getpid()
                threading.Thread(target=self._work, args=(self._asked,), daemon=True, name="rlready-sandbox").start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._asked.put((future, fn))
        return future.result(timeout=_START_SECONDS)

    @staticmethod
    def _work(asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]) -> None:
        while True:
            future, fn = asked.get()
            try:
                future.set_result(fn())
            except BaseException as error:
                future.set_exception(error)


_LAUNCHER = _Launcher()


def _memory_file(content: bytes, name: str) -> int:
    fd = os.memfd_create(name)
    if content:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def memory_file(content: bytes) -> int:
    """A file in memory with this content, to be read from its beginning."""
    return _memory_file(content, "input")


def launch(start: Start, fds: Sequence[int], stdin: int | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process with these descriptors; it, and the file that holds what it says to standard error."""
    said = _memory_file(b"", "errors")
    options: dict[str, Any] = {}
    if start.user is not None:
        options = {"user": start.user, "group": start.user, "extra_groups": []}

    def go() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            start.command,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=tuple(fds),
            env=start.environment,
            start_new_session=True,
            cwd="/",
            **options,
        )

    try:
        return _LAUNCHER.call(go), said
    except (OSError, subprocess.SubprocessError) as error:
        os.close(said)
        raise BoxBroken(f"{start.command[0]} does not start: {error}") from error


def _read_all(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.pread(fd, 4000, 0).decode("utf-8", "replace").strip()
    return ""


class Box:
    """What runs cells; see the module.

    Attributes:
        nested: cells are made within a warm sandbox.
        alone: cells have process ids of their own, so whatever a program starts can be ended.
        control: descriptor on which the box may say something, or None.
        kept: lanes (`loop.Lane`) whose cells are as they were when they were new, for other programs.
    """

    nested = False
    alone = True
    control: int | None = None

    def __init__(self) -> None:
        """Make a box without cells."""
        self.kept: list[Any] = []

    def open_cell(self, limits: Limits, functions: bool) -> tuple[socket.socket, int, str]:
        """Make a cell; the socket to it, its number, and its working folder.

        Args:
            limits: of the programs in it.
            functions: whether it is for function tests.

        Raises:
            BoxBroken: the sandbox does not work.
        """
        raise NotImplementedError

    def end_cell(self, number: int) -> None:
        """End a cell with all that is in it; it is gone on return.

        Raises:
            BoxBroken: it does not go.
        """
        raise NotImplementedError

    def over(self) -> Mapping[int, str]:
        """Why cells were ended by the box itself, as far as that is known: by number."""
        return {}

    def leave_cell(self, number: int) -> None:
        """Let go of a cell in which nothing runs, and whose socket was closed."""
        self.end_cell(number)

    def close(self) -> None:
        """End everything."""


class WarmBox(Box):
    """One bubblewrap with a zygote in it."""

    nested = True

    def __init__(
        self, bubblewrap: str, limits: Limits, parallel: int, programs: Sequence[str], read_only: Sequence[str]
    ) -> None:
        """Start it.

        Raises:
            BoxBroken: it does not start, or cannot make cells.
        """
        super().__init__()
        self._over: dict[int, str] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = ours
        self._spare: tuple[Limits, bool, socket.socket, int] | None = None
        self.control = ours.fileno()
        self._group = Group(parallel * limits.memory + (512 << 20), parallel * (limits.processes + 8) + 32)
        files = {name: _memory_file(content, name) for name, content in harness_files().items()}
        info, told, held, free = *os.pipe(), *os.pipe()
        fds = [*files.values(), theirs.fileno(), told, held]
        block = (told, held) if self._group else None
        start = bubblewrap_start(
            bubblewrap, files, "warm", theirs.fileno(), programs=programs, read_only=read_only, block=block
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._said = -1
        self._owner = os.getpid()
        try:
            self._process, self._said = launch(start, fds)
            os.close(told)
            if block:
                self._join(info)
                os.write(free, b"1")
            theirs.close()  # so that the end of the other side is seen
            self._greet()
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            for fd in (*files.values(), info, held, free):
                os.close(fd)

    def _join(self, info: int) -> None:
        """Put bubblewrap's child into the group before it goes on."""
        with contextlib.suppress(ValueError, KeyError, OSError):
            if select.select([info], [], [], _START_SECONDS)[0]:
                self._group.add(int(json.loads(os.read(info, 4096))["child-pid"]))

    def _greet(self) -> None:
        message = self._receive(_START_SECONDS)
        if message is None:
            raise BoxBroken(f"bubblewrap does not start: {_read_all(self._said) or 'it says nothing'}")
        if not message.get("nested"):
            raise BoxBroken(f"no cells can be made in bubblewrap: {message.get('why')}")
        self.python = tuple(message["python"])

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None at the end, and where none comes in time."""
        if self._owner != os.getpid():
            raise BoxBroken("the box belongs to another process")
        if not select.select([self._sock], [], [], max(0.0, seconds))[0]:
            return None
        try:
            data = self._sock.recv(1 << 16)
            message: dict[str, Any] | None = json.loads(data) if data else None
        except (OSError, ValueError):
            return None
        return message

    def open_cell(self, limits: Limits, functions: bool) -> tuple[socket.socket, int, str]:
        """A cell that the zygote made ahead, and another is made while this one works."""
        if self._owner != os.getpid():
            raise BoxBroken("the box belongs to another process")
        spare, self._spare = self._spare, None
        if spare is None or spare[:2] != (limits, functions):
            if spare is not None:
                spare[2].close()
            spare = self._make(limits, functions)
        self._spare = self._make(limits, functions)
        return spare[2], spare[3], "/tmp/run"

    def _make(self, limits: Limits, functions: bool) -> tuple[Limits, bool, socket.socket, int]:
        number = next(_NUMBERS)
        message = {"op": "open", "id": number, "memory": limits.memory, "tmp": limits.tmp_mb << 20}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            text = json.dumps({**message, "functions": functions}).encode()
            socket.send_fds(self._sock, [text], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise BoxBroken(f"the sandbox ended: {error}") from error
        finally:
            theirs.close()
        return limits, functions, ours, number

    def leave_cell(self, number: int) -> None:
        """The cell ends by itself when it sees that its socket was closed."""

    def end_cell(self, number: int) -> None:
        """Ask the zygote to end it, and wait until it says so."""
        try:
            self._sock.send(json.dumps({"op": "kill", "id": number}).encode())
        except OSError as error:
            raise BoxBroken(f"the sandbox ended: {error}") from error
        end = time.monotonic() + _END_SECONDS
        while True:
            message = self._receive(end - time.monotonic())
            if message is None:
                raise BoxBroken("a cell could not be ended")
            if message.get("gone") == number:
                return
            self._note(message)

    def over(self) -> Mapping[int, str]:
        """What the zygote said of its own accord."""
        while select.select([self._sock], [], [], 0)[0]:
            message = self._receive(0)
            if message is None:
                raise BoxBroken("the sandbox ended")
            self._note(message)
        return self._over

    def _note(self, message: dict[str, Any]) -> None:
        if "over" in message:
            self._over[message["id"]] = message["over"]

    def close(self) -> None:
        """End the sandbox with all cells."""
        while self.kept:
            self.kept.pop().end()
        self._sock.close()
        if self._spare is not None:
            self._spare[2].close()
            self._spare = None
        if self._owner != os.getpid():
            return
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            os.close(self._said)
        self._group.remove()


class FreshBox(Box):
    """A start for each cell: bubblewrap without nested namespaces, sandlock, or no isolation at all."""

    def __init__(self, kind: str, limits: Limits, programs: Sequence[str], read_only: Sequence[str]) -> None:
        """Note how cells are made; none is started."""
        super().__init__()
        self.kind, self.limits, self.programs, self.read_only = kind, limits, programs, read_only
        self.alone = kind == "bubblewrap"
        self._cells: dict[int, tuple[subprocess.Popen[bytes], int, str]] = {}
        self._over: dict[int, str] = {}
        self._looked = 0.0
        self.last_words = ""  # what the last sandbox that ended said to standard error

    def open_cell(self, limits: Limits, functions: bool) -> tuple[socket.socket, int, str]:
        """Start a sandbox for one cell: in bubblewrap with its own /tmp, else with a folder made for it."""
        folder = "" if self.kind == "bubblewrap" else tempfile.mkdtemp(prefix="rlready-run-")
        ours, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files: dict[str, int] = {}
        stdin = None
        try:
            if self.kind == "bubblewrap":
                files = {name: _memory_file(content, name) for name, content in harness_files().items()}
                start = bubblewrap_start(
                    find_bubblewrap() or "bwrap", files, "cell", sock.fileno(),
                    programs=self.programs, read_only=self.read_only, tmp=limits.tmp_mb << 20,
                )  # fmt: skip
            elif self.kind == "sandlock":
                start = sandlock_start(folder, limits.memory_mb, limits.processes + 2, self.programs)
                _copy_harness(folder, start.user)
                stdin = sock.fileno()
            else:
                start = unsafe_start(sock.fileno())
            process, said = launch(start, [*files.values(), sock.fileno()], stdin)
        except BaseException:
            ours.close()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            sock.close()
            for fd in files.values():
                os.close(fd)
        number = next(_NUMBERS)
        self._cells[number] = (process, said, folder)
        return ours, number, f"{folder}/run" if folder else "/tmp/run"

    def end_cell(self, number: int) -> None:
        """End the sandbox and all that it started."""
        process, said, folder = self._cells.pop(number)
        if self.kind != "bubblewrap":
            end_family(process.pid)
        process.kill()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BoxBroken("a cell could not be ended") from error
        finally:
            self.last_words = _read_all(said)
            os.close(said)
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def over(self) -> Mapping[int, str]:
        """End cells that hold too much memory; asked often, it looks every tenth of a second."""
        now = time.monotonic()
        if self._cells and now > self._looked + 0.1:
            self._looked = now
            processes = watch.table()
            for number, (process, _, _) in self._cells.items():
                if watch.memory(process.pid, processes, self.limits.memory) > self.limits.memory:
                    self._over[number] = "memory"
                    for pid in reversed(watch.family(process.pid, processes)):
                        with contextlib.suppress(OSError):
                            os.kill(pid, signal.SIGKILL)
        return self._over

    def close(self) -> None:
        """End all cells."""
        for number in list(self._cells):
            with contextlib.suppress(BoxBroken):
                self.end_cell(number)


def end_family(root: int) -> None:
    """End all descendants of a process, which adopts those whose parent ended, until none is left; not itself."""
    for _ in range(200):
        members = [pid for pid in watch.family(root, watch.table()) if pid != root]
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _copy_harness(folder: str, user: int | None) -> None:
    inside = f"{folder}/harness/inside"
    os.makedirs(inside)
    for name, content in harness_files().items():
        with open(f"{inside}/{name}", "wb") as file:
            file.write(content)
    os.mkdir(f"{folder}/run")
    if user is not None:
        os.chmod(folder, 0o711)
        os.chown(f"{folder}/run", user, user)
