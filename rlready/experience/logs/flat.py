"""A span with plain attributes, from OTLP's typed values, an SDK's exporter, or a row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlready.experience.logs.facts import Facts, Notes, number
from rlready.experience.logs.forms import text
from rlready.experience.logs.messages import keys_of
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import first, jsonish

_FACTS = ("task_id", "instance_id", "trial", "reward", "score", "success", "done", "seed", "truncated")
SESSIONS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "thread.id",
    "ai.telemetry.metadata.sessionId",
)


@dataclass(slots=True)
class Flat:
    """A span with plain attributes."""

    id: str
    parent: str
    name: str
    start: float | None
    end: float | None
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    failed: bool = False
    message: str = ""


def plain(value: Any) -> Any:
    """A typed value of OTLP (`{"stringValue": ...}`) as a plain one; integers are written as text there."""
    if not isinstance(value, dict):
        return value
    for key, inner in value.items():
        if key in (
            "stringValue",
            "string_value",
            "boolValue",
            "bool_value",
            "bytesValue",
            "doubleValue",
            "double_value",
        ):
            return inner
        if key in ("intValue", "int_value"):
            return int(inner)
        if key in ("arrayValue", "array_value"):
            return [plain(each) for each in (inner or {}).get("values", [])]
        if key in ("kvlistValue", "kvlist_value"):
            return attributes_of((inner or {}).get("values", []))
    return None


def attributes_of(raw: Any) -> dict[str, Any]:
    """Attributes as a mapping, whether they are one already, nested, or OTLP's list of key and value."""
    if isinstance(raw, dict):
        if all(isinstance(k, str) and ("." in k or not isinstance(v, dict)) for k, v in raw.items()):
            return raw
        return _flattened(raw)
    if isinstance(raw, list):
        if not all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in raw):
            raise UnreadableError("attributes are no pairs of key and value")
        return {pair["key"]: plain(pair.get("value")) for pair in raw}
    return {}


def _flattened(raw: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """{"gen_ai": {"tool": {"name": ...}}} -> {"gen_ai.tool.name": ...}; lists stay as they are."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            out |= _flattened(value, f"{head}{key}.")
        out[f"{head}{key}"] = value
    return out


def flat(raw: Any) -> Flat:
    """A span of OTLP, of an SDK's console exporter, or of a table's row.

    Raises:
        UnreadableError: it is no span.
    """
    if not isinstance(raw, dict):
        raise UnreadableError(f"a span is {keys_of(raw)}, not an object")
    context = raw["context"] if isinstance(raw.get("context"), dict) else raw
    status = raw.get("status")
    code = status if not isinstance(status, dict) else first(status, "code", "status_code", "statusCode")
    code = first(raw, "status_code", "statusCode") or code
    says = (
        status.get("message", status.get("description", ""))
        if isinstance(status, dict)
        else raw.get("status_message", "")
    )
    listed = raw.get("events")
    events = [
        (text(first(e, "name", "event_name", "eventName")), attributes_of(first(e, "attributes", "body") or {}))
        for e in (listed if isinstance(listed, list) else [])
        if isinstance(e, dict)
    ]
    return Flat(
        id=text(first(context, "spanId", "span_id", "context.span_id")),
        parent=text(first(raw, "parentSpanId", "parent_span_id", "parent_id", "parentId")),
        name=text(raw.get("name")),
        start=seconds_of(first(raw, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "start")),
        end=seconds_of(first(raw, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime", "end")),
        attributes=attributes_of(raw["attributes"])
        if "attributes" in raw
        else {k[11:]: v for k, v in raw.items() if k.startswith("attributes.")},
        events=events,
        failed=code in (2, "2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR", "error"),
        message=text(says),
    )


def keys(raw: Any) -> tuple[str, str]:
    """(trace, session) of a span."""
    if not isinstance(raw, dict):
        return "", ""
    context = raw["context"] if isinstance(raw.get("context"), dict) else raw
    trace = text(first(context, "traceId", "trace_id", "context.trace_id"))
    attributes = raw.get("attributes")
    if isinstance(attributes, list):
        for pair in attributes:
            if isinstance(pair, dict) and pair.get("key") in SESSIONS:
                return trace, text(plain(pair.get("value")))
        return trace, ""
    said = attributes if isinstance(attributes, dict) else {}
    session = first(said, *SESSIONS)
    if session is None and isinstance(said.get("session"), dict):
        session = said["session"].get("id")
    return trace, text(session)


def facts_of(attributes: Mapping[str, Any], events: list[tuple[str, dict[str, Any]]], notes: Notes) -> Facts:
    """What the attributes say of the run; a key counts by its last parts, so `metadata.task_id` is `task_id`."""
    facts = Facts()
    short: dict[str, Any] = {}
    for key, value in attributes.items():
        if isinstance(value, (str, int, float, bool)):
            short.setdefault(key.rpartition(".")[2], value)
    plain_keys: dict[str, Any] = {k: short[k] for k in _FACTS if k in short and f"gen_ai.request.{k}" not in attributes}
    metadata = jsonish(attributes.get("metadata"))
    facts.read(plain_keys, notes, ids=False)
    if isinstance(metadata, dict):
        facts.read(metadata, notes, ids=False)
    said = [attributes] + [each for name, each in events if name.startswith("gen_ai.evaluation")]
    for each in said:
        if (value := number(each.get("gen_ai.evaluation.score.value"), notes)) is not None:
            facts.scores.append((text(each.get("gen_ai.evaluation.name")) or "score", value))
    return facts


def is_flat(value: Any) -> bool:
    """Whether a record is a span with attributes."""
    if not isinstance(value, dict):
        return False
    context = value["context"] if isinstance(value.get("context"), dict) else value
    if first(context, "traceId", "trace_id", "context.trace_id") is None:
        return False
    return isinstance(value.get("attributes"), (dict, list)) or any(k.startswith("attributes.") for k in value)
