"""Messages of many dialects as our `Message`s.

Read are OpenAI chat (with the old `function_call`), Anthropic blocks, LangChain (plain, `data` and `lc` constructor
forms), the parts of OpenTelemetry GenAI, of the Vercel AI SDK and of PostHog, ShareGPT's from/value, tau2-bench's
tool messages, and calls written as `<tool_call>` in the text.

What comes out is paired: every tool message names the call that it answers, and no id stands for two calls. A call
whose text cannot be read as one has no name, and its text as written in place of the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson

from rlready.experience.logs.facts import Notes
from rlready.experience.logs.report import UnreadableError
from rlready.toolcalls import OPEN, parse_calls
from rlready.types import Message, Part, Role, ToolCall

MADE = "_call_"
"""Ids that we make, where the log has none, begin so."""

_NAMES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer", "SystemMessage"),
    "user": ("user", "human", "HumanMessage", "observation", "environment"),
    "assistant": ("assistant", "ai", "model", "gpt", "agent", "AIMessage", "AIMessageChunk", "function_call"),
    "tool": ("tool", "function", "tool_result", "ToolMessage", "FunctionMessage", "function_call_output"),
}
_ROLES: dict[Any, Role] = {name: role for role, names in _NAMES.items() for name in names}
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "thought")
_CALLS = ("tool_use", "tool-call", "tool_call", "function", "function_call")
_RESULTS = ("tool_result", "tool-result", "tool_call_response", "function_call_output")


class Conversation:
    """Collects the messages of one run, in order."""

    __slots__ = ("failed", "messages", "names", "notes")

    def __init__(self, notes: Notes) -> None:
        self.messages: list[Message] = []
        self.notes = notes
        self.failed: set[int] = set()  # positions of tool messages that report an error
        self.names: dict[int, str] = {}  # tool names by position of a tool message, where the log names them

    def add(self, raw: Any) -> None:
        """Add a message as it was logged.

        Raises:
            UnreadableError: it is no message, or its role is unknown.
        """
        try:
            role = _ROLES[raw["role"]]
            content = raw["content"]
        except (KeyError, TypeError):
            self._add_other(raw)
            return
        if type(content) is str:
            if role == "user":
                if "tool_calls" not in raw:
                    self.messages.append(Message(role, content))
                    return
            elif role == "assistant":
                if not raw.get("tool_calls") and "function_call" not in raw and OPEN not in content:
                    self.messages.append(Message(role, content))
                    return
            elif role == "tool":
                call = raw.get("tool_call_id")
                if type(call) is str and call and not raw.get("is_error") and "error" not in raw:
                    if raw.get("status") == "error":
                        self.failed.add(len(self.messages))
                    self.messages.append(Message(role, content, (), call))
                    return
            else:
                self.messages.append(Message(role, content))
                return
        self._add_parts(role, raw)

    def extend(self, raws: Iterable[Any]) -> None:
        """Add messages as they were logged.

        Raises:
            UnreadableError: one is none.
        """
        for raw in raws:
            self.add(raw)

    def _add_other(self, raw: Any) -> None:
        """A message that has not both `role` and `content`."""
        if not isinstance(raw, dict):
            raise UnreadableError(f"a message is {_kind(raw)}, not an object")
        if raw.get("lc") is not None and isinstance(raw.get("kwargs"), dict):  # LangChain, serialised
            inner = dict(raw["kwargs"])
            names = raw.get("id")
            inner.setdefault("type", names[-1] if isinstance(names, list) and names else "")
            raw = inner
        elif isinstance(raw.get("data"), dict) and isinstance(raw.get("type"), str):
            raw = {**raw["data"], "type": raw["type"]}
        elif isinstance(raw.get("message"), dict) and "role" not in raw:  # a choice
            raw = raw["message"]
        said = next((raw[k] for k in ("role", "type", "from") if isinstance(raw.get(k), str)), None)
        if said is None:
            raise UnreadableError(f"a message has no role; its keys are {keys_of(raw)}")
        role = _ROLES.get(said)
        if role is None:
            raise UnreadableError(f'a message has the unknown role "{said[:40]}"')
        self._add_parts(role, raw)

    def _add_parts(self, role: Role, raw: dict[str, Any]) -> None:
        texts: list[Part] = []
        calls: list[ToolCall] = []
        content = raw["content"] if raw.get("content") is not None else raw.get("parts", raw.get("value"))
        if role == "tool":
            if isinstance(content, list) and any(isinstance(p, dict) and p.get("type") in _RESULTS for p in content):
                for part in content:
                    if isinstance(part, dict):
                        self._add_result(part)
                return
            self._add_result(raw)
            return
        if role == "assistant" and raw.get("type") == "function_call" and "arguments" in raw:  # OpenAI Responses
            content, calls = None, [_call(raw)]
        if isinstance(content, dict) and not isinstance(content.get("text"), str):
            content = json_text(content)
        for part in content if isinstance(content, list) else [] if content is None else [content]:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(part, str):
                texts.append(Part("text", part))
            elif not isinstance(part, dict):
                raise UnreadableError(f"a part of a message is {_kind(part)}")
            elif kind in _THOUGHTS:
                self.notes["thoughts (left out)"] += 1
            elif kind in _CALLS:
                calls.append(_call(part))
            elif kind in _RESULTS:
                if texts:
                    self.messages.append(Message(role, _content(texts)))
                    texts = []
                self._add_result(part)
            elif isinstance(text := part.get("text", part.get("content", part.get("refusal"))), str):
                texts.append(Part("text", text))
            elif (image := _image(part)) is not None:
                texts.append(Part("image", image=image))
            elif kind not in ("step-start", "step-finish"):
                self.notes[f'parts of the unknown type "{str(kind)[:40]}" (left out)'] += 1
        if isinstance(raw.get("tool_calls"), list):
            calls += [_call(each) for each in raw["tool_calls"] if not _of_user(each)]
        if not calls:
            more = raw.get("additional_kwargs")
            old = raw.get("function_call") or (more.get("function_call") if isinstance(more, dict) else None)
            if isinstance(more, dict) and isinstance(more.get("tool_calls"), list):
                calls = [_call(each) for each in more["tool_calls"]]
            elif isinstance(old, dict):
                calls = [_call(old)]
        text = _content(texts)
        if role == "assistant":
            if not calls and isinstance(text, str) and OPEN in text:
                text, calls = _written(text)
            self._count(text, calls)
        elif not texts and isinstance(raw.get("content", content), list):
            return  # nothing but results, which are added already
        self.messages.append(Message(role, text, tuple(calls)))

    def _count(self, text: str | tuple[Part, ...], calls: list[ToolCall]) -> None:
        if len(calls) > 1:
            self.notes["messages with several calls at once"] += 1
        if calls and (text if not isinstance(text, str) else text.strip()):
            self.notes["thoughts beside calls"] += 1

    def _add_result(self, raw: dict[str, Any]) -> None:
        if raw.get("requestor") == "user":  # tau2-bench: the customer's own tools
            self.notes["results of the user's own tools (left out)"] += 1
            return
        call = _text_of(raw, "tool_call_id", "tool_use_id", "toolCallId", "call_id")
        if not call and ("requestor" in raw or raw.get("type") == "tool_call_response"):
            call = _text_of(raw, "id")
        keys = ("content", "response", "result", "output", "value")
        content = next((raw[k] for k in keys if raw.get(k) is not None), "")
        wrong = raw.get("is_error") is True or raw.get("isError") is True or raw.get("status") == "error"
        error = raw.get("error")
        if isinstance(content, dict) and set(content) == {"type", "value"}:  # Vercel AI SDK 5
            wrong = wrong or str(content["type"]).startswith("error")
            content = content["value"]
        if error and error is not True and content == "":
            content = error
        at = len(self.messages)
        if wrong or error:
            self.failed.add(at)
        if name := _text_of(raw, "name", "toolName", "tool_name"):
            self.names[at] = name
        self.messages.append(Message("tool", result_text(content), (), call or None))

    def paired(self) -> tuple[tuple[Message, ...], frozenset[str]]:
        """The messages with every tool message naming its call, and the ids of the calls that failed."""
        waiting: dict[str, str] = {}  # our id by the log's, of the calls that have no result yet
        tools: dict[str, str] = {}  # tool's name by our id, of the same calls
        seen: set[str] = set()
        failed: set[str] = set()
        for at, message in enumerate(self.messages):
            if message.tool_calls:
                changed = False
                calls: list[ToolCall] = []
                for call in message.tool_calls:
                    ours = call.id
                    if not ours or ours in seen:
                        if ours:
                            self.notes["ids that stand for two calls (told apart)"] += 1
                        changed, ours = True, f"{ours or MADE}{'#' if ours else ''}{len(seen)}"
                        call = ToolCall(call.name, call.arguments, ours)
                    seen.add(ours)
                    waiting[message.tool_calls[len(calls)].id or ours] = ours
                    tools[ours] = call.name
                    calls.append(call)
                if changed:
                    self.messages[at] = Message(message.role, message.content, tuple(calls))
            elif message.role == "tool":
                found = waiting.pop(message.tool_call_id or "", None)
                if found is None:
                    found = self._guess(at, message.tool_call_id, waiting, tools)
                if found is None:
                    self.notes["results without a call"] += 1
                    continue
                if found != message.tool_call_id:
                    self.messages[at] = Message("tool", message.content, (), found)
                tools.pop(found, None)
                if at in self.failed:
                    failed.add(found)
        if waiting:
            self.notes["calls without a result"] += len(waiting)
        return tuple(self.messages), frozenset(failed)

    def _guess(self, at: int, given: str | None, waiting: dict[str, str], tools: dict[str, str]) -> str | None:
        """The call that a result answers where ids do not tell: the oldest open one of its name, else the oldest.

        A result with an id of its own answers only a call that had none.
        """
        open_calls = [(log, ours) for log, ours in waiting.items() if not given or ours.startswith(MADE)]
        name = self.names.get(at)
        named = [pair for pair in open_calls if name and tools.get(pair[1]) == name]
        if name and not named and any(tools.get(ours) for _, ours in open_calls):
            return None
        for log, ours in named or open_calls:
            del waiting[log]
            return ours
        return None


def result_text(content: Any) -> str:
    """What a tool gave, as text: texts as they are, lists of text parts joined, all else as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict) and isinstance(content.get("kwargs"), dict) and "lc" in content:
        return result_text(content["kwargs"].get("content", ""))
    if (
        isinstance(content, list)
        and content
        and all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in content)
    ):
        texts = [p.get("text", p.get("content")) for p in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    return json_text(content)


def json_text(value: Any) -> str:
    """A value as compact JSON, in its own order of keys."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits, or NaN's neighbours
        return json.dumps(value, ensure_ascii=False)


def keys_of(value: Any) -> str:
    """For messages: an object's keys, or what else it is."""
    if not isinstance(value, dict):
        return _kind(value)
    return ", ".join(str(k)[:40] for k in list(value)[:12]) or "none"


def _kind(value: Any) -> str:
    names = {
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _text_of(raw: dict[str, Any], *names: str) -> str:
    for name in names:
        value = raw.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def _of_user(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.get("requestor") == "user"


def _call(raw: Any) -> ToolCall:
    if not isinstance(raw, dict):
        raise UnreadableError(f"a tool call is {_kind(raw)}, not an object")
    inner = raw["function"] if isinstance(raw.get("function"), dict) else raw
    name = _text_of(inner, "name", "toolName", "tool_name", "function_name")
    arguments = next((inner[k] for k in ("arguments", "args", "input", "parameters") if inner.get(k) is not None), None)
    if not name:
        raise UnreadableError(f"a tool call has no name; its keys are {keys_of(inner)}")
    ident = _text_of(raw, "tool_call_id", "toolCallId", "call_id", "id")
    if arguments is None or arguments == "":
        arguments = "{}"
    return ToolCall(name, arguments if isinstance(arguments, str) else json_text(arguments), ident)


def _written(text: str) -> tuple[str, list[ToolCall]]:
    """Calls that stand in the text itself; what is no call stays text."""
    calls = []
    for call in parse_calls(text):
        if call.arguments is None:
            calls.append(ToolCall("", call.written))
        else:
            calls.append(ToolCall(call.name, json_text(dict(call.arguments))))
        text = text.replace(call.written, "", 1)
    return text.strip(), calls


def _content(parts: list[Part]) -> str | tuple[Part, ...]:
    if any(part.kind == "image" for part in parts):
        return tuple(parts)
    return parts[0].text if len(parts) == 1 else "\n".join(part.text for part in parts)


def _image(part: dict[str, Any]) -> str | None:
    image = part.get("image_url") or part.get("image") or part.get("url")
    source = part.get("source")
    if isinstance(image, dict):
        image = image.get("url")
    if image is None and isinstance(source, dict):
        image = source.get("url") or source.get("path") or ("[image]" if source.get("data") else None)
    return image if isinstance(image, str) else None
