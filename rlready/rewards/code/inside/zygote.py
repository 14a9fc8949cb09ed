"""The warm process of a sandbox: makes cells on request and ends them. It never sees a program, an input or an output.

Messages over its socket, one JSON object each (a packet is a message, so their length is bounded):

    in   {"op": "open", "id": 7, "memory": bytes, "tmp": bytes, "functions": false} + the cell's own socket
         {"op": "kill", "id": 7}
    out  {"ready": true, "nested": true, ...}   {"id": 7, "over": "memory"}     {"gone": 7}
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

from . import cell, kernel, watch

TYPE_CHECKING = False  # what is imported makes every fork dearer, and typing is much
if TYPE_CHECKING:
    from typing import Any, NoReturn

_WATCH_SECONDS = 0.05


class Zygote:
    """Makes cells and ends them."""

    def __init__(self, control: socket.socket) -> None:
        """Serve on this socket."""
        self.control = control
        self.cells: dict[int, tuple[int, int]] = {}  # id: pid, memory in bytes
        self.wake_in, self.wake_out = os.pipe()
        os.set_blocking(self.wake_out, False)
        os.set_blocking(self.wake_in, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_out, warn_on_full_buffer=False)

    def tell(self, **message: object) -> None:
        """Say something; a listener that does not listen is not waited for."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def loop(self) -> None:
        """Serve until the other end is closed."""
        watched: list[Any] = [self.control, self.wake_in]
        while True:
            ready, _, _ = select.select(watched, [], [], _WATCH_SECONDS if self.cells else None)
            if self.wake_in in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_in, 4096)
                self.reap()
            if self.control in ready:
                message, fds = cell.receive(self.control)
                if not message:
                    return
                self.obey(message, fds)
            if not ready:
                self.look()

    def obey(self, message: dict[str, Any], fds: list[int]) -> None:
        """Open or end a cell."""
        if message["op"] == "kill":
            self.end(message["id"])
            return
        if message["functions"] and f"{__package__}.tester" not in sys.modules:
            from . import solution, tester  # noqa: F401  (once, and only where function tests are run)

            gc.freeze()
        try:
            pid = kernel.clone_cell()
            if pid == 0:
                self.become_cell(fds[0], message["tmp"])
            self.cells[message["id"]] = (pid, message["memory"])
        except OSError as error:
            self.tell(id=message["id"], over=f"no cell: {error}")
        for fd in fds:
            os.close(fd)

    def become_cell(self, fd: int, tmp: int) -> NoReturn:
        """What the child does."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            os.close(self.wake_in)
            os.close(self.wake_out)
            cell.serve(socket.socket(fileno=fd), tmp)
        finally:
            os._exit(0)

    def end(self, number: int) -> None:
        """End a cell with all that is in it, and say so when it is gone."""
        found = self.cells.pop(number, None)
        if found is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(found[0], 0)
        self.tell(gone=number)

    def reap(self) -> None:
        """Forget cells that ended by themselves."""
        for number, (pid, _) in list(self.cells.items()):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            del self.cells[number]

    def look(self) -> None:
        """End cells that hold more memory than they may."""
        old = {number: c for number, c in self.cells.items() if _works(c[0])}
        if not old:
            return
        processes = watch.table()
        for number, (pid, limit) in old.items():
            if watch.memory(pid, processes, limit) > limit:
                self.tell(id=number, over="memory")
                self.end(number)


def _works(pid: int) -> bool:
    """Whether a cell has a program in it; True where that is not known."""
    try:
        fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)
    except OSError:
        return True
    try:
        return bool(os.read(fd, 16))
    finally:
        os.close(fd)


def trial() -> str:
    """Whether cells can be made here: make one. What went wrong, or ""."""
    told_in, told_out = os.pipe()
    try:
        pid = kernel.clone_cell()
    except OSError as error:
        return str(error)
    if pid == 0:
        why = ""
        try:
            kernel.enter_cell(1 << 20)
        except BaseException as error:
            why = str(error)
        os.write(told_out, why.encode())
        os._exit(0)
    os.close(told_out)
    os.waitpid(pid, 0)
    with open(told_in, encoding="utf-8") as told:
        return told.read()


def main(fd: int) -> None:
    """Serve on the socket with this number until it is closed."""
    os.environ.pop("PWD", None)  # bubblewrap's own
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    why = trial()
    zygote = Zygote(control)
    builtins.exit = builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    gc.collect()
    gc.freeze()
    zygote.tell(ready=True, nested=not why, why=why, python=list(sys.version_info[:3]))
    zygote.loop()


def main_cell(fd: int) -> None:
    """Serve as the only cell of a sandbox, on the socket with this number."""
    os.environ.pop("PWD", None)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    cell.serve(sock)
