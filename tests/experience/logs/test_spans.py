"""Spans of observability tools: each gives the same conversation, and what is no part of it stays out."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from rlready.experience.logs import episode_of
from rlready.experience.recording import Recording
from tests.experience.logs.exports import CASES, braintrust, langfuse, langsmith, posthog
from tests.experience.logs.otel_exports import FIRST, LAST, SECOND, TOOL, WANTED, genai, otlp, parts, span


def shape(recording: Recording) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    return [(m.role, m.text, [(c.name, json.loads(c.arguments)) for c in m.tool_calls]) for m in recording.messages]


@pytest.mark.parametrize("suffix", ["log.jsonl", "log.json"])
@pytest.mark.parametrize("case", CASES)
def test_every_tool_gives_the_same_conversation(reading: Any, case: str, suffix: str) -> None:
    form, records = CASES[case]
    (got,), report = reading(deepcopy(records), suffix)
    assert shape(got) == WANTED
    assert [*report.files.values()] == [form] and not report.reasons, report.lines()
    assert got.reward == 1.0 and got.model == "m" and not got.failed
    assert [*got.seconds.values()] == [pytest.approx(0.5)]
    if not case.startswith("posthog"):
        assert got.task_id == "w1"
    if "events" not in case:
        assert got.tools == (TOOL,)
    assert report.first is not None and report.last is not None and report.last > report.first


@pytest.mark.parametrize("case", CASES)
def test_a_trace_scattered_and_logged_twice(reading: Any, case: str) -> None:
    """Rows in any order, and an export that overlaps with another."""
    form, records = CASES[case]
    rows = deepcopy(records)
    (got,), report = reading([*reversed(rows), *deepcopy(rows)], form=form)
    assert shape(got) == WANTED and got.reward == 1.0
    assert report.notes.total() - report.notes["spans logged twice (read once)"] <= 1


def test_a_result_that_no_prompt_holds_comes_from_the_tool(reading: Any) -> None:
    spans = genai()[:3]
    assert shape(reading(spans)[0][0]) == WANTED[:4]
    spans[2]["attributes"]["gen_ai.tool.call.id"] = "someone else's"
    (got,), report = reading(spans)
    assert shape(got) == WANTED[:3], "a span with an id of its own is not taken by its name"
    assert report.notes["tool spans without a call"] == report.notes["calls without a result"] == 1
    del spans[2]["attributes"]["gen_ai.tool.call.id"]
    assert shape(reading(spans)[0][0]) == WANTED[:4]


def test_failed_tools(reading: Any) -> None:
    spans = genai()
    spans[2]["status"] = {"code": 2, "message": "no such city"}
    assert reading(spans)[0][0].failed == {"c1"}
    assert reading(otlp(spans))[0][0].failed == {"c1"}
    del spans[2]["attributes"]["gen_ai.tool.call.result"]
    (got,), _ = reading(spans[:3])
    assert got.messages[-1].text == "no such city" and episode_of(got)[0].errors == (0,)
    trace = langfuse()
    trace["observations"][1] |= {"level": "ERROR", "statusMessage": "no such city", "output": None}
    del trace["observations"][2]
    (got,), _ = reading([trace])
    assert got.failed == {"c1"} and got.messages[3].text == "no such city"


def test_parallel_calls_of_one_tool_are_told_apart_by_their_arguments(reading: Any) -> None:
    calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Rome", "Oslo")]
    row = braintrust()
    row[1]["output"] = {"role": "assistant", "content": "", "tool_calls": calls}
    row[2] |= {"input": {"city": "Oslo"}, "output": "cold"}
    row[3] |= {"span_attributes": {"name": "get_weather", "type": "tool"}, "input": {"city": "Rome"}, "output": "warm"}
    episode, notes = episode_of(reading(row[:4])[0][0])
    assert episode.replies == ("warm", "cold") and notes["calls made at once (read one after another)"] == 2


def test_junk_traces_are_dropped_and_counted(reading: Any) -> None:
    health = span(0, {"http.route": "/health"}) | {"trace_id": "h"}
    nobody = span(0, {"gen_ai.operation.name": "chat"}) | {"trace_id": ""}
    (got,), report = reading([health, *genai(), nobody])
    assert shape(got) == WANTED
    assert report.reasons == {
        "a trace without any message of an agent": 1,
        "a span without a trace id, or not of a model or a tool": 1,
    }
    assert [d.line for d in sorted(report.dropped, key=lambda d: d.line)] == [1, 6]
    check = {"id": "h", "input": {"path": "/health"}, "output": "ok", "observations": [], "scores": []}
    (got,), report = reading([check, langfuse()])
    assert shape(got) == WANTED and report.reasons.total() == 1
    page = {"event": "$pageview", "properties": {"$current_url": "x"}, "distinct_id": "me"}
    (got,), report = reading([page, *posthog(), page])
    assert shape(got) == WANTED and report.reasons.total() == 2


def test_nested_generations_count_once_and_other_conversations_not_at_all(reading: Any) -> None:
    rows = langsmith()
    inner = deepcopy(rows[3]) | {"id": "r4", "parent_run_id": "r3", "run_type": "chat_model"}
    title = deepcopy(rows[1]) | {"id": "r5", "start_time": "2024-01-01T00:00:04", "end_time": "2024-01-01T00:00:04.1"}
    title["inputs"] = {"messages": [[{"type": "human", "content": "Find a title for this chat."}]]}
    title["outputs"] = {"generations": [[{"text": "Weather", "message": {"type": "ai", "content": "Weather"}}]]}
    (got,), report = reading([*rows, inner, title])
    assert shape(got) == WANTED
    assert report.notes == {"model calls outside of the main conversation (left out)": 1}


def test_a_sub_agent_is_no_part_of_the_conversation(reading: Any) -> None:
    spans = genai()
    for number, said in enumerate(("one", "two", "three")):
        given = [{"role": "system", "content": "Look up."}, {"role": "user", "content": "Paris"}]
        given += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}] * number
        sub = span(
            2,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": json.dumps(parts(given)),
                "gen_ai.output.messages": json.dumps(parts([{"role": "assistant", "content": said}])),
            },
        )
        spans.append(sub | {"span_id": f"sub{number}", "parent_span_id": "s2"})
    (got,), report = reading(spans)
    assert shape(got) == WANTED
    assert report.notes["model calls outside of the main conversation (left out)"] == 3


def test_prompts_that_hold_only_what_is_new_are_strung_together(reading: Any) -> None:
    rows = braintrust()
    rows[3]["input"] = SECOND[3:]
    (got,), report = reading(rows)
    assert shape(got) == WANTED and not report.notes


def test_a_run_split_into_two_traces_of_one_session(reading: Any) -> None:
    """An approval in between: the second trace repeats the first and goes on."""
    spans = genai()
    for each in spans:
        each["attributes"]["gen_ai.conversation.id"] = "chat-1"
    spans[3]["trace_id"] = "t2"
    spans[3]["attributes"]["reward"] = 0.5
    (got,), report = reading(spans)
    assert shape(got) == WANTED and got.id == "t1" and got.task_id == "w1" and [*got.seconds] == ["c1"]
    assert report.notes["traces that go on with the trace before (joined)"] == 1
    other = deepcopy(spans[1]) | {"trace_id": "t3"}
    other["attributes"]["gen_ai.input.messages"] = json.dumps(parts([{"role": "user", "content": "Something else"}]))
    assert len(reading([*spans, other])[0]) == 2, "another conversation of the session is a run of its own"


def test_an_agent_that_logs_no_prompts(reading: Any) -> None:
    """Content of prompts is opt-in: the agent's own span and the tools still tell what happened."""
    agent = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.input.messages": json.dumps(parts(FIRST[1:])),
        "gen_ai.output.messages": json.dumps(parts([LAST])),
    }
    spans = [span(0, agent), span(1, {"gen_ai.operation.name": "chat"}), genai()[2]]
    (got,), _ = reading(spans)
    assert shape(got) == WANTED[1:]


def test_an_agents_span_with_more_messages_than_the_last_call(reading: Any) -> None:
    trace = langfuse()
    bye = {"role": "user", "content": "Bye"}
    trace["output"] = {"messages": [*SECOND, LAST, bye]}
    assert shape(reading([trace])[0][0]) == [*WANTED, ("user", "Bye", [])]


def test_scores_that_say_nothing_about_the_run_are_not_taken_for_its_reward(reading: Any) -> None:
    trace = langfuse()
    trace["scores"] = [{"name": "length", "value": 40}, {"name": "cost", "value": 0.1}]
    (got,), report = reading([trace])
    assert got.reward is None and got.meta["scores"] == {"length": 40.0, "cost": 0.1}
    assert sum("several scores" in note for note in report.notes) == 1


def test_traces_over_several_files(tmp_path: Any) -> None:
    from rlready.experience.logs import LogReport, read_logs

    for number, each in enumerate(genai()):
        (tmp_path / f"part{3 - number}.jsonl").write_text(json.dumps(each) + "\n")
    report = LogReport()
    (got,) = read_logs(tmp_path, report=report)
    assert shape(got) == WANTED and len(report.files) == 4 and report.records == 4
