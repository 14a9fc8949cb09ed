"""Langfuse: traces with their observations, or observations, traces and scores as rows that name their trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlready.experience.logs.facts import Notes, scores_of
from rlready.experience.logs.forms import SpanForm, Way, text
from rlready.experience.logs.messages import keys_of, result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish

_KIND: dict[str, Kind] = {
    "GENERATION": "llm", "TOOL": "tool", "RETRIEVER": "tool", "AGENT": "agent", "CHAIN": "agent", "SPAN": "other",
    "EVENT": "other", "EVALUATOR": "other", "EMBEDDING": "other", "GUARDRAIL": "other",
}  # fmt: skip
_TRACE = "trace"  # an observation of ours that stands for the trace itself
_SCORE = "score"


def fits(value: Any) -> bool:
    """Whether a record is a trace, an observation or a score of Langfuse."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("observations"), list) and "id" in value:
        return True
    named = isinstance(first(value, "traceId", "trace_id"), str)
    return named and (text(value.get("type")) in _KIND or _is_score(value))


def _is_score(value: dict[str, Any]) -> bool:
    return "name" in value and "value" in value and first(value, "dataType", "data_type", "source") is not None


def items(value: Any) -> Iterator[tuple[Way, Any]]:
    """The trace itself, then its observations."""
    yield (), value
    if isinstance(value.get("observations"), list):
        for index, each in enumerate(value["observations"]):
            if isinstance(each, dict):
                each.setdefault("traceId", value["id"])
                yield ("observations", index), each


def keys(raw: Any) -> tuple[str, str]:
    """(trace, session) of a trace or an observation."""
    if not isinstance(raw, dict):
        return "", ""
    trace = raw["id"] if isinstance(raw.get("observations"), list) else first(raw, "traceId", "trace_id")
    return text(trace), text(first(raw, "sessionId", "session_id"))


def span(raw: Any, notes: Notes) -> Span:
    """One observation; the trace's own input and output count as an agent's.

    Raises:
        UnreadableError: its type is unknown.
    """
    out = Span()
    metadata = jsonish(raw.get("metadata"))
    for holder in (metadata, metadata.get("attributes") if isinstance(metadata, dict) else None):
        if isinstance(holder, dict):
            out.facts.read(holder, notes, ids=False)
    if isinstance(raw.get("observations"), list):
        out.id, out.kind, out.name = f"{_TRACE} {raw['id']}", "agent", text(raw.get("name"))
        out.start = seconds_of(first(raw, "timestamp", "createdAt"))
        out.given, out.said = as_messages(raw.get("input"), "user"), as_messages(raw.get("output"), "assistant")
        out.facts.scores = scores_of(raw.get("scores") or [], notes)
        return out
    if text(raw.get("type")) not in _KIND and _is_score(raw):
        out.id, out.facts.scores = f"{_SCORE} {text(raw.get('id'))}", scores_of([raw], notes)
        return out
    if text(raw.get("type")) not in _KIND:
        raise UnreadableError(f"no observation of Langfuse; the keys are {keys_of(raw)}")
    out.id, out.parent = text(raw.get("id")), text(first(raw, "parentObservationId", "parent_observation_id"))
    out.kind, out.name = _KIND[raw["type"]], text(raw.get("name"))
    out.start = seconds_of(first(raw, "startTime", "start_time"))
    out.end = seconds_of(first(raw, "endTime", "end_time"))
    out.failed = raw.get("level") == "ERROR"
    given, gave = raw.get("input"), raw.get("output")
    if out.kind in ("tool", "other"):
        out.arguments = None if given is None else arguments_text(given)
        if gave is None and out.failed:
            gave = first(raw, "statusMessage", "status_message")
        out.result = None if gave is None else result_text(gave)
        if isinstance(metadata, dict):
            out.call = text(first(metadata, "tool_call_id", "toolCallId"))
    if out.kind != "tool":
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
    if out.kind == "llm":
        out.model = text(first(raw, "model", "provided_model_name"))
        given = jsonish(given)
        tools = given.get("tools") if isinstance(given, dict) else None
        out.tools = tools if isinstance(tools, list) else []
        more = first(raw, "tool_calls", "toolCalls")
        if (
            isinstance(more, list)
            and more
            and out.said
            and isinstance(out.said[-1], dict)
            and not out.said[-1].get("tool_calls")
        ):
            out.said[-1] = {**out.said[-1], "tool_calls": [jsonish(c) for c in more]}
    return out


FORM = SpanForm("langfuse", fits, items, keys, span)
