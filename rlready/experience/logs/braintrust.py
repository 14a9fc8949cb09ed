"""Braintrust: spans of project logs and experiments, one a row."""

from __future__ import annotations

from typing import Any

from rlready.experience.logs.facts import Notes, number
from rlready.experience.logs.forms import SpanForm, itself, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish

_KIND: dict[str, Kind] = {"llm": "llm", "tool": "tool", "task": "agent", "eval": "agent", "function": "other"}
_SESSIONS = ("session_id", "conversation_id", "thread_id")


def fits(value: Any) -> bool:
    """Whether a record is a span of Braintrust."""
    return isinstance(value, dict) and "span_id" in value and isinstance(value.get("span_attributes"), dict)


def keys(raw: Any) -> tuple[str, str]:
    """(trace, session) of a span."""
    if not isinstance(raw, dict):
        return "", ""
    metadata = raw.get("metadata")
    session = first(metadata, *_SESSIONS) if isinstance(metadata, dict) else None
    return text(first(raw, "root_span_id", "span_id")), text(session)


def span(raw: Any, notes: Notes) -> Span:
    """One span; rows of scorers hold no conversation, scores stand beside the span that was scored.

    Raises:
        UnreadableError: it is none.
    """
    if not fits(raw):
        raise UnreadableError("a span has no span_attributes")
    about = raw["span_attributes"]
    metrics = raw["metrics"] if isinstance(raw.get("metrics"), dict) else {}
    parents = raw.get("span_parents") or []
    metadata = raw["metadata"] if isinstance(raw.get("metadata"), dict) else {}
    out = Span(
        text(raw["span_id"]), text(parents[0]) if parents else "", _KIND.get(text(about.get("type")), "other"),
        text(about.get("name")), seconds_of(metrics.get("start")), seconds_of(metrics.get("end")),
        failed=raw.get("error") is not None,
    )  # fmt: skip
    if about.get("type") == "score" or about.get("purpose") == "scorer":
        return out
    out.facts.read(metadata, notes, ids=False)
    scores = raw.get("scores")
    for name, value in scores.items() if isinstance(scores, dict) else ():
        if (found := number(value, notes)) is not None:
            out.facts.scores.append((name, found))
    given, gave = jsonish(raw.get("input")), raw.get("output")
    if out.kind in ("tool", "other"):
        out.arguments = None if given is None else arguments_text(given)
        if gave is None and out.failed:
            gave = raw["error"]
        out.result = None if gave is None else result_text(gave)
        out.call = text(first(metadata, "tool_call_id", "toolCallId"))
    if out.kind in ("llm", "agent"):
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
    if out.kind == "llm":
        out.model = text(metadata.get("model"))
        out.tools = metadata["tools"] if isinstance(metadata.get("tools"), list) else []
    return out


FORM = SpanForm("braintrust", fits, itself, keys, span)
