"""Becoming the program that is judged: what a fork of the cell's first process does, and never returns from.

A Python program is run in the fork itself, which saves the start of an interpreter; the process is as fresh as a new
one in all that a program can notice, and knows nothing that a new one would not know.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import types

from . import kernel

TYPE_CHECKING = False  # what is imported makes every fork dearer, and typing is much
if TYPE_CHECKING:
    from typing import Any, NoReturn

OURS = ("inside",)
_KEPT_FROM = 40


def become(role: str, file: str, streams: tuple[int, int, int], extra: list[int], alone: bool) -> NoReturn:
    """Turn this process into the program: a plain run, or one side of a function test; see `Cell` for `alone`."""
    code = 1
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM) for fd in extra]
        os.closerange(3, _KEPT_FROM)
        try:
            kernel.drop_capabilities()
        except OSError:
            if alone:  # else another sandbox forbids the call
                raise
        kernel.LIBC.prctl(4, 1, 0, 0, 0)  # its own memory is no secret
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # as Python has it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _streams()
        if role == "python":
            code = run(file)
        elif role == "solution":
            from . import solution

            code = solution.serve(file, kept[0])
        else:
            from . import tester

            code = tester.serve(file, kept[0], kept[1])
    except BaseException as error:
        with contextlib.suppress(BaseException):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        end(code)


def _streams() -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc] # noqa: SIM115


def end(code: int) -> NoReturn:
    """End as the interpreter does: threads, exit functions, buffers; then at once."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit = sys.modules.get("atexit")
        if atexit is not None:
            atexit._run_exitfuncs()
    except BaseException:
        code = code or 1
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException:
        code = code or 120
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(code)


def forget_harness() -> None:
    """The modules of the harness, and the folder they came from, are not the program's."""
    for name in [n for n in sys.modules if n.split(".")[0] in OURS]:
        del sys.modules[name]


def new_main(name: str, file: str) -> dict[str, Any]:
    """The namespace of a fresh module that is registered under its name."""
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    return module.__dict__


def run(file: str) -> int:
    """Run a Python file as the main program; its exit status."""
    forget_harness()
    sys.argv[:] = [file]
    frame: types.FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(1000 + depth)
    space = new_main("__main__", file)
    return execute(file, space)[0]


def execute(file: str, space: dict[str, Any]) -> tuple[int, bool]:
    """Run a Python file in a namespace; its exit status, and whether it ran to its end."""
    try:
        with open(file, "rb") as source:
            text = source.read()
        code = compile(text, file, "exec", dont_inherit=True)
        exec(code, space)
    except SystemExit as error:
        if error.code is None:
            return 0, False
        if isinstance(error.code, int):
            return error.code & 0xFF, False
        sys.stderr.write(f"{error.code}\n")
        return 1, False
    except BaseException as error:
        trace = error.__traceback__
        shown = trace.tb_next if trace is not None else None
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error, shown)
        return 1, False
    return 0, True
