"""LangSmith: runs as rows, or a run with its `child_runs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlready.experience.logs.facts import Notes, number
from rlready.experience.logs.forms import SpanForm, Way, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.times import seconds_of
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish

_KIND: dict[str, Kind] = {
    "llm": "llm", "chat_model": "llm", "tool": "tool", "retriever": "tool", "chain": "agent", "agent": "agent",
}  # fmt: skip
_THREADS = ("thread_id", "session_id", "conversation_id")


def fits(value: Any) -> bool:
    """Whether a record is a run of LangSmith."""
    return isinstance(value, dict) and isinstance(value.get("run_type"), str)


def items(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """The run, then the runs below it, which take over its trace and name it as parent."""
    yield way, value
    children = value.get("child_runs")
    if isinstance(children, list):
        trace = first(value, "trace_id", "id")
        for index, child in enumerate(children):
            if isinstance(child, dict):
                child.setdefault("trace_id", trace)
                child.setdefault("parent_run_id", value.get("id"))
                yield from items(child, (*way, "child_runs", index))


def keys(raw: Any) -> tuple[str, str]:
    """(trace, thread) of a run."""
    if not isinstance(raw, dict):
        return "", ""
    metadata = _metadata(raw)
    trace = first(raw, "trace_id") or (None if raw.get("parent_run_id") else raw.get("id"))
    return text(trace), text(first(metadata, *_THREADS))


def span(raw: Any, notes: Notes) -> Span:
    """One run.

    Raises:
        UnreadableError: it has no type.
    """
    if not fits(raw):
        raise UnreadableError("a run has no run_type")
    out = Span(
        text(raw.get("id")), text(raw.get("parent_run_id")), _KIND.get(raw["run_type"], "other"), text(raw.get("name")),
        seconds_of(raw.get("start_time")), seconds_of(raw.get("end_time")), failed=bool(raw.get("error")),
    )  # fmt: skip
    metadata = _metadata(raw)
    out.facts.task = text(raw.get("reference_example_id"))
    out.facts.read(metadata, notes, ids=False)
    stats = raw.get("feedback_stats")
    for name, each in stats.items() if isinstance(stats, dict) else ():
        if (value := number(each.get("avg") if isinstance(each, dict) else each, notes)) is not None:
            out.facts.scores.append((name, value))
    given, gave = jsonish(raw.get("inputs")), jsonish(raw.get("outputs"))
    if out.kind == "tool":
        if isinstance(given, dict) and set(given) == {"input"} and str(given["input"])[:1] == "{":
            given = given["input"]  # LangChain logs the arguments as one text
        out.arguments = None if given is None else arguments_text(given)
        result = gave.get("output", gave) if isinstance(gave, dict) else gave
        inner = result.get("kwargs", result) if isinstance(result, dict) else {}
        inner = inner if isinstance(inner, dict) else {}
        out.call = text(inner.get("tool_call_id")) or text(metadata.get("tool_call_id"))
        if "tool_call_id" in inner:
            out.failed = out.failed or inner.get("status") == "error"
            result = inner.get("content", "")
        if result is None and raw.get("error"):
            result = raw["error"]
        out.result = None if result is None else result_text(result)
    elif out.kind != "other":
        out.given, out.said = as_messages(given, "user"), as_messages(gave, "assistant")
    if out.kind == "llm":
        extra = raw.get("extra")
        params = extra.get("invocation_params") if isinstance(extra, dict) else None
        params = params if isinstance(params, dict) else {}
        tools = params.get("tools") or (given.get("tools") if isinstance(given, dict) else None)
        out.tools = tools if isinstance(tools, list) else []
        out.model = text(first(metadata, "ls_model_name")) or text(first(params, "model", "model_name"))
    return out


def _metadata(raw: dict[str, Any]) -> dict[str, Any]:
    extra = raw.get("extra")
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else {}


FORM = SpanForm("langsmith", fits, items, keys, span)
