"""An object that lives in the other process: each operation on it is run there.

On the trusted side (`strict`) an object of the program's never decides a comparison with a plain value: it is equal to
none, is not ordered with any, contains one only if it yields it, and what comes of arithmetic with one is good for no
plain number. So an object that says yes to everything passes no test, while a class of the program's works
as it should.
"""

from __future__ import annotations

from typing import Any

_PLAIN_RESULT = "arithmetic of the program's object with a plain value gave a plain value, which is not trusted"


class Remote:
    """See the module. Names that begin with `_rl_` are ours; every other attribute is the object's."""

    __slots__ = ("_rl_kind", "_rl_name", "_rl_number", "_rl_peer", "_rl_tainted")

    def __init__(self, peer: Any, number: int, kind: str, name: str, tainted: bool = False) -> None:
        """An object of the peer's by number; kind is class, function, coroutine or object."""
        for slot, value in zip(Remote.__slots__, (kind, name, number, peer, tainted), strict=True):
            object.__setattr__(self, slot, value)

    def _rl_ask(self, op: str, *args: Any) -> Any:
        return self._rl_peer.ask(op, self, *args)

    def _rl_plain(self, op: str, *args: Any) -> Any:
        """As `_rl_ask`, for operations that give a plain value."""
        if self._rl_tainted:
            raise TypeError(_PLAIN_RESULT)
        return self._rl_ask(op, *args)

    def _rl_same_side(self, other: Any) -> bool:
        return isinstance(other, Remote) and other._rl_peer is self._rl_peer

    def _rl_arithmetic(self, op: str, other: Any) -> Any:
        if not self._rl_peer.strict or self._rl_same_side(other):
            return self._rl_ask(op, other)
        result = self._rl_ask(op, other)
        if not isinstance(result, Remote):
            raise TypeError(_PLAIN_RESULT)
        object.__setattr__(result, "_rl_tainted", True)
        return result

    def _rl_compare(self, op: str, other: Any) -> bool:
        if self._rl_peer.strict and not self._rl_same_side(other):
            raise TypeError(f"an object of the program's ({self._rl_name}) is not ordered with a plain value")
        return self._rl_ask(op, other) is True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        result = self._rl_ask("call", args, kwargs)
        if isinstance(result, Remote) and result._rl_kind == "coroutine":
            return _later(result)
        return result

    def __getattr__(self, name: str) -> Any:
        """An attribute of the object's."""
        return self._rl_ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the object's."""
        self._rl_ask("set", name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the object's."""
        self._rl_ask("delete", name)

    def __eq__(self, other: object) -> bool:
        """Equal by the program's word where both are the program's; never equal to a plain value."""
        if self._rl_same_side(other):
            return other._rl_number == self._rl_number or self._rl_ask("eq", other) is True  # type: ignore[attr-defined]
        return False if self._rl_peer.strict else self._rl_ask("eq", other) is True

    def __ne__(self, other: object) -> bool:
        """The opposite of equal."""
        return not self == other

    def __hash__(self) -> int:
        """The object's own."""
        return int(self._rl_ask("hash"))

    def __bool__(self) -> bool:
        """The object's own."""
        return self._rl_plain("bool") is True

    def __contains__(self, item: Any) -> bool:
        """Whether it yields the item; by the program's word where the item is the program's."""
        if self._rl_peer.strict and not self._rl_same_side(item):
            return any(item is one or item == one for one in self)
        return self._rl_ask("contains", item) is True

    def __iter__(self) -> Any:
        """An iterator over what it yields."""
        return self if self._rl_ask("is_iterator") is True else self._rl_ask("iter")

    def __instancecheck__(self, instance: Any) -> bool:
        """Whether something is of this class of the program's."""
        return self._rl_same_side(instance) and self._rl_ask("isinstance", instance) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        """Whether a class is derived from this class of the program's."""
        return self._rl_same_side(subclass) and self._rl_ask("issubclass", subclass) is True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        """Leave the context; an error is handed over by its class and text."""
        return self._rl_ask("exit", None if kind is None else kind.__name__, str(error)) is True

    def __repr__(self) -> str:
        """The object's own."""
        return str(self._rl_ask("repr"))

    def __format__(self, spec: str) -> str:
        """The object's own."""
        return str(self._rl_plain("format", spec))

    def __round__(self, digits: int | None = None) -> Any:
        """The object's own."""
        return self._rl_plain("round", digits)


async def _later(coroutine: Remote) -> Any:
    """A coroutine of the program's as one of ours: it is run to its end where it lives."""
    return coroutine._rl_ask("await")


def _add_operators() -> None:
    def arithmetic(op: str) -> Any:
        return lambda self, other: self._rl_arithmetic(op, other)

    def compare(op: str) -> Any:
        return lambda self, other: self._rl_compare(op, other)

    def plain(op: str) -> Any:
        return lambda self: self._rl_plain(op)

    def forward(op: str) -> Any:
        return lambda self, *args: self._rl_ask(op, *args)

    binary = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod"
    for name in binary.split():
        for op in (name, f"r{name}"):
            setattr(Remote, f"__{op}__", arithmetic(op))
    for op in ("lt", "le", "gt", "ge"):
        setattr(Remote, f"__{op}__", compare(op))
    for op in ["len", "int", "float", "complex", "index", "abs", "neg", "pos", "invert", "str", "next", "reversed"]:
        setattr(Remote, f"__{op}__", plain(op))
    for op in ["getitem", "setitem", "delitem", "enter"]:
        setattr(Remote, f"__{op}__", forward(op))


_add_operators()
