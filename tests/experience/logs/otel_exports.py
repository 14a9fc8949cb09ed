"""Spans of observability tools: the same conversation in the shape that each of them exports.

What a model was given and said stands in two model calls; the tool's result in the second prompt and in a tool span.
"""

from __future__ import annotations

import json
from typing import Any

SYSTEM, ASK, RESULT, ANSWER = "Be brief.", "Weather in Paris?", "18C", "It is 18C."
ARGUMENTS = {"city": "Paris"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "Of a city.", "parameters": SCHEMA}
OPENAI_TOOL = {"type": "function", "function": TOOL}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}}
FIRST = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
SAID = {"role": "assistant", "content": "", "tool_calls": [CALL]}
SECOND = [*FIRST, SAID, {"role": "tool", "tool_call_id": "c1", "content": RESULT}]
LAST = {"role": "assistant", "content": ANSWER}
WANTED = [
    ("system", SYSTEM, []),
    ("user", ASK, []),
    ("assistant", "", [("get_weather", ARGUMENTS)]),
    ("tool", RESULT, []),
    ("assistant", ANSWER, []),
]


def attributes(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """As OTLP writes them."""

    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, float):
            return {"doubleValue": value}
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(v) for v in value]}}
        if isinstance(value, dict):
            return {"kvlistValue": {"values": attributes(value)}}
        return {"stringValue": value}

    return [{"key": key, "value": typed(value)} for key, value in plain.items()]


def parts(messages: list[dict[str, Any]], result: str = "response") -> list[dict[str, Any]]:
    """Chat messages in the parts of OpenTelemetry GenAI."""
    out = []
    for m in messages:
        if m["role"] == "tool":
            each: list[dict[str, Any]] = [{"type": "tool_call_response", "id": m["tool_call_id"], result: m["content"]}]
        else:
            each = [{"type": "text", "content": m["content"]}] if m["content"] else []
            for call in m.get("tool_calls", ()):
                f = call["function"]
                each.append(
                    {"type": "tool_call", "id": call["id"], "name": f["name"], "arguments": json.loads(f["arguments"])}
                )
        out.append({"role": m["role"], "parts": each})
    return out


def span(number: int, kind: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A flat span; times are seconds `number` and half a second later, in nanoseconds."""
    start = 1_700_000_000_000_000_000 + number * 1_000_000_000
    return {
        "trace_id": "t1",
        "span_id": f"s{number}",
        "parent_span_id": "s0" if number else "",
        "name": f"span {number}",
        "start_time": start,
        "end_time": start + 500_000_000,
        "attributes": kind,
        **more,
    }


def genai(*, system_apart: bool = False, result: str = "response") -> list[dict[str, Any]]:
    """The agent's span, two model calls, a tool."""
    rules = {"gen_ai.system_instructions": json.dumps([{"type": "text", "content": SYSTEM}])} if system_apart else {}
    first, second = (SECOND[1:2], SECOND[1:]) if system_apart else (FIRST, SECOND)
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.provider.name": "openai", **rules}
    tools = {"gen_ai.tool.definitions": json.dumps([{"type": "function", **TOOL}])}

    def call(given: list[dict[str, Any]], said: dict[str, Any]) -> dict[str, Any]:
        return {
            **chat,
            **tools,
            "gen_ai.input.messages": json.dumps(parts(given, result)),
            "gen_ai.output.messages": json.dumps([{**parts([said])[0], "finish_reason": "stop"}]),
        }

    return [
        span(0, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a", "task_id": "w1", "reward": 1}),
        span(1, call(first, SAID)),
        span(
            2,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "get_weather",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.arguments": json.dumps(ARGUMENTS),
                "gen_ai.tool.call.result": RESULT,
            },
        ),
        span(3, call(second, LAST)),
    ]


def old_names() -> list[dict[str, Any]]:
    def indexed(head: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i, m in enumerate(messages):
            out[f"{head}.{i}.role"] = m["role"]
            if m["content"]:
                out[f"{head}.{i}.content"] = m["content"]
            if "tool_call_id" in m:
                out[f"{head}.{i}.tool_call_id"] = m["tool_call_id"]
            for j, call in enumerate(m.get("tool_calls", ())):
                for key, value in {"id": call["id"], **call["function"]}.items():
                    out[f"{head}.{i}.tool_calls.{j}.{key}"] = value
        return out

    functions = {f"llm.request.functions.0.{k}": v if isinstance(v, str) else json.dumps(v) for k, v in TOOL.items()}
    chat = {"gen_ai.system": "openai", "llm.request.type": "chat", "gen_ai.request.model": "m", **functions}
    return [
        span(0, {"traceloop.span.kind": "workflow", "traceloop.association.properties.task_id": "w1", "reward": 1}),
        span(1, {**chat, **indexed("gen_ai.prompt", FIRST), **indexed("gen_ai.completion", [SAID])}),
        span(
            2,
            {"traceloop.span.kind": "tool", "traceloop.entity.name": "get_weather", "traceloop.entity.output": RESULT},
        ),
        span(3, {**chat, **indexed("gen_ai.prompt", SECOND), **indexed("gen_ai.completion", [LAST])}),
    ]


def events() -> list[dict[str, Any]]:
    """Conventions up to 1.36: every message an event."""

    def logged(given: list[dict[str, Any]], said: dict[str, Any]) -> list[dict[str, Any]]:
        out = []
        for m in given:
            body = {k: v for k, v in m.items() if k in ("content", "tool_calls")}
            if m["role"] == "tool":
                body = {"id": m["tool_call_id"], "content": m["content"]}
            if "tool_calls" in body:
                body["tool_calls"] = json.dumps(body["tool_calls"])
            out.append({"name": f"gen_ai.{m['role']}.message", "attributes": {"gen_ai.system": "openai", **body}})
        return [*out, {"name": "gen_ai.choice", "attributes": {"index": 0, "message": json.dumps(said)}}]

    chat = {"gen_ai.operation.name": "chat", "gen_ai.system": "openai", "gen_ai.request.model": "m"}
    return [
        span(1, {**chat, "task_id": "w1", "reward": 1}, events=logged(FIRST, SAID)),
        span(
            2, {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather", "gen_ai.tool.call.id": "c1"}
        ),
        span(3, chat, events=logged(SECOND, LAST)),
    ]


def vercel() -> list[dict[str, Any]]:
    """The AI SDK: an outer span around the calls, its messages in parts of its own."""
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "get_weather", "input": ARGUMENTS}
    output = {"type": "text", "value": RESULT}
    prompt = [
        *FIRST,
        {"role": "assistant", "content": [call]},
        {
            "role": "tool",
            "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "get_weather", "output": output}],
        },
    ]
    step = {"operation.name": "ai.generateText.doGenerate", "gen_ai.system": "openai", "ai.model.id": "m"}
    tools = {
        "ai.prompt.tools": [
            json.dumps({"type": "function", "name": "get_weather", "description": "Of a city.", "inputSchema": SCHEMA})
        ]
    }
    return [
        span(
            0,
            {
                "operation.name": "ai.generateText",
                "ai.prompt": json.dumps({"messages": FIRST}),
                "ai.response.text": ANSWER,
                "ai.telemetry.metadata.task_id": "w1",
                "ai.telemetry.metadata.reward": 1,
            },
        ),
        span(
            1, {**step, **tools, "ai.prompt.messages": json.dumps(FIRST), "ai.response.toolCalls": json.dumps([call])}
        ),
        span(
            2,
            {
                "operation.name": "ai.toolCall",
                "ai.toolCall.name": "get_weather",
                "ai.toolCall.id": "c1",
                "ai.toolCall.args": json.dumps(ARGUMENTS),
                "ai.toolCall.result": json.dumps(RESULT),
            },
        ),
        span(3, {**step, "ai.prompt.messages": json.dumps(prompt), "ai.response.text": ANSWER}),
    ]


def otlp(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spans as two OTLP exports, as a collector's file exporter writes them a line each."""

    def typed(s: dict[str, Any]) -> dict[str, Any]:
        return {
            "traceId": s["trace_id"],
            "spanId": s["span_id"],
            "parentSpanId": s["parent_span_id"],
            "name": s["name"],
            "startTimeUnixNano": str(s["start_time"]),
            "endTimeUnixNano": str(s["end_time"]),
            "attributes": attributes(s["attributes"]),
            "status": s.get("status", {}),
            "events": [{"name": e["name"], "attributes": attributes(e["attributes"])} for e in s.get("events", ())],
        }

    half = len(spans) // 2
    return [
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": []},
                    "scopeSpans": [{"scope": {"name": "x"}, "spans": [typed(s) for s in some]}],
                }
            ]
        }
        for some in (spans[half:], spans[:half])
    ]
