"""PostHog: events of its AI observability. Properties stand in an object, in JSON text, or flat in a table's row."""

from __future__ import annotations

from typing import Any

from rlready.experience.logs.facts import Notes, number
from rlready.experience.logs.forms import SpanForm, itself, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish

_KIND: dict[str, Kind] = {
    "$ai_generation": "llm", "$ai_span": "other", "$ai_trace": "agent", "$ai_embedding": "other", "$ai_metric": "other",
    "$ai_feedback": "other", "$ai_evaluation": "other",
}  # fmt: skip


def fits(value: Any) -> bool:
    """Whether a record is an event of PostHog."""
    if not isinstance(value, dict):
        return False
    return (isinstance(value.get("event"), str) and "properties" in value) or any("$ai_" in key for key in value)


def properties_of(raw: dict[str, Any]) -> dict[str, Any]:
    """The event's properties."""
    inner = jsonish(raw.get("properties"))
    if isinstance(inner, dict):
        return inner
    return {
        k.removeprefix("properties."): v for k, v in raw.items() if k.removeprefix("properties.").startswith("$ai_")
    }


def keys(raw: Any) -> tuple[str, str]:
    """(trace, session) of an event; events that are not about AI have none."""
    if not isinstance(raw, dict):
        return "", ""
    p = properties_of(raw)
    return text(p.get("$ai_trace_id")), text(p.get("$ai_session_id"))


def span(raw: Any, notes: Notes) -> Span:
    """One event.

    Raises:
        UnreadableError: it is not about AI.
    """
    p = properties_of(raw)
    event = text(raw.get("event"))
    event = event or ("$ai_generation" if "$ai_output_choices" in p else "$ai_span")
    if event not in _KIND:
        raise UnreadableError(f'the event "{event[:40]}" is not about a model or a tool')
    out = Span(text(first(p, "$ai_span_id", "$ai_generation_id")), text(p.get("$ai_parent_id")), _KIND[event])
    out.name = text(p.get("$ai_span_name"))
    when, took = seconds_of(first(raw, "timestamp", "created_at")), p.get("$ai_latency")
    if isinstance(took, (int, float)) and when is not None and event != "$ai_trace":
        out.start, out.end = when - took, when  # an event is sent when its work is done
    else:
        out.start = when
    out.failed = p.get("$ai_is_error") in (True, "true")
    if event == "$ai_trace":
        out.id = f"trace {out.id or text(p.get('$ai_trace_id'))}"
        out.start = None if when is None else when - took if isinstance(took, (int, float)) else when
    out.facts.read({k: v for k, v in p.items() if not k.startswith("$")}, notes, ids=False)
    if event in ("$ai_metric", "$ai_evaluation"):
        value = number(first(p, "$ai_metric_value", "$ai_evaluation_result"), notes)
        if value is not None:
            out.facts.scores.append((text(first(p, "$ai_metric_name", "$ai_evaluation_name")) or "score", value))
        out.id = (
            f"{event} {text(raw.get('uuid')) or out.name or len(out.facts.scores)} {text(p.get('$ai_metric_name'))}"
        )
        return out
    if event == "$ai_generation":
        out.given, out.said = (
            as_messages(p.get("$ai_input"), "user"),
            as_messages(p.get("$ai_output_choices"), "assistant"),
        )
        out.model = text(p.get("$ai_model"))
        tools = jsonish(p.get("$ai_tools"))
        out.tools = tools if isinstance(tools, list) else []
        return out
    given, gave = p.get("$ai_input_state"), p.get("$ai_output_state")
    if event == "$ai_trace":
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
        return out
    out.call = text(first(p, "$ai_tool_call_id", "tool_call_id"))
    if out.call or p.get("$ai_span_type") == "tool":
        out.kind = "tool"
    out.arguments = None if given is None else arguments_text(given)
    if gave is None and out.failed:
        gave = p.get("$ai_error")
    out.result = None if gave is None else result_text(gave)
    return out


FORM = SpanForm("posthog", fits, itself, keys, span)
