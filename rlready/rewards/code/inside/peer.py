"""One side of the conversation between a program and its tests: calls go out and come in, one within another."""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable
from typing import Any

from .remote import Remote
from .wire import UNREADABLE, Decoder, Encoder, Stream, WireError

_FRAMES = ("f_", "tb_", "gi_", "cr_", "ag_", "co_")


class Peer:
    """A side of the conversation.

    Attributes:
        strict: the other side is not trusted: what it may do with our objects is bounded, and see `remote`.
        printed: called with what the other side printed during a call.
    """

    def __init__(self, stream: Stream, strict: bool, take_printed: Callable[[], str] = str) -> None:
        """Talk over a stream.

        Args:
            stream: to the other side.
            strict: whether the other side is not trusted.
            take_printed: gives what was printed here since it was last called.
        """
        self.stream, self.strict = stream, strict
        self._take_printed = take_printed
        self.printed: Callable[[str], Any] = len
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[int, type[BaseException]] = {}

    # objects

    def export(self, value: Any) -> list[Any]:
        """The name of one of our objects."""
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["e", *self._lineage(value)]
        number = self._number(value)
        kind = (
            "class" if isinstance(value, type) else "coroutine" if isinstance(value, types.CoroutineType) else "object"
        )
        return ["h", number, kind, type(value).__name__ if kind != "class" else value.__name__]

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # which also keeps its id its own
        return number

    def _lineage(self, kind: type[BaseException]) -> list[Any]:
        """The classes of an exception that are not built in, and the built-in one below them."""
        own: list[Any] = []
        for one in kind.__mro__:
            if getattr(builtins, one.__name__, None) is one:
                return [own, one.__name__]
            own.append([self._number(one), one.__name__])
        return [own, "Exception"]

    def _error_class(self, own: list[Any], base: str) -> type[BaseException]:
        kind: Any = getattr(builtins, base)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise WireError("a message cannot be read")
        for number, name in reversed(own):
            if number not in self._errors:
                self._errors[number] = type(str(name), (kind,), {})
            kind = self._errors[number]
        result: type[BaseException] = kind
        return result

    def _foreign(self, told: list[Any]) -> Any:
        if told[0] == "e":
            return self._error_class(told[1], told[2])
        if told[0] != "h":
            raise WireError("a message cannot be read")
        _, number, kind, name = told
        if kind == "coroutine":
            return Remote(self, number, kind, str(name))
        if number not in self._remotes:
            self._remotes[number] = Remote(self, number, str(kind), str(name))
        return self._remotes[number]

    def _own(self, number: int) -> Any:
        return self._objects[number]

    # calls

    def ask(self, op: str, target: Remote, *args: Any) -> Any:
        """Have an operation run at the other side; its result, or its exception."""
        encode = Encoder(self.export)
        self.stream.send(["?", op, target._rl_number, encode(args)])
        while True:
            message = self.stream.receive()
            if message[0] == "?":
                self.answer(message)
                continue
            return self._reply(op, message, encode.containers)

    def _reply(self, op: str, message: list[Any], sent: list[Any]) -> Any:
        try:
            kind, value, changes, printed = message
        except (TypeError, ValueError):
            raise WireError("a message cannot be read") from None
        if printed:
            self.printed(str(printed))
        decode = Decoder(self._foreign, self._own, sent)
        result = decode(value) if kind == "!" else self._error(decode, value)
        if not isinstance(changes, list):
            raise WireError("a message cannot be read")
        for number, content in changes:
            if type(number) is not int or not 0 <= number < len(sent):
                raise WireError("a message cannot be read")
            try:
                decode.fill(sent[number], content[0], content[1:])
            except UNREADABLE:
                raise WireError("a message cannot be read") from None
        if kind == "!":
            return result
        if isinstance(result, (StopIteration, StopAsyncIteration)) and op != "next" and self.strict:
            result = RuntimeError("the program raised StopIteration")
        raise result

    def _error(self, decode: Decoder, value: Any) -> BaseException:
        try:
            own, base, args, text, attributes = value
            kind = self._error_class(own, base)
            args = decode(args)
        except (TypeError, ValueError, AttributeError):
            raise WireError("a message cannot be read") from None
        for attempt in (args, (text,), ()):
            try:
                error = kind(*attempt)
                break
            except Exception:
                continue
        else:
            error = RuntimeError(str(text))
        error._rl_remote = True  # type: ignore[attr-defined]
        for name, one in attributes.items():
            if not name.startswith("_"):
                try:
                    setattr(error, name, decode(one))
                except (AttributeError, TypeError):
                    continue
        return error

    def serve(self) -> None:
        """Answer until the other side ends."""
        while True:
            self.answer(self.stream.receive())

    def answer(self, message: Any) -> None:
        """Run what the other side asked for, and answer."""
        try:
            mark, op, number, told = message
            if mark != "?":
                raise ValueError(mark)
            decode = Decoder(self._foreign, self._own)
            target, args = self._own(number), decode(told)
        except (TypeError, ValueError, IndexError):
            raise WireError("a message cannot be read") from None
        before = [_snapshot(box) for box in decode.containers]
        known = {id(box): n for n, box in enumerate(decode.containers)}
        encode = Encoder(self.export, known)
        try:
            if self.strict:
                _permit(op, target, args)
            answer = ["!", encode(_OPS[op](target, *args))]
        except (WireError, BaseException) as error:
            if type(error).__name__ == "Ended":
                raise
            answer = ["x", self._tell_error(error)]
        changes = []
        for n, box in enumerate(decode.containers):
            if not _unchanged(box, before[n]):
                changes.append([n, Encoder(self.export, known).content(box)])
        self.stream.send([*answer, changes, self._take_printed()])

    def _tell_error(self, error: BaseException) -> list[Any]:
        encode = Encoder(self.export)
        lineage = self._lineage(type(error))
        try:
            args = encode(tuple(error.args))
        except WireError:
            args = ["t"]
        attributes = {}
        for name, value in vars(error).items():
            try:
                attributes[name] = Encoder(self.export)(value)
            except WireError:
                continue
        try:
            text = str(error)
        except Exception:
            text = ""
        return [*lineage, args, text[:4000], attributes]


def _snapshot(box: Any) -> Any:
    return tuple(box.items()) if isinstance(box, dict) else set(box) if isinstance(box, set) else tuple(box)


def _unchanged(box: Any, before: Any) -> bool:
    now = _snapshot(box)
    if isinstance(box, set):
        return bool(now == before)
    if len(now) != len(before):
        return False
    if isinstance(box, dict):
        return all(a[0] is b[0] and a[1] is b[1] for a, b in zip(now, before, strict=True))
    return all(a is b for a, b in zip(now, before, strict=True)) or (isinstance(box, bytearray) and now == before)


def _permit(op: str, target: Any, args: tuple[Any, ...]) -> None:
    """Raise where a program that is not trusted may not do this with an object of the tests'."""
    if op in ("get", "set", "delete"):
        name = args[0]
        kinds = (
            types.FunctionType,
            types.MethodType,
            types.BuiltinFunctionType,
            types.ModuleType,
            types.CodeType,
            type,
        )
        frames = isinstance(target, (types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType))
        if not isinstance(name, str) or name.startswith(("_", *_FRAMES)) or isinstance(target, kinds) or frames:
            raise AttributeError(f"the program may not touch {name} of an object of the tests")
    if op == "call" and isinstance(target, types.BuiltinFunctionType):
        of_module = getattr(target, "__module__", None) is not None  # not a method of an object
        if of_module and target.__name__ not in _HARMLESS.split():
            raise TypeError(f"the program may not call {target.__name__}")


_HARMLESS = (
    "abs all any bin chr divmod hash hex len max min oct ord pow repr round sorted sum "
    "sqrt floor ceil log exp sin cos gcd"
)


def _leave(target: Any, kind: str | None, text: str) -> Any:
    found = getattr(builtins, kind or "", None)
    error_class = found if isinstance(found, type) and issubclass(found, BaseException) else Exception
    error = error_class(text) if kind else None
    return bool(type(target).__exit__(target, type(error) if kind else None, error, None))


def _reflected(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda target, other: op(other, target)


_OPS: dict[str, Callable[..., Any]] = {
    "call": lambda target, args, kwargs: target(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "eq": lambda a, b: bool(a == b),
    "hash": hash,
    "bool": bool,
    "contains": lambda a, b: b in a,
    "is_iterator": lambda a: hasattr(type(a), "__next__"),
    "iter": iter,
    "next": next,
    "reversed": reversed,
    "isinstance": lambda a, b: isinstance(b, a),
    "issubclass": lambda a, b: issubclass(b, a),
    "enter": lambda a: type(a).__enter__(a),
    "exit": _leave,
    "repr": repr,
    "str": str,
    "format": format,
    "round": lambda a, digits: round(a) if digits is None else round(a, digits),
    "len": len,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "abs": abs,
    "neg": operator.neg,
    "pos": operator.pos,
    "invert": operator.invert,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "await": lambda a: __import__("asyncio").run(a),
    **{op: (lambda f: lambda a, b: bool(f(a, b)))(getattr(operator, op)) for op in ("lt", "le", "gt", "ge")},
}
_BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
for _name in _BINARY.split():
    _OPS[_name.rstrip("_")] = getattr(operator, _name)
    _OPS[f"r{_name.rstrip('_')}"] = _reflected(getattr(operator, _name))
_OPS["divmod"], _OPS["rdivmod"] = divmod, _reflected(divmod)
