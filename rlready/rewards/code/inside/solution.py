"""The side of a function test on which the program runs: it is loaded as a module, and its functions are called.

The program shares this process, so nothing here is trusted: it can at most answer with values of its own making.
"""

from __future__ import annotations

import io
import sys
import types
from typing import Any

from . import program
from .peer import Peer
from .wire import Encoder, Ended, Stream, WireError

_LARGEST = 1 << 20


class _Printed(io.TextIOWrapper):
    """Standard output that is handed over with each answer."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)

    def take(self) -> str:
        """What was printed since the last time."""
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        text = held.getvalue()[:_LARGEST].decode("utf-8", "replace")
        held.seek(0)
        held.truncate()
        return text


def serve(file: str, fd: int) -> int:
    """Load the program and answer calls until the tests end; the exit status."""
    stream = Stream(fd)
    printed = _Printed()
    sys.stdout = printed
    peer = Peer(stream, strict=False, take_printed=lambda: _take(printed))
    space = program.new_main("solution", file)
    status, finished = program.execute(file, space)
    if not finished:
        return status
    try:
        stream.send(["ready", _names(space, peer), _take(printed)])
        peer.serve()
    except (Ended, WireError):
        pass
    return 0


def _take(printed: _Printed) -> str:
    try:
        return printed.take()
    except ValueError:  # the program closed it
        return ""


def _names(space: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """What the program's top level defines, for the tests."""
    found: dict[str, Any] = {}
    for name, value in space.items():
        if name.startswith("__"):
            continue
        if isinstance(value, types.ModuleType):
            found[name] = ["m", value.__name__]
            continue
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and home != "solution" and getattr(sys.modules.get(home), name, None) is value:
            found[name] = ["m", home, name, peer.export(value)]
            continue
        try:
            found[name] = Encoder(peer.export)(value) if _handy(value) else peer.export(value)
        except WireError:
            found[name] = peer.export(value)
    return found


def _handy(value: Any) -> bool:
    """Whether a value is small enough to be copied to the tests."""
    return not isinstance(value, (list, dict, set, tuple, str, bytes, bytearray)) or len(value) < 100_000
