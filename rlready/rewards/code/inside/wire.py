"""Values and calls between two processes, of which one is not trusted: the program under test, and its tests.

Plain data goes by value, as JSON, and is rebuilt from exact built-in types: no method of a program's class ever takes
part in a comparison with a plain value. Lists, dicts and sets that a call changed in place are changed at the caller's
too. What is no plain data goes by name, as a `Remote`, whose operations are run where the object lives.

    scalars as in JSON     [tag, ...] for everything else:
    l t d s z              list tuple dict set frozenset        i b B c   big int, bytes, bytearray, complex
    q C n                  deque Counter namedtuple             D F g T   Decimal, Fraction, range, dates and times
    r R                    container number n of this message, or of the request that is answered
    h H                    object of the sender's, or of the receiver's
    k e                    built-in class, exception class of the sender's
"""

from __future__ import annotations

import builtins
import json
import socket
import struct
from collections import Counter, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from .remote import Remote

UNREADABLE = (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError)
"""What reading a message that no Encoder wrote may raise."""
_DEEPEST = 150
_LONGEST = 64 << 20
_DATES: dict[str, Any] = {"date": date, "datetime": datetime, "time": time}


class WireError(Exception):
    """What came cannot be read, or what is to go is too large or too deep."""


class Ended(BaseException):
    """The other side is gone. Not an Exception, so that no test takes it for something that the program raised."""


class Stream:
    """Messages over a stream socket: four bytes of length, then JSON."""

    def __init__(self, fd: int) -> None:
        """Use the socket with this number."""
        self._sock = socket.socket(fileno=fd)
        self._file = self._sock.makefile("rb")
        self.ended = False

    def send(self, message: Any) -> None:
        """Send a message."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > _LONGEST:
            raise WireError("a value is too large to be handed over")
        try:
            self._sock.sendall(struct.pack("<I", len(data)) + data)
        except OSError:
            self.ended = True
            raise Ended("the other side ended") from None

    def receive(self) -> Any:
        """The next message."""
        try:
            head = self._file.read(4)
            size = struct.unpack("<I", head)[0] if len(head) == 4 else 0
            data = self._file.read(size) if 0 < size <= _LONGEST else b""
        except OSError:
            data, size = b"", 0
        if not data or len(data) < size:
            self.ended = True
            raise Ended("the other side ended")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise WireError("a message cannot be read") from None


class Encoder:
    """Turns the values of one message into JSON."""

    def __init__(self, export: Callable[[Any], list[Any]], known: dict[int, int] | None = None) -> None:
        """Use a function that gives objects names, and the containers of the request that is answered."""
        self._export = export
        self._known = known or {}
        self._own: dict[int, int] = {}
        self.containers: list[Any] = []

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """A value as JSON."""
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int:
            return value if -(10**17) < value < 10**17 else ["i", hex(value)]
        if depth > _DEEPEST:
            raise WireError("a value is nested too deeply to be handed over")
        if kind in _CONTAINERS or (isinstance(value, (list, dict, set, bytearray, deque)) and not _ours(value)):
            return self._container(value, depth)
        return self._other(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        if id(value) in self._known:
            return ["R", self._known[id(value)]]
        if id(value) in self._own:
            return ["r", self._own[id(value)]]
        self._own[id(value)] = len(self.containers)
        self.containers.append(value)
        return self.content(value, depth)

    def content(self, value: Any, depth: int = 0) -> list[Any]:
        """What a container holds."""
        below = depth + 1
        if isinstance(value, list):
            return ["l", *(self(item, below) for item in list.__iter__(value))]
        if isinstance(value, dict):
            tag = "C" if isinstance(value, Counter) else "d"
            return [tag, *(self(part, below) for pair in dict.items(value) for part in pair)]
        if isinstance(value, set):
            return ["s", *(self(item, below) for item in set.__iter__(value))]
        if isinstance(value, deque):
            return ["q", value.maxlen, *(self(item, below) for item in deque.__iter__(value))]
        return ["B", bytes(value).decode("latin-1")]

    def _other(self, value: Any, depth: int) -> Any:
        below = depth + 1
        kind: type = type(value)
        if isinstance(value, Remote):
            return ["H", value._rl_number]
        if isinstance(value, Enum):
            return self._export(value)
        if isinstance(value, int):
            return self(int.__index__(value))
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, tuple):
            items = [self(item, below) for item in tuple.__iter__(value)]
            fields = getattr(type(value), "_fields", None)
            if isinstance(fields, tuple) and len(fields) == len(items):
                return ["n", type(value).__name__, list(fields), *items]
            return ["t", *items]
        if isinstance(value, frozenset):
            return ["z", *(self(item, below) for item in frozenset.__iter__(value))]
        if isinstance(value, bytes):
            return ["b", bytes(memoryview(value)).decode("latin-1")]
        if isinstance(value, complex):
            return ["c", value.real, value.imag]
        if kind is Decimal:
            return ["D", str(value)]
        if kind is Fraction:
            return ["F", hex(value.numerator), hex(value.denominator)]
        if kind is range:
            return ["g", value.start, value.stop, value.step]
        if kind is timedelta:
            return ["T", "timedelta", value.days, value.seconds, value.microseconds]
        if _DATES.get(kind.__name__) is kind:
            return ["T", kind.__name__, value.isoformat()]
        name = value.__name__ if isinstance(value, type) else ""
        if name and getattr(builtins, name, None) is value:
            return ["k", name]
        return self._export(value)


_CONTAINERS = (list, dict, set, bytearray, deque)


def _ours(value: Any) -> bool:
    """Whether a subclass of a container has so much of its own that it is an object rather than data."""
    kind = type(value)
    return kind.__module__ != "collections" and any(not name.startswith("__") for name in vars(kind))


class Decoder:
    """Rebuilds the values of one message; raises WireError on anything that no Encoder writes."""

    def __init__(
        self, foreign: Callable[[list[Any]], Any], own: Callable[[int], Any], sent: list[Any] | None = None
    ) -> None:
        """Use functions that give the sender's objects and our own by name, and the containers of our request."""
        self._foreign, self._own_object = foreign, own
        self._sent = sent or []
        self.containers: list[Any] = []

    def __call__(self, told: Any, depth: int = 0) -> Any:
        """A value from JSON."""
        if not isinstance(told, list):
            if isinstance(told, dict):
                raise WireError("a message cannot be read")
            return told
        try:
            return self._tagged(told[0], told[1:], depth)
        except UNREADABLE as error:
            raise WireError(f"a message cannot be read ({type(error).__name__})") from None

    def _tagged(self, tag: str, rest: list[Any], depth: int) -> Any:
        if depth > _DEEPEST:
            raise WireError("a value is nested too deeply")
        if tag in ("l", "d", "C", "s", "q", "B"):
            box: Any = {"l": list, "d": dict, "C": Counter, "s": set, "B": bytearray}.get(tag, deque)()
            if tag == "q":
                box = deque(maxlen=rest[0])
            self.containers.append(box)
            self.fill(box, tag, rest, depth)
            return box
        simple = _SIMPLE.get(tag)
        if simple is not None:
            return simple(*rest)
        if tag == "r":
            return self.containers[_number(rest[0])]
        if tag == "R":
            return self._sent[_number(rest[0])]
        if tag == "H":
            return self._own_object(_number(rest[0]))
        if tag in ("t", "z"):
            items = [self(item, depth + 1) for item in rest]
            return tuple(items) if tag == "t" else frozenset(items)
        if tag == "n":
            return _named(rest[0], rest[1])(*(self(item, depth + 1) for item in rest[2:]))
        return self._foreign([tag, *rest])

    def fill(self, box: Any, tag: str, rest: list[Any], depth: int = 0) -> None:
        """Replace what a container holds."""
        if tag == "B":
            box[:] = rest[0].encode("latin-1")
            return
        items = [self(item, depth + 1) for item in (rest[1:] if tag == "q" else rest)]
        if tag == "l":
            box[:] = items
        elif tag in ("d", "C"):
            box.clear()
            for key, value in zip(items[::2], items[1::2], strict=True):
                box[key] = value
        else:
            box.clear()
            (box.update if tag == "s" else box.extend)(items)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number")
    return value


def _named(name: str, fields: list[str]) -> Any:
    key = (name, tuple(fields))
    if key not in _NAMED:
        _NAMED[key] = namedtuple(name, fields)
    return _NAMED[key]


def _moment(name: str, *rest: Any) -> Any:
    return timedelta(*rest) if name == "timedelta" else _DATES[name].fromisoformat(*rest)


def _built_in(name: str) -> type:
    found = getattr(builtins, name)
    if not isinstance(found, type):
        raise TypeError(name)
    return found


_NAMED: dict[tuple[str, tuple[str, ...]], Any] = {}
_SIMPLE: dict[str, Callable[..., Any]] = {
    "i": lambda text: int(text, 16),
    "b": lambda text: text.encode("latin-1"),
    "c": complex,
    "D": Decimal,
    "F": lambda n, d: Fraction(int(n, 16), int(d, 16)),
    "g": range,
    "T": _moment,
    "k": _built_in,
}
