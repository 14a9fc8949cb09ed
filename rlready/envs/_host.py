"""The child's side of `ProcessEnv`: a guard, and under it the process in which the environment lives.

Started as `python -m rlready.envs._host RPC_FD LIFE_FD`. Before anything heavy is imported it forks once. The first
process stays small and only *guards*: it waits until the environment's process ends or the parent's end of the life
pipe closes, which the system does however the parent ends, also by SIGKILL. Then it kills the environment's process
group and every descendant. It is single-threaded and runs nothing of the environment, so an environment that hangs,
stops itself or holds the interpreter lock cannot keep it from doing so. The second process imports the factory and
answers requests.

A request is (number, method, handle, arguments), a reply (number, kind, value) with kind "ok", "error" or "cannot
fork".
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """Fork into guard and host."""
    rpc, life = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(rpc, False)  # the environment's own children must not keep the line open
    os.set_inheritable(life, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # descendants that leave the group come to us when their parent dies
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(life)
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            _serve(rpc)
        os._exit(0)
    os.close(rpc)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    os._exit(_guard(pid, life))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _guard(pid: int, life: int) -> int:
    """Wait for the end of the host or of the parent; kill what is left. Returns the host's exit code (128 + signal)."""
    poller = select.poll()
    poller.register(life, select.POLLIN | select.POLLHUP)
    patience = 1000  # milliseconds
    if hasattr(os, "pidfd_open"):
        poller.register(os.pidfd_open(pid), select.POLLIN)
    else:
        patience = 50
    status: int | None = None
    while status is None:
        orphaned = any(fd == life for fd, _ in poller.poll(patience))
        if orphaned:
            break
        status, _ = _reap(pid)
    ended = _kill_all(pid)
    status = ended if status is None else status
    if status is None:
        return 128 + signal.SIGKILL
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _reap(pid: int) -> tuple[int | None, bool]:
    """Collect ended children, adopted ones too.

    Returns:
        The status of `pid` if it was among them, and whether any child is left.
    """
    found = None
    try:
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return found, True
            if child == pid:
                found = status
    except ChildProcessError:
        return found, False


def _kill_all(pid: int) -> int | None:
    """Kill the group and all descendants, generation by generation. Returns the host's status if it was collected."""
    status = None
    for _ in range(200):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        for child in _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        collected, left = _reap(pid)
        status = collected if status is None else status
        if not left:
            break
        time.sleep(0.005)
    return status


def _children() -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
    return []


def _serve(rpc: int) -> None:
    """Answer requests until the parent hangs up."""
    os.dup2(2, 1)  # what the environment prints must not end up in the parent's output
    with socket.socket(fileno=rpc) as line:
        from rlready.envs import wire

        host: _Host | None = None
        for payload in wire.frames(line):
            number, method, handle, arguments = wire.load_request(payload)
            try:
                if host is None:
                    host = _Host()
                kind, value = "ok", host.handle(method, handle, arguments)
            except NotImplementedError as error:
                kind, value = ("cannot fork" if method == "fork" else "error"), _words(error)
            except Exception as error:
                kind, value = "error", _words(error)
            try:
                reply = wire.dump((number, kind, value))
            except Exception as error:  # whatever the pickling of foreign objects raises
                reply = wire.dump((number, "error", f"the result cannot be sent: {_words(error)}"))
            line.sendall(reply)


def _words(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({os.path.basename(code.co_filename)} line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


class _Host:
    """The environments of this process by handle, and the loop that they run in."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._factory: Any = None
        self._envs: dict[int, Any] = {}

    def handle(self, method: str, handle: int, arguments: tuple[Any, ...]) -> Any:
        from rlready.envs.base import Env

        if method == "boot":
            from rlready.envs.wire import resolve

            self._factory = resolve(*arguments)
        if method in ("boot", "new"):
            env = self._factory()
            if not isinstance(env, Env):
                raise TypeError(f"the factory gave a {type(env).__name__}, not an Env")
            self._envs[handle] = env
            return None
        if method == "close":
            env = self._envs.pop(handle, None)
            return None if env is None else self._loop.run_until_complete(env.close())
        if method == "fork":
            self._envs[arguments[0]] = self._loop.run_until_complete(self._envs[handle].fork())
            return None
        return self._loop.run_until_complete(getattr(self._envs[handle], method)(*arguments))


if __name__ == "__main__":
    main()
