"""Mastra: spans of its own tracing, as exporters and its store write them."""

from __future__ import annotations

import re
from typing import Any

from rlready.experience.logs.facts import Notes, scores_of
from rlready.experience.logs.forms import SpanForm, itself, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish

_KIND: dict[str, Kind] = {
    "agent_run": "agent", "model_generation": "llm", "llm_generation": "llm", "model_step": "llm",
    "model_inference": "llm", "tool_call": "tool", "mcp_tool_call": "tool", "model_chunk": "other",
    "llm_chunk": "other", "processor_run": "other", "workflow_run": "other", "workflow_step": "other",
    "workflow_conditional": "other", "workflow_conditional_eval": "other", "workflow_parallel": "other",
    "workflow_loop": "other", "workflow_sleep": "other", "workflow_wait_event": "other", "generic": "other",
}  # fmt: skip
_NAME = re.compile(r"(?:mcp[_ ])?tool:\s*'?([^']+?)'?(?:\s+on\s+.*)?$", re.IGNORECASE)
_SESSIONS = ("threadId", "thread_id", "sessionId", "session_id", "resourceThreadId")


def fits(value: Any) -> bool:
    """Whether a record is a span of Mastra."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("traceId"), str)
        and text(first(value, "type", "spanType")) in _KIND
    )


def keys(raw: Any) -> tuple[str, str]:
    """(trace, thread) of a span."""
    if not isinstance(raw, dict):
        return "", ""
    metadata = jsonish(raw.get("metadata"))
    session = first(metadata, *_SESSIONS) if isinstance(metadata, dict) else None
    return text(raw.get("traceId")), text(first(raw, "threadId", "sessionId") or session)


def span(raw: Any, notes: Notes) -> Span:
    """One span.

    Raises:
        UnreadableError: it is none.
    """
    if not fits(raw):
        raise UnreadableError("a span has no type of Mastra's")
    kind = _KIND[first(raw, "type", "spanType")]
    about = jsonish(raw.get("attributes"))
    about = about if isinstance(about, dict) else {}
    metadata = jsonish(raw.get("metadata"))
    metadata = metadata if isinstance(metadata, dict) else {}
    error = first(raw, "errorInfo", "error")
    out = Span(
        text(first(raw, "id", "spanId")), text(first(raw, "parentSpanId", "parentId")), kind, text(raw.get("name")),
        seconds_of(first(raw, "startTime", "startedAt")), seconds_of(first(raw, "endTime", "endedAt")),
        failed=error is not None or about.get("success") is False,
    )  # fmt: skip
    out.facts.read(metadata, notes, ids=False)
    out.facts.scores += scores_of(raw.get("scores") or [], notes)
    given, gave = jsonish(raw.get("input")), jsonish(raw.get("output"))
    if kind == "tool":
        named = _NAME.match(out.name)
        out.name = (
            text(first(about, "toolId", "toolName"))
            or text(raw.get("entityName"))
            or (named.group(1) if named else out.name)
        )
        holders = [h for h in (about, metadata, given, gave) if isinstance(h, dict)]
        out.call = next((text(h["toolCallId"]) for h in holders if h.get("toolCallId")), "")
        arguments = first(raw, "args")
        if isinstance(given, dict) and "toolCallId" in given:
            given = first(given, "input", "args")
        arguments = given if arguments is None else arguments
        out.arguments = None if arguments is None else arguments_text(arguments)
        if isinstance(gave, dict) and "toolCallId" in gave:
            gave = first(gave, "result", "output")
        if gave is None and error is not None:
            gave = error.get("message", error) if isinstance(error, dict) else error
        out.result = None if gave is None else result_text(gave)
    elif kind in ("llm", "agent"):
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
        rules = about.get("instructions")
        if isinstance(rules, str) and rules and out.given and not _has_system(out.given):
            out.given = [{"role": "system", "content": rules}, *out.given]
        out.model = text(about.get("model"))
        tools = first(about, "tools") or (given.get("tools") if isinstance(given, dict) else None)
        out.tools = tools if isinstance(tools, list) else []
    return out


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(m, dict) and m.get("role") == "system" for m in messages)


FORM = SpanForm("mastra", fits, itself, keys, span)
