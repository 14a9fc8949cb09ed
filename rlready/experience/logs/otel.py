"""OpenTelemetry spans of generative AI: OTLP JSON, and flat spans as collectors and SDKs write them to files.

Read are the GenAI conventions in their new names (`gen_ai.input.messages`), the older ones (`gen_ai.prompt.0.role`,
`gen_ai.completion.0.content`, `gen_ai.system`; events such as `gen_ai.user.message`), Traceloop's and the Vercel AI
SDK's attributes, and OpenInference, whose attributes `phoenix` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlready.experience.logs import phoenix
from rlready.experience.logs.facts import Notes
from rlready.experience.logs.flat import Flat, facts_of, flat, is_flat, keys
from rlready.experience.logs.forms import SpanForm, Way, itself, text
from rlready.experience.logs.messages import result_text
from rlready.experience.logs.spans import Kind, Span
from rlready.experience.logs.values import arguments_text, as_messages, first, jsonish, nest

_MODELS = ("chat", "text_completion", "generate_content", "completion")
_AGENTS = ("invoke_agent", "create_agent", "invoke_workflow", "agent", "workflow")
_EVENT_ROLES = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}  # fmt: skip


def span(raw: Any, notes: Notes) -> Span:
    """One span; those of OpenInference are told by their attribute."""
    found = flat(raw)
    if phoenix.is_ours(raw, found.attributes):
        return phoenix.read(found, raw, notes)
    return _genai(found, notes)


def _genai(found: Flat, notes: Notes) -> Span:
    a = found.attributes
    out = Span(
        found.id, found.parent, _kind(found), found.name, found.start, found.end,
        failed=found.failed or "error.type" in a,
        model=text(first(a, "gen_ai.response.model", "gen_ai.request.model", "ai.model.id")),
        facts=facts_of(a, found.events, notes),
    )  # fmt: skip
    if out.kind == "tool":
        out.name = text(
            first(a, "gen_ai.tool.name", "ai.toolCall.name", "traceloop.entity.name")
        ) or found.name.removeprefix("execute_tool ")
        out.call = text(first(a, "gen_ai.tool.call.id", "ai.toolCall.id"))
        given = first(
            a, "gen_ai.tool.call.arguments", "ai.toolCall.args", "traceloop.entity.input", "input.value", "input"
        )
        out.arguments = None if given is None else arguments_text(given)
        gave = first(
            a, "gen_ai.tool.call.result", "ai.toolCall.result", "traceloop.entity.output", "output.value", "output"
        )
        if gave is None and out.failed:
            gave = found.message or None
        out.result = None if gave is None else result_text(gave)
        return out
    nested = nest({k: v for k, v in a.items() if k.startswith(("gen_ai.prompt", "gen_ai.completion"))}).get(
        "gen_ai", {}
    )
    given = first(
        a, "gen_ai.input.messages", "pydantic_ai.all_messages", "all_messages_events", "ai.prompt.messages", "ai.prompt"
    )
    said = first(a, "gen_ai.output.messages", "gen_ai.response.messages")
    for name, event in found.events:
        given = given if given is not None else event.get("gen_ai.input.messages")
        said = said if said is not None else event.get("gen_ai.output.messages")
        if name == "gen_ai.content.prompt":
            given = given if given is not None else event.get("gen_ai.prompt")
        if name == "gen_ai.content.completion":
            said = said if said is not None else event.get("gen_ai.completion")
    out.given = as_messages(given if given is not None else nested.get("prompt"), "user")
    out.said = as_messages(said if said is not None else nested.get("completion"), "assistant")
    _from_events(found, out)
    if not out.said and ("ai.response.text" in a or "ai.response.toolCalls" in a):
        calls = jsonish(a.get("ai.response.toolCalls")) or []
        out.said = [{"role": "assistant", "content": a.get("ai.response.text") or "", "tool_calls": calls}]
    rules = as_messages(a.get("gen_ai.system_instructions"), "system")
    if rules and not any(isinstance(m, dict) and m.get("role") == "system" for m in out.given):
        out.given = rules + out.given
    tools = first(a, "gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools")
    functions = nest({k: v for k, v in a.items() if k.startswith("llm.request.functions")})
    tools = jsonish(tools) if tools is not None else functions.get("llm", {}).get("request", {}).get("functions", [])
    out.tools = [jsonish(t) for t in tools] if isinstance(tools, list) else []
    if out.kind == "other" and (out.given or out.said):
        out.kind = "llm" if not any(k.startswith("ai.prompt") for k in a) or "ai.prompt.messages" in a else "agent"
    return out


def _from_events(found: Flat, out: Span) -> None:
    """The older conventions put every message into an event of its own."""
    for name, event in found.events:
        if name in _EVENT_ROLES and not isinstance(first(found.attributes, "gen_ai.input.messages"), (str, list)):
            message = {k: jsonish(v) for k, v in event.items() if k != "gen_ai.system"}
            if name == "gen_ai.tool.message":
                message = {"tool_call_id": event.get("id"), **{k: v for k, v in event.items() if k != "id"}}
            out.given.append({"content": "", **message, "role": _EVENT_ROLES[name]})
        elif name == "gen_ai.choice" and not out.said:
            message = jsonish(event.get("message"))
            message = message if isinstance(message, dict) else {"content": message or event.get("content") or ""}
            if "tool_calls" in event and "tool_calls" not in message:
                message = {**message, "tool_calls": jsonish(event["tool_calls"])}
            out.said = [{"content": "", **message, "role": "assistant"}]


def _kind(found: Flat) -> Kind:
    a = found.attributes
    operation = text(a.get("gen_ai.operation.name"))
    loop = text(a.get("traceloop.span.kind"))
    if (
        operation == "execute_tool"
        or loop == "tool"
        or "ai.toolCall.name" in a
        or (not operation and "gen_ai.tool.name" in a)
    ):
        return "tool"
    if operation in _AGENTS or loop in _AGENTS:
        return "agent"
    return "llm" if operation in _MODELS or "llm.request.type" in a else "other"


def _otlp_items(value: Any) -> Iterator[tuple[Way, Any]]:
    """The spans of an export, with the way to each."""
    for name in ("resourceSpans", "resource_spans"):
        for i, resource in _listed(value, name):
            for scopes in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
                for j, scope in _listed(resource, scopes):
                    for k, each in _listed(scope, "spans"):
                        yield (name, i, scopes, j, "spans", k), each


def _listed(holder: Any, name: str) -> Iterator[tuple[int, Any]]:
    inner = holder.get(name) if isinstance(holder, dict) else None
    yield from enumerate(inner if isinstance(inner, list) else [])


def _is_otlp(value: Any) -> bool:
    return isinstance(value, dict) and (
        isinstance(value.get("resourceSpans"), list) or isinstance(value.get("resource_spans"), list)
    )


OTLP = SpanForm("otlp", _is_otlp, _otlp_items, keys, span)
FLAT = SpanForm("otel", is_flat, itself, keys, span)
