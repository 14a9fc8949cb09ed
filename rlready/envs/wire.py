"""What passes between `ProcessEnv` and its child: frames of pickled tuples, each with its length in front.

The child obeys the parent, so requests are plain pickles. The parent does not trust the child, in which an agent's
actions
may run anything: replies are read with a short list of permitted classes, and anything else is refused, not executed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import pickle
import runpy
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from rlready.errors import EnvError, UserError

HEADER = struct.Struct("!Q")
LIMIT = 256 << 20  # bytes in one frame

_OURS = frozenset({"rlready.types", "rlready.envs.base"})
_OTHERS = frozenset(
    {
        ("builtins", "complex"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "bytearray"),
        ("collections", "OrderedDict"),
        ("datetime", "datetime"),
        ("datetime", "date"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)


def dump(value: Any) -> bytes:
    """A frame.

    Raises:
        ValueError: it is larger than the limit.
    """
    payload = pickle.dumps(value, protocol=5)
    if len(payload) > LIMIT:
        raise ValueError(f"it is larger than {LIMIT >> 20} MiB")
    return HEADER.pack(len(payload)) + payload


def frames(line: socket.socket) -> Iterator[bytes]:
    """Payloads from a blocking socket until the other side hangs up."""
    buffer = bytearray()
    while True:
        payload = cut(buffer)
        if payload is not None:
            yield payload
            continue
        try:
            data = line.recv(1 << 16)
        except ConnectionError:
            return
        if not data:
            return
        buffer += data


def cut(buffer: bytearray) -> bytes | None:
    """Take the first whole frame's payload out of a buffer; None where there is none yet.

    Raises:
        EnvError: the announced length is above the limit.
    """
    if len(buffer) < HEADER.size:
        return None
    (size,) = HEADER.unpack_from(buffer)
    if size > LIMIT:
        raise EnvError(
            f"the environment's process announced a reply of {size} bytes; at most {LIMIT >> 20} MiB are taken."
        )
    if len(buffer) < HEADER.size + size:
        return None
    payload = bytes(buffer[HEADER.size : HEADER.size + size])
    del buffer[: HEADER.size + size]
    return payload


def load_request(payload: bytes) -> tuple[int, str, int, tuple[Any, ...]]:
    """A request, as the child reads it."""
    number, method, handle, arguments = pickle.loads(payload)
    return number, method, handle, arguments


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if module in _OURS and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")


def load_reply(payload: bytes) -> tuple[int, str, Any]:
    """A reply, read with permitted classes only.

    Raises:
        EnvError: it holds something else, or is no reply.
    """
    try:
        number, kind, value = _Reader(io.BytesIO(payload)).load()
    except Exception as error:  # a broken pickle can raise anything
        raise EnvError(
            f"the environment's process sent what cannot be taken: {error}. "
            "Observations and info must hold plain values."
        ) from None
    if not isinstance(number, int) or not isinstance(kind, str):
        raise EnvError("the environment's process sent no proper reply.")
    return number, kind, value


Factory = str | Callable[[], Any]


def portable(factory: Factory) -> tuple[bytes | str, tuple[str, str] | None]:
    """A factory as it is sent: its name or its pickle, and where the parent's `__main__` is if it is defined there.

    Raises:
        UserError: it cannot be sent.
    """
    if isinstance(factory, str):
        if ":" not in factory:
            raise UserError(f'The environment "{factory}" must be written as module:name or file.py:name.')
        return factory, None
    try:
        payload = pickle.dumps(factory)
    except Exception as error:
        raise UserError(
            f"The environment factory {factory!r} cannot be sent to another process ({error}). "
            'Use a function or class of a module, or its name as "module:name".'
        ) from None
    return payload, _main_of_parent() if b"__main__" in payload else None


def _main_of_parent() -> tuple[str, str]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return "module", spec.name
    file = getattr(main, "__file__", None)
    if file is None or not os.path.exists(file):
        raise UserError("An environment defined in a notebook or prompt cannot be sent to a process. Put it in a file.")
    return "file", os.path.abspath(file)


def resolve(factory: bytes | str, main: tuple[str, str] | None) -> Callable[[], Any]:
    """The factory in the child. Raises whatever importing it raises."""
    if main is not None:
        kind, where = main
        run = runpy.run_module if kind == "module" else runpy.run_path
        module = ModuleType("__main__")
        module.__dict__.update(run(where, run_name="__rlready_child__"))
        for value in module.__dict__.values():  # what was defined there says where it is to be found
            if getattr(value, "__module__", None) == "__rlready_child__":
                with contextlib.suppress(AttributeError, TypeError):
                    value.__module__ = "__main__"
        sys.modules["__main__"] = module
    if isinstance(factory, bytes):
        loaded: Callable[[], Any] = pickle.loads(factory)
        return loaded
    where, _, name = factory.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(os.path.basename(where)[:-3], where)
        if spec is None or spec.loader is None:
            raise ImportError(f"{where} cannot be imported")
        holder = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = holder
        spec.loader.exec_module(holder)
    else:
        holder = importlib.import_module(where)
    found: Any = holder
    for part in name.split("."):
        found = getattr(found, part)
    result: Callable[[], Any] = found
    return result
