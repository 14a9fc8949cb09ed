"""The sandbox that untrusted programs run in.

Isolation is the operating system's: user, mount, network and process-id namespaces, a file system that is read-only, a
private /tmp of bounded size, a filter of system calls, limits on everything (`limits.Limits`). Where it is not to be
had, a sandbox refuses to work and names what to install; only `unsafe=True` runs programs without it.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rlready.errors import UserError
from rlready.rewards.code.backends import REMEDY, SEARCH, BoxBroken, find_bubblewrap, has_sandlock
from rlready.rewards.code.boxes import Box, FreshBox, WarmBox, memory_file
from rlready.rewards.code.inside import image
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.loop import Job, Loop, run_once

_LOCK = threading.Lock()
_FOUND: dict[int, str] = {}


class Sandbox:
    """How programs are isolated, and what they may use.

    Args:
        limits: bounds on a program.
        unsafe: run programs with no isolation at all; see the module.
        read_only: folders that programs may read besides the system's.
    """

    def __init__(
        self, limits: Limits | None = None, unsafe: bool = False, read_only: Sequence[str | Path] = ()
    ) -> None:
        """Note the settings; nothing is started.

        Raises:
            UserError: a folder does not exist, or lies where programs have one of their own.
        """
        self.limits = limits or Limits()
        self.unsafe = unsafe
        self.read_only = tuple(str(Path(p).resolve()) for p in read_only)
        for folder in self.read_only:
            if not Path(folder).exists():
                raise UserError(f"read_only: {folder} does not exist.")
            if folder in ("/", "/tmp") or folder.startswith(("/tmp/", "/proc", "/dev", "/sys")):
                raise UserError(f"read_only: {folder} cannot be shown; programs have a {folder[:5]} of their own.")
        if unsafe:
            warnings.warn(
                "Programs run WITHOUT isolation (unsafe): they can read and change whatever this user can, and use the "
                "network. Use it only for programs that you trust.",
                RuntimeWarning,
                stacklevel=2,
            )

    @cached_property
    def kind(self) -> str:
        """What isolates programs: "bubblewrap" (warm), "bubblewrap, a start for each", "sandlock" or "unsafe".

        Raises:
            UserError: nothing does; the text says what to install.
        """
        if self.unsafe:
            return "unsafe"
        with _LOCK:
            if os.getpid() not in _FOUND:
                _FOUND[os.getpid()] = _find()
            return _FOUND[os.getpid()]

    def box(self, programs: Sequence[str] = (), parallel: int = 1) -> Box:
        """A new box.

        Args:
            programs: names of the programs that will be started.
            parallel: how many tests will run at a time.

        Raises:
            UserError: programs cannot be isolated here.
            BoxBroken: the sandbox does not start.
        """
        if self.kind == "bubblewrap":
            return WarmBox(find_bubblewrap() or "bwrap", self.limits, parallel, programs, self.read_only)
        return FreshBox(self.kind.partition(",")[0], self.limits, programs, self.read_only)


def _find() -> str:
    """The best isolation that works here; each is tried."""
    if not sys.platform.startswith("linux"):
        raise UserError(
            "Programs can be isolated on Linux only. To run them without any isolation all the same, say "
            "--unsafe-no-sandbox (in Python: Sandbox(unsafe=True))."
        )
    why = []
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        why.append("bubblewrap is not installed")
    else:
        try:
            WarmBox(bubblewrap, Limits(), 1, (), ()).close()
            return "bubblewrap"
        except BoxBroken as error:
            why.append(str(error))
        reason = _trial("bubblewrap")
        if not reason:
            return "bubblewrap, a start for each"
        why.append(reason)
    if has_sandlock():
        reason = _trial("sandlock")
        if not reason:
            return "sandlock"
        why.append(f"sandlock: {reason}")
    raise UserError(f"Programs cannot be isolated here: {'; '.join(why)}. {REMEDY}.")


def _trial(kind: str) -> str:
    """What goes wrong when a program is run that does nothing; "" where nothing does."""
    box = FreshBox(kind, Limits(), (), ())
    picture = memory_file(image.pack({"nothing": b""}))
    loop = Loop(box)
    try:
        outcome = run_once(loop, loop.open(Job(("true",), "execute", "nothing", picture, 20.0, Limits())), b"")
        said = outcome.stderr.decode("utf-8", "replace").strip() or box.last_words[-300:]
        return "" if outcome.code == 0 else f"{kind} does not run a program ({outcome.how}) {said}".strip()
    except BoxBroken as error:
        return str(error)
    finally:
        loop.close()
        os.close(picture)


def installed(program: str) -> bool:
    """Whether a program is found where the sandbox looks."""
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in SEARCH.split(":"))
