"""Tools as plain Python functions: their JSON schema from type hints, and the check of arguments against it."""

from __future__ import annotations

import enum
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rlready.errors import UserError

_SIMPLE: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = (list, tuple, Sequence)


class Tool:
    """A function that a model may call.

    Attributes:
        name: the function's name.
        description: the first paragraph of its docstring.
        parameters: JSON schema of the arguments.
        fn: the function, sync or async.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        """Read the schema.

        Raises:
            UserError: the function takes positional-only or star arguments, or a type that JSON has no form for.
        """
        self.fn = fn
        self.name = name or str(getattr(fn, "__name__", ""))
        if not self.name or self.name == "<lambda>":
            raise UserError(
                f"A tool needs a name, but {fn!r} has none. Write it as a function, or pass {{name: function}}."
            )
        doc = inspect.getdoc(fn) or ""
        self.description = " ".join(doc.split("\n\n")[0].split())
        self._hints: dict[str, Any] = {}
        self._required: list[str] = []
        target = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
        try:
            hints = get_type_hints(target, include_extras=True)
        except (NameError, TypeError) as error:
            raise UserError(f"The type hints of the tool {self.name} cannot be read: {error}.") from None
        properties: dict[str, Any] = {}
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UserError(f"The tool {self.name} takes {parameter}; a tool's arguments must all be named.")
            hint = hints.get(parameter.name, Any)
            self._hints[parameter.name] = hint
            properties[parameter.name] = schema_of(hint, f"{self.name}({parameter.name})")
            if parameter.default is parameter.empty:
                self._required.append(parameter.name)
            elif _is_plain(parameter.default):
                properties[parameter.name]["default"] = parameter.default
        self.parameters = {"type": "object", "properties": properties, "required": self._required}

    def schema(self) -> dict[str, Any]:
        """As models are shown it: `{"name", "description", "parameters"}`."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments and give them Python's types (enum members, tuples).

        Raises:
            ValueError: one is missing, unknown or of a wrong type; a sentence for the model to read.
        """
        unknown = [name for name in arguments if name not in self._hints]
        if unknown:
            takes = ", ".join(self._hints) or "no arguments"
            raise ValueError(f'{self.name} has no argument "{unknown[0]}"; it takes {takes}.')
        missing = [name for name in self._required if name not in arguments]
        if missing:
            raise ValueError(f'{self.name} needs the argument "{missing[0]}".')
        return {name: convert(value, self._hints[name], f'"{name}"') for name, value in arguments.items()}


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type hint.

    Raises:
        UserError: JSON has no form for the type; `where` names it.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return {}
    if origin is Annotated:
        described = next((a for a in args[1:] if isinstance(a, str)), None)
        inner = schema_of(args[0], where)
        return inner if described is None else {**inner, "description": described}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin is Literal:
        return {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(a, where) for a in args]}
    base = origin or hint
    if base in _LISTS or base is Sequence:
        items = [a for a in args if a is not Ellipsis]
        return {"type": "array", **({"items": schema_of(items[0], where)} if len(set(items)) == 1 else {})}
    if base is dict or base is Mapping:
        if args and args[0] is not str:
            raise UserError(f"{where}: the keys of a JSON object are text, not {args[0]}.")
        return {"type": "object", **({"additionalProperties": schema_of(args[1], where)} if args else {})}
    raise UserError(
        f"{where}: JSON has no form for the type {hint}. Use str, int, float, bool, list, dict, Literal, Enum."
    )


def convert(value: Any, hint: Any, where: str) -> Any:
    """A JSON value as the hinted type. Nothing is guessed: "3" is not an int, and true is not 1.

    Raises:
        ValueError: it is not of that type; a sentence for the model to read.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin is Annotated:
        return convert(value, args[0], where)
    if hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise _wrong(where, "a number", value)
    if hint is int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise _wrong(where, "an integer", value)
    if hint in _SIMPLE:
        if isinstance(value, hint):
            return value
        raise _wrong(where, {"string": "a text", "boolean": "true or false"}.get(_SIMPLE[hint], "null"), value)
    if origin is Literal:
        if any(type(a) is type(value) and a == value for a in args):
            return value
        raise _wrong(where, f"one of {', '.join(map(repr, args))}", value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if type(member.value) is type(value) and member.value == value:
                return member
        raise _wrong(where, f"one of {', '.join(repr(m.value) for m in hint)}", value)
    if origin in (Union, types.UnionType):
        for a in args:
            try:
                return convert(value, a, where)
            except ValueError:
                continue
        raise _wrong(where, f"of the type {hint}", value)
    base = origin or hint
    if base in _LISTS:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return _convert_list(value, base, args, where)
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    return {k: convert(v, args[1], f"{where}[{k!r}]") for k, v in value.items()} if args else value


def _convert_list(value: list[Any], base: Any, args: tuple[Any, ...], where: str) -> Any:
    if base is tuple and args and Ellipsis not in args:
        if len(args) != len(value):
            raise _wrong(where, f"a list of {len(args)} items", value)
        return tuple(convert(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))
    items = [convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value)] if args else list(value)
    return tuple(items) if base is tuple else items


def _wrong(where: str, wanted: str, value: Any) -> ValueError:
    text = repr(value)
    return ValueError(
        f"The argument {where} must be {wanted}, but it is {text if len(text) <= 60 else text[:57] + '...'}."
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
