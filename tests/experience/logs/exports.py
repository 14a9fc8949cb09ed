"""The conversation of `otel_exports` as Phoenix, Langfuse, LangSmith, Braintrust, Mastra and PostHog export it."""

from __future__ import annotations

import json
from typing import Any

from tests.experience.logs.otel_exports import (
    ANSWER,
    ARGUMENTS,
    ASK,
    FIRST,
    LAST,
    OPENAI_TOOL,
    RESULT,
    SAID,
    SECOND,
    SYSTEM,
    TOOL,
    events,
    genai,
    old_names,
    otlp,
    span,
    vercel,
)


def openinference(*, nested: bool = False) -> list[dict[str, Any]]:
    def dotted(head: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i, m in enumerate(messages):
            at = f"llm.{head}.{i}.message"
            out[f"{at}.role"], out[f"{at}.content"] = m["role"], m["content"]
            if "tool_call_id" in m:
                out[f"{at}.tool_call_id"] = m["tool_call_id"]
            for j, call in enumerate(m.get("tool_calls", ())):
                out[f"{at}.tool_calls.{j}.tool_call.id"] = call["id"]
                out[f"{at}.tool_calls.{j}.tool_call.function.name"] = call["function"]["name"]
                out[f"{at}.tool_calls.{j}.tool_call.function.arguments"] = call["function"]["arguments"]
        return out

    def flattened(head: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """As Phoenix' client gives them: lists of objects with dotted keys."""
        rows = []
        for m in messages:
            row = {"message.role": m["role"], "message.content": m["content"]}
            if "tool_call_id" in m:
                row["message.tool_call_id"] = m["tool_call_id"]
            if "tool_calls" in m:
                row["message.tool_calls"] = [
                    {
                        "tool_call.id": c["id"],
                        "tool_call.function.name": c["function"]["name"],
                        "tool_call.function.arguments": c["function"]["arguments"],
                    }
                    for c in m["tool_calls"]
                ]
            rows.append(row)
        return {f"llm.{head}": rows}

    form = flattened if nested else dotted
    llm = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.tools.0.tool.json_schema": json.dumps(OPENAI_TOOL),
    }
    raw = [
        span(
            0,
            {
                "openinference.span.kind": "AGENT",
                "input.value": ASK,
                "output.value": ANSWER,
                "metadata": json.dumps({"task_id": "w1", "reward": 1}),
            },
        ),
        span(1, {**llm, **form("input_messages", FIRST), **form("output_messages", [SAID])}),
        span(
            2,
            {
                "openinference.span.kind": "TOOL",
                "tool.name": "get_weather",
                "input.value": json.dumps(ARGUMENTS),
                "output.value": RESULT,
            },
        ),
        span(3, {**llm, **form("input_messages", SECOND), **form("output_messages", [LAST])}),
    ]
    for each in raw:
        each["context"] = {"trace_id": each.pop("trace_id"), "span_id": each.pop("span_id")}
        each["parent_id"] = each.pop("parent_span_id") or None
        each["start_time"], each["end_time"] = (
            f"2024-01-01T00:00:0{each['name'][-1]}.{x}+00:00" for x in ("000", "500")
        )
        each["span_kind"], each["status_code"] = each["attributes"]["openinference.span.kind"], "OK"
    return raw


def openinference_otlp() -> list[dict[str, Any]]:
    spans = []
    for number, each in enumerate(openinference()):
        spans.append(span(number, each["attributes"]))
    return otlp(spans)


def langfuse() -> dict[str, Any]:
    def observation(number: int, kind: str, name: str, given: Any, gave: Any, **more: Any) -> dict[str, Any]:
        return {
            "id": f"o{number}",
            "traceId": "t1",
            "type": kind,
            "name": name,
            "input": given,
            "output": gave,
            "startTime": f"2024-01-01T00:00:0{number}.000Z",
            "endTime": f"2024-01-01T00:00:0{number}.500Z",
            "level": "DEFAULT",
            "statusMessage": None,
            "parentObservationId": None,
            "metadata": {},
            **more,
        }

    return {
        "id": "t1",
        "timestamp": "2024-01-01T00:00:00.000Z",
        "name": "agent",
        "sessionId": None,
        "metadata": {"task_id": "w1"},
        "input": {"messages": FIRST},
        "output": ANSWER,
        "scores": [{"id": "x", "name": "reward", "value": 1, "dataType": "NUMERIC"}, {"name": "length", "value": 40}],
        "observations": [
            observation(1, "GENERATION", "chat", {"messages": FIRST, "tools": [OPENAI_TOOL]}, SAID, model="m"),
            observation(2, "TOOL", "get_weather", ARGUMENTS, RESULT),
            observation(3, "GENERATION", "chat", {"messages": SECOND, "tools": [OPENAI_TOOL]}, LAST, model="m"),
        ],
    }


def langfuse_rows() -> list[dict[str, Any]]:
    """As the batch export writes observations: rows, snake case, JSON in text; the score as a row of its own."""
    names = {
        "traceId": "trace_id",
        "startTime": "start_time",
        "endTime": "end_time",
        "parentObservationId": "parent_observation_id",
    }
    rows = []
    for each in langfuse()["observations"]:
        row = {names.get(k, k): v for k, v in each.items()}
        row["input"], row["output"] = (
            v if isinstance(v, str) else json.dumps(v) for v in (row["input"], row["output"])
        )
        row["metadata"] = json.dumps({"task_id": "w1"})
        rows.append(row)
    return [*rows, {"id": "x", "trace_id": "t1", "name": "reward", "value": 1, "data_type": "NUMERIC", "source": "API"}]


def langsmith(*, nested: bool = False) -> list[dict[str, Any]]:
    def lc(kind: str, **kwargs: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}

    system, human = lc("SystemMessage", content=SYSTEM, type="system"), lc("HumanMessage", content=ASK, type="human")
    called = lc(
        "AIMessage",
        content="",
        type="ai",
        tool_calls=[{"name": "get_weather", "args": ARGUMENTS, "id": "c1", "type": "tool_call"}],
    )
    result = lc("ToolMessage", content=RESULT, type="tool", tool_call_id="c1", name="get_weather", status="success")
    answer = lc("AIMessage", content=ANSWER, type="ai")

    def run(number: int, kind: str, name: str, inputs: Any, outputs: Any, **more: Any) -> dict[str, Any]:
        return {
            "id": f"r{number}",
            "trace_id": "r0",
            "parent_run_id": "r0" if number else None,
            "run_type": kind,
            "name": name,
            "inputs": inputs,
            "outputs": outputs,
            "error": None,
            "session_id": "project",
            "extra": {"metadata": {}},
            "start_time": f"2024-01-01T00:00:0{number}.000000",
            "end_time": f"2024-01-01T00:00:0{number}.500000",
            **more,
        }

    extra = {"metadata": {"ls_model_name": "m"}, "invocation_params": {"tools": [OPENAI_TOOL]}}
    rows = [
        run(
            0,
            "chain",
            "LangGraph",
            {"messages": [{"type": "human", "content": ASK}]},
            {"messages": [human, called, result, answer]},
            feedback_stats={"correctness": {"n": 1, "avg": 1.0}},
            extra={"metadata": {"task_id": "w1"}},
        ),
        run(
            1,
            "llm",
            "ChatOpenAI",
            {"messages": [[system, human]]},
            {"generations": [[{"text": "", "message": called}]]},
            extra=extra,
        ),
        run(2, "tool", "get_weather", {"input": str(ARGUMENTS)}, {"output": result}),
        run(
            3,
            "llm",
            "ChatOpenAI",
            {"messages": [[system, human, called, result]]},
            {"generations": [[{"text": ANSWER, "message": answer}]]},
            extra=extra,
        ),
    ]
    if not nested:
        return rows
    for row in rows[1:]:
        del row["trace_id"], row["parent_run_id"]
    return [{**rows[0], "child_runs": rows[1:]}]


def braintrust() -> list[dict[str, Any]]:
    def row(number: int, kind: str, name: str, given: Any, gave: Any, **more: Any) -> dict[str, Any]:
        return {
            "id": f"row{number}",
            "span_id": f"b{number}",
            "root_span_id": "b0",
            "span_parents": ["b0"] if number else None,
            "is_root": not number,
            "span_attributes": {"name": name, "type": kind},
            "input": given,
            "output": gave,
            "metrics": {"start": 1_700_000_000 + number, "end": 1_700_000_000.5 + number},
            "scores": None,
            "metadata": {"model": "m", "tools": [OPENAI_TOOL]} if kind == "llm" else {},
            "error": None,
            **more,
        }

    return [
        row(0, "task", "agent", ASK, ANSWER, scores={"correct": 1}, metadata={"task_id": "w1"}),
        row(1, "llm", "chat", FIRST, [{"finish_reason": "tool_calls", "index": 0, "message": SAID}]),
        row(2, "tool", "get_weather", ARGUMENTS, RESULT),
        row(3, "llm", "chat", SECOND, [{"finish_reason": "stop", "index": 0, "message": LAST}]),
        row(4, "score", "correct", {"output": ANSWER}, {"score": 0.25}, scores={"other": 0.25}),
    ]


def mastra() -> list[dict[str, Any]]:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "get_weather", "args": ARGUMENTS}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "get_weather", "result": RESULT}
    second = [*FIRST, {"role": "assistant", "content": [call]}, {"role": "tool", "content": [result]}]

    def row(number: int, kind: str, name: str, given: Any, gave: Any, **more: Any) -> dict[str, Any]:
        return {
            "traceId": "t1",
            "id": f"m{number}",
            "parentSpanId": "m0" if number else None,
            "name": name,
            "type": kind,
            "startTime": f"2024-01-01T00:00:0{number}.000Z",
            "endTime": f"2024-01-01T00:00:0{number}.500Z",
            "input": given,
            "output": gave,
            "attributes": {"model": "m", "tools": [TOOL]} if kind == "model_generation" else {},
            **more,
        }

    chunk = {"text": "It "}
    return [
        row(
            0,
            "agent_run",
            "agent run: 'a'",
            ASK,
            {"text": ANSWER},
            metadata={"task_id": "w1"},
            scores=[{"name": "reward", "score": 1}],
        ),
        row(1, "model_generation", "llm: 'm'", {"messages": FIRST}, {"text": "", "toolCalls": [call]}),
        row(2, "tool_call", "tool: 'get_weather'", ARGUMENTS, RESULT, attributes={"toolCallId": "c1"}),
        row(3, "model_generation", "llm: 'm'", {"messages": second}, {"text": ANSWER}),
        row(4, "model_chunk", "chunk: 'text'", None, chunk),
    ]


def posthog(form: str = "object") -> list[dict[str, Any]]:
    part = {"type": "function", "id": "c1", "function": {"name": "get_weather", "arguments": ARGUMENTS}}

    def event(second: float, name: str, **properties: Any) -> dict[str, Any]:
        more = {"$ai_trace_id": "t1", "$ai_latency": 0.5, **{f"$ai_{k}": v for k, v in properties.items()}}
        row = {
            "uuid": f"u{second}",
            "event": name,
            "distinct_id": "me",
            "timestamp": f"2024-01-01T00:00:{second:06.3f}Z",
        }
        if form == "text":
            return {**row, "properties": json.dumps(more)}
        if form == "flat":
            return {**row, **{f"properties.{k}": v for k, v in more.items()}}
        return {**row, "properties": more}

    chat = {"model": "m", "tools": [OPENAI_TOOL]}
    rows = [
        event(
            1.5,
            "$ai_generation",
            span_id="p1",
            input=FIRST,
            output_choices=[{"role": "assistant", "content": [part]}],
            **chat,
        ),
        event(2.5, "$ai_span", span_id="p2", span_name="get_weather", input_state=ARGUMENTS, output_state=RESULT),
        event(
            3.5,
            "$ai_generation",
            span_id="p3",
            input=SECOND,
            output_choices=[{"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}],
            **chat,
        ),
        event(4.0, "$ai_metric", metric_name="reward", metric_value="1"),
        event(4.0, "$ai_trace", span_name="agent", input_state={"q": ASK}, output_state={"a": ANSWER}),
    ]
    return rows


CASES: dict[str, tuple[str, Any]] = {
    "otel": ("otel", genai()),
    "otel, system apart": ("otel", genai(system_apart=True)),
    "otel, result": ("otel", genai(result="result")),
    "otel, old names": ("otel", old_names()),
    "otel, events": ("otel", events()),
    "vercel": ("otel", vercel()),
    "otlp": ("otlp", otlp(genai())),
    "otlp, old names": ("otlp", otlp(old_names())),
    "otlp, events": ("otlp", otlp(events())),
    "otlp, openinference": ("otlp", openinference_otlp()),
    "phoenix, dotted": ("phoenix", openinference()),
    "phoenix, nested": ("phoenix", openinference(nested=True)),
    "langfuse": ("langfuse", [langfuse()]),
    "langfuse, page": ("langfuse", [{"data": [langfuse()], "meta": {"page": 1}}]),
    "langfuse, rows": ("langfuse", langfuse_rows()),
    "langsmith": ("langsmith", langsmith()),
    "langsmith, nested": ("langsmith", langsmith(nested=True)),
    "langsmith, page": ("langsmith", [{"runs": langsmith()}]),
    "braintrust": ("braintrust", braintrust()),
    "braintrust, page": ("braintrust", [{"events": braintrust(), "cursor": "x"}]),
    "mastra": ("mastra", mastra()),
    "mastra, page": ("mastra", [{"traces": [{"traceId": "t1", "spans": mastra()}]}]),
    "posthog": ("posthog", posthog()),
    "posthog, text": ("posthog", posthog("text")),
    "posthog, flat": ("posthog", posthog("flat")),
}
