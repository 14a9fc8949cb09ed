"""Values in the attributes of spans: JSON inside of text, dotted keys, and prompts or outputs in any wrapping."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import orjson

from rlready.experience.logs.messages import json_text

_MESSAGE = ("role", "lc", "from")
_SAID = ("content", "text", "tool_calls", "toolCalls", "parts", "reasoningText")
_WRAPPED = (
    "messages",
    "message",
    "output",
    "input",
    "response",
    "result",
    "answer",
    "query",
    "question",
    "prompt",
    "value",
)


class Wrapped(dict[str, Any]):
    """A message that we made of a text or an object that was none."""


def jsonish(value: Any) -> Any:
    """What stands in a text that is a JSON object or list; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "[") and value[-1:] in ("}", "]"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def arguments_text(value: Any) -> str:
    """A tool's arguments as JSON text; Python's own writing of a dict, which LangChain logs, is read too."""
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        if value[:1] == "{" and isinstance(jsonish(value), str):
            try:
                return json_text(ast.literal_eval(value))
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                pass
        return value
    return json_text(value)


def as_messages(value: Any, role: str) -> list[Any]:
    """A prompt or an output in any wrapping, as a list of raw messages.

    Args:
        value: a text, a message, a list of them, or an object that holds them.
        role: of what names no role itself.
    """
    value = jsonish(value)
    if value is None or value == "" or value == [] or value == {}:
        return []
    if isinstance(value, str):
        return [Wrapped(role=role, content=value)]
    if isinstance(value, list):
        if isinstance(value[0], list):  # LangChain batches prompts
            return as_messages(value[0], role)
        if all(isinstance(v, dict) and "message" in v and "role" not in v for v in value):
            return as_messages(value[0]["message"], role)  # choices: the first is the answer
        out: list[Any] = []
        for each in value:
            if isinstance(each, dict) and each.get("type") == "reasoning":
                continue
            out += as_messages(each, role)
        return out
    if isinstance(value, dict):
        return _of_object(value, role)
    return [Wrapped(role=role, content=json_text(value))]


def _of_object(value: dict[str, Any], role: str) -> list[Any]:
    if any(value.get(k) is not None for k in _MESSAGE) or value.get("type") in (
        "ai",
        "human",
        "system",
        "tool",
        "function_call",
        "function_call_output",
    ):
        return [value]
    for key in ("choices", "generations"):
        if isinstance(value.get(key), list) and value[key]:
            return as_messages(value[key], role)
    if isinstance(value.get("message"), dict):  # also a LangChain generation, which repeats its text beside
        return as_messages(value["message"], role)
    if isinstance(value.get("messages"), list):
        system = value.get("system", value.get("instructions"))
        head = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
        return head + as_messages(value["messages"], role)
    if any(value.get(k) for k in _SAID):
        content = next((value[k] for k in ("content", "parts", "text") if value.get(k) is not None), "")
        calls = value.get("tool_calls") or value.get("toolCalls") or []
        return [{"role": role, "content": content, **({"tool_calls": calls} if calls else {})}]
    found = [value[k] for k in _WRAPPED if value.get(k) not in (None, "")]
    if found:
        return as_messages(found[0], role)
    texts = [v for v in value.values() if isinstance(v, str) and v]
    return [Wrapped(role=role, content=texts[0] if len(texts) == 1 else json_text(value))]


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested objects, numbers as positions: {"a.0.b": 1} -> {"a": [{"b": 1}]}. Nested values too."""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        at = out
        *way, last = key.split(".")
        for step in way:
            inner = at.get(step)
            if not isinstance(inner, dict):
                inner = at[step] = {} if inner is None else {"": inner}
            at = inner
        value = _nested(value)
        if isinstance(value, dict) and isinstance(at.get(last), dict):
            at[last].update(value)
        elif isinstance(at.get(last), dict):
            at[last][""] = value  # "a" beside "a.b"
        else:
            at[last] = value
    return {key: _listed(value) for key, value in out.items()}


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return nest(value)
    if isinstance(value, list):
        return [_nested(each) for each in value]
    return value


def _listed(value: Any) -> Any:
    """Objects whose keys are numbers become lists."""
    if isinstance(value, dict):
        inner = {k: _listed(v) for k, v in value.items()}
        if inner and all(k.isdecimal() for k in inner):
            return [inner[k] for k in sorted(inner, key=int)]
        return inner
    if isinstance(value, list):
        return [_listed(each) for each in value]
    return value


def first(mapping: Mapping[str, Any], *keys: str) -> Any:
    """The first of these keys' values that is there and not null."""
    return next((mapping[k] for k in keys if mapping.get(k) is not None), None)
