"""OpenInference spans, as Phoenix exports them: dotted or nested attributes, or columns of a table."""

from __future__ import annotations

from typing import Any

from rlready.experience.logs.facts import Notes, scores_of
from rlready.experience.logs.flat import Flat, attributes_of, facts_of, flat, is_flat, keys
from rlready.experience.logs.forms import SpanForm, itself, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish, nest

_KIND: dict[str, Kind] = {"LLM": "llm", "TOOL": "tool", "RETRIEVER": "tool", "AGENT": "agent", "CHAIN": "agent"}
KINDS = (*_KIND, "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT", "UNKNOWN")


def is_ours(raw: Any, attributes: dict[str, Any]) -> bool:
    """Whether a span was logged by OpenInference."""
    return "openinference.span.kind" in attributes or (isinstance(raw, dict) and raw.get("span_kind") in KINDS)


def fits(value: Any) -> bool:
    """Whether a record is a span of OpenInference."""
    if not is_flat(value):
        return False
    attributes = value.get("attributes")
    if isinstance(attributes, (dict, list)):
        try:
            return is_ours(value, attributes_of(attributes))
        except UnreadableError:
            return False
    return value.get("span_kind") in KINDS or "attributes.openinference.span.kind" in value


def span(raw: Any, notes: Notes) -> Span:
    """One span.

    Raises:
        UnreadableError: it is none.
    """
    return read(flat(raw), raw, notes)


def read(found: Flat, raw: dict[str, Any], notes: Notes) -> Span:
    """One span; `raw` is the record that it stood in, for annotations."""
    a = nest(found.attributes)
    kind = _KIND.get(text(found.attributes.get("openinference.span.kind") or raw.get("span_kind")).upper(), "other")
    out = Span(found.id, found.parent, kind, found.name, found.start, found.end, failed=found.failed)
    out.facts = facts_of(found.attributes, found.events, notes)
    out.facts.scores += scores_of(first(raw, "annotations", "span_annotations", "evaluations") or [], notes)
    llm = a.get("llm") if isinstance(a.get("llm"), dict) else {}
    assert isinstance(llm, dict)
    out.model = text(llm.get("model_name"))
    given, gave = _value(a.get("input")), _value(a.get("output"))
    if kind == "tool":
        tool = a.get("tool") if isinstance(a.get("tool"), dict) else {}
        call = a.get("tool_call") if isinstance(a.get("tool_call"), dict) else {}
        assert isinstance(tool, dict) and isinstance(call, dict)
        out.name = text(tool.get("name")) or found.name
        out.call = text(first(call, "id")) or text(first(tool, "call_id", "id"))
        arguments = first(tool, "parameters") if given is None else given
        out.arguments = None if arguments is None else arguments_text(arguments)
        if gave is None and out.failed:
            gave = found.message or None
        out.result = None if gave is None else result_text(gave)
        return out
    if kind == "llm":
        out.given = [_message(m) for m in _list(llm.get("input_messages"))] or as_messages(given, "user")
        out.said = [_message(m) for m in _list(llm.get("output_messages"))] or as_messages(gave, "assistant")
        out.tools = [jsonish(_of(t, "tool").get("json_schema")) for t in _list(llm.get("tools")) if isinstance(t, dict)]
    elif kind == "agent":
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
    return out


def _value(holder: Any) -> Any:
    return holder.get("value") if isinstance(holder, dict) else holder


def _list(value: Any) -> list[Any]:
    value = jsonish(value)
    return value if isinstance(value, list) else []


def _of(holder: dict[str, Any], key: str) -> dict[str, Any]:
    inner = holder.get(key)
    return inner if isinstance(inner, dict) else holder


def _message(raw: Any) -> Any:
    """`{"message": {"role", "content", "contents", "tool_calls": [{"tool_call": {...}}]}}` as a chat message."""
    if not isinstance(raw, dict):
        return raw
    message = _of(raw, "message")
    content = message.get("content")
    if content is None and isinstance(message.get("contents"), list):
        content = [_of(c, "message_content") for c in message["contents"] if isinstance(c, dict)]
    out = {"role": message.get("role"), "content": content if content is not None else ""}
    calls = [_of(c, "tool_call") for c in _list(message.get("tool_calls")) if isinstance(c, dict)]
    if calls:
        out["tool_calls"] = calls
    elif message.get("function_call_name"):
        out["function_call"] = {
            "name": message["function_call_name"],
            "arguments": message.get("function_call_arguments_json"),
        }
    return out | {k: message[k] for k in ("tool_call_id", "name") if message.get(k)}


FORM = SpanForm("phoenix", fits, itself, keys, span)
