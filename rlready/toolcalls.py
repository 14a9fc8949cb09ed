"""Tool calls as text: the form that models write, and the reader that never guesses.

    <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>

A completion may hold several. What stands inside `<think>...</think>` is not a call. A call whose JSON is broken, whose
name or arguments are missing or whose arguments are not an object is *malformed*: it comes back with a reason, and is
never taken for a call without arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlready.jsontext import BadJsonError, read_json, read_json_at

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE = re.compile(r"\s*")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was read.

    Attributes:
        name: the tool's name; empty where it could not be read.
        arguments: the arguments; None where the call is malformed.
        problem: why it is malformed, one sentence; empty for a good call.
        written: the call as it stood in the completion, its tags included.
    """

    name: str
    arguments: Mapping[str, Any] | None
    problem: str = ""
    written: str = field(default="", compare=False, repr=False)


def parse_calls(text: str) -> list[Call]:
    """All calls in a completion, in order, malformed ones included."""
    text = without_thoughts(text)
    calls: list[Call] = []
    at = text.find(OPEN)
    while at >= 0:
        call, end = _parse_one(text, at + len(OPEN))
        stop = _skip(text, end)
        stop = stop + len(CLOSE) if text.startswith(CLOSE, stop) else end
        calls.append(Call(call.name, call.arguments, call.problem, text[at:stop]))
        at = text.find(OPEN, end)
    return calls


def without_thoughts(text: str) -> str:
    """A completion without what stands inside `<think>...</think>`; an opening tag in the prompt counts too."""
    if "think>" not in text:
        return text
    head, closed, tail = text.partition("</think>")
    if closed and "<think>" not in head:  # the opening tag was part of the prompt
        text = tail
    return _THOUGHT.sub("", text)


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a model writes it."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': dict(arguments)}, ensure_ascii=False)}{CLOSE}"


def _skip(text: str, at: int) -> int:
    """Where the white space that stands at `at` ends."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _parse_one(text: str, start: int) -> tuple[Call, int]:
    """The call after an opening tag, and where to go on reading."""
    at = _skip(text, start)
    try:
        value, end = read_json_at(text, at)
    except BadJsonError as error:
        close = text.find(CLOSE, start)
        return Call("", None, f"The tool call is not valid JSON ({error})."), len(text) if close < 0 else close
    call = as_call(value)
    if not text.startswith(CLOSE, _skip(text, end)):
        return Call(call.name, None, f"The tool call is not closed by {CLOSE}."), end
    return call, end


def as_call(value: Any) -> Call:
    """The call that a JSON value is; a malformed one where it is none."""
    if not isinstance(value, dict):
        return Call("", None, "The tool call is not a JSON object.")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return Call("", None, 'The tool call has no "name".')
    if "arguments" not in value:
        return Call(name, None, 'The tool call has no "arguments"; write {} where there are none.')
    arguments = value["arguments"]
    if isinstance(arguments, str):  # some models write the object as a string
        try:
            arguments = read_json(arguments)
        except BadJsonError:
            arguments = None
    if not isinstance(arguments, dict):
        return Call(name, None, '"arguments" is not a JSON object.')
    return Call(name, arguments)
