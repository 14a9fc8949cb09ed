"""Chat messages and ATIF: the conversation that the record holds, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlready.experience.logs import episode_of
from rlready.experience.recording import Recording
from rlready.types import Message, ToolCall

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
RUN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "18C"},
    {"role": "assistant", "content": "It is 18C."},
]
WANTED = (
    Message("system", "Be brief."),
    Message("user", "Weather in Paris?"),
    Message("assistant", "", (ToolCall("get_weather", '{"city": "Paris"}', "c1"),)),
    Message("tool", "18C", (), "c1"),
    Message("assistant", "It is 18C."),
)
TOOL = {"name": "get_weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {}}}


def shape(recording: Recording) -> list[tuple[Any, ...]]:
    """Messages with arguments decoded, for dialects that write JSON in their own way."""
    return [
        (m.role, m.text, [(c.name, json.loads(c.arguments)) for c in m.tool_calls], m.tool_call_id)
        for m in recording.messages
    ]


SHAPE = shape(Recording("", "", WANTED))


def test_a_record_of_messages(reading: Any) -> None:
    record = {
        "messages": RUN, "task_id": 7, "trial": 1, "reward": 1, "model": "m", "seed": 3, "done": True,
        "tools": [{"type": "function", "function": TOOL}, {"type": "web_search"}],
    }  # fmt: skip
    (got,), report = reading([record])
    assert got.messages == WANTED
    assert (got.id, got.task_id, got.reward, got.model, got.seed, got.done) == ("7-1", "7", 1.0, "m", 3, True)
    assert got.tools == (TOOL,) and got.place == "log.jsonl line 1" and got.meta == {"trial": "1"}
    assert (report.records, report.recordings, report.reasons.total()) == (1, 1, 0)
    assert not report.notes


@pytest.mark.parametrize(
    "record",
    [
        RUN,
        {"traj": RUN, "task_id": "t", "reward": 0.0, "trial": 0, "info": {"reward_info": {"reward": 1.0}}},
        {"conversation": RUN},
        {"request": 1, "messages": RUN[:-1], "response": {"choices": [{"message": RUN[-1]}]}},
        {"messages": RUN[1:], "system": "Be brief."},
    ],
)
def test_wrappings_of_messages(reading: Any, record: Any) -> None:
    (got,), report = reading([record])
    assert got.messages == WANTED and report.files.popitem()[1] == "chat"


def test_no_reward_no_task_no_id(reading: Any) -> None:
    (one, two, three), _ = reading([RUN, RUN, [RUN[0], {"role": "user", "content": "x"}, RUN[-1]]])
    assert one.task_id == two.task_id != three.task_id, "a task is what was asked"
    assert len({one.id, two.id, three.id}) == 3 and one.reward is None
    assert not episode_of(one)[0].judged


def test_old_function_calls_are_paired_by_order(reading: Any) -> None:
    run = [
        RUN[1],
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "one"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "two"},
    ]
    (got,), report = reading([run])
    calls = [c.id for m in got.messages for c in m.tool_calls]
    assert len(set(calls)) == 2
    assert [(m.tool_call_id, m.text) for m in got.messages if m.role == "tool"] == [
        (calls[0], "one"),
        (calls[1], "two"),
    ]
    assert not report.notes


def test_one_id_for_two_calls_is_told_apart(reading: Any) -> None:
    (got,), report = reading([[*RUN[:4], *RUN[2:3], {**RUN[3], "content": "19C"}, RUN[4]]])
    episode, _ = episode_of(got)
    assert episode.replies[:2] == ("18C", "19C")
    assert report.notes["ids that stand for two calls (told apart)"] == 1


def test_calls_at_once_thoughts_and_missing_results_are_noted(reading: Any) -> None:
    second = {"id": "c2", "function": {"name": "other", "arguments": {"b": 1}}}
    run = [RUN[1], {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, second]}, RUN[3], RUN[4]]
    orphan = {"role": "tool", "tool_call_id": "nobody", "content": "?"}
    (got,), report = reading([[*run, orphan]])
    assert report.notes == {
        "messages with several calls at once": 1, "thoughts beside calls": 1, "calls without a result": 1,
        "results without a call": 1,
    }  # fmt: skip
    assert episode_of(got)[0].replies[:2] == ("18C", "")


def test_anthropic_blocks(reading: Any) -> None:
    run = [
        RUN[0],
        RUN[1],
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "18C"}]}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It is 18C."}]},
    ]
    (got,), report = reading([run])
    assert shape(got) == SHAPE and report.notes == {"thoughts (left out)": 1}
    run[3]["content"][0]["is_error"] = True  # type: ignore[index]
    assert reading([run])[0][0].failed == {"c1"}


def test_calls_in_the_text(reading: Any) -> None:
    written = '<think>hm</think><tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    bad = '<tool_call>{"name": "get_weather", "arguments": {"city"}}</tool_call>'
    run = [RUN[1], {"role": "assistant", "content": written}, {"role": "tool", "content": "18C"}]
    run += [{"role": "assistant", "content": bad}, {"role": "tool", "content": "Error: no JSON"}]
    episode, notes = episode_of(reading([run])[0][0])
    assert episode.actions == ('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', bad)
    assert episode.replies == ("18C", "Error: no JSON") and episode.errors == (1,) and notes["malformed calls"] == 1


def test_tau2_simulations_leave_out_the_customers_own_tools(reading: Any) -> None:
    mine = {"id": "u1", "name": "toggle", "arguments": {}, "requestor": "user"}
    simulation = {
        "id": "s1", "task_id": "t", "trial": 2, "seed": 9, "termination_reason": "max_steps",
        "reward_info": {"reward": 0.0}, "messages": [
            RUN[1],
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "name": "get_weather", "arguments": {"city": "Paris"}, "requestor": "assistant"}]},
            {"id": "c1", "role": "tool", "content": "no", "requestor": "assistant", "error": True},
            {"role": "user", "content": None, "tool_calls": [mine]},
            {"id": "u1", "role": "tool", "content": "on", "requestor": "user", "error": False},
            {"role": "user", "content": "Thanks"},
        ],
    }  # fmt: skip
    (got,), _ = reading({"info": {}, "tasks": [], "simulations": [simulation]}, "results.json")
    assert (got.id, got.task_id, got.reward, got.done, got.seed, got.failed) == ("s1", "t", 0.0, False, 9, {"c1"})
    assert [m.text for m in got.messages if m.role == "tool"] == ["no"]
    assert all(not m.tool_calls for m in got.messages if m.role == "user")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "high"])
def test_a_reward_that_is_none(reading: Any, reward: Any) -> None:
    (got,), report = reading(json.dumps({"messages": RUN, "reward": reward}).encode() + b"\n")
    assert got.reward is None and not episode_of(got)[0].judged
    assert report.notes.total() == (1 if isinstance(reward, float) else 0)


def test_mixed_junk_is_dropped_with_line_and_reason(reading: Any) -> None:
    rows = [
        json.dumps({"messages": RUN, "id": "a"}),
        '{"messages": [',
        json.dumps({"messages": [{"role": "wizard", "content": "x"}]}),
        json.dumps({"messages": []}),
        json.dumps({"level": "info", "msg": "started"}),
        "42",
        json.dumps({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}),
        json.dumps({"messages": RUN, "id": "a"}),
    ]
    got, report = reading(("\n".join(rows) + '\n{"messages": [{"role": "us').encode())
    assert [r.id for r in got] == ["a", "a#2"]
    assert sorted((d.line, d.reason) for d in report.dropped) == [
        (2, "not valid JSON (unexpected end of data)"),
        (3, 'a message has the unknown role "wizard"'),
        (4, "no messages"),
        (5, "no chat record; the keys are level, msg"),
        (6, "no chat record; the keys are a number"),
        (7, "a tool call has no name; its keys are id"),
        (9, "not valid JSON (unexpected end of data); the file ends within this line"),
    ]
    assert (report.records, report.recordings, report.reasons.total()) == (9, 2, 7)
    assert report.notes["ids that several recordings have (told apart)"] == 1
    assert any("line 3" in line for line in report.lines())


ATIF: dict[str, Any] = {
    "schema_version": "ATIF-v1.4",
    "session_id": "s1",
    "agent": {
        "name": "a",
        "version": "1",
        "model_name": "m",
        "tool_definitions": [{"type": "function", "function": TOOL}],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": "Weather in Paris?", "timestamp": "2025-10-16T14:30:00Z"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "get_weather", "arguments": {"city": "Paris"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "18C"}]},
        },
        {"step_id": 4, "source": "agent", "message": [{"type": "text", "text": "It is 18C."}]},
    ],
    "final_metrics": {"extra": {"reward": 1.0}},
}


@pytest.mark.parametrize("version", ["ATIF-v1.4", "ATIF-v1.5", "ATIF-v1.6", "ATIF-v1.7", "ATIF-v1.8"])
def test_atif(reading: Any, version: str) -> None:
    (got,), report = reading({**ATIF, "schema_version": version}, "run.json")
    assert shape(got) == SHAPE and report.files.popitem()[1] == "atif"
    assert (got.id, got.model, got.reward, got.tools) == ("s1", "m", 1.0, (TOOL,))
    assert report.first == report.last == 1760625000.0


def test_atif_without_call_ids_and_with_an_environment_that_has_no_tools(reading: Any) -> None:
    steps = json.loads(json.dumps(ATIF["steps"]))
    del steps[2]["observation"]["results"][0]["source_call_id"]
    assert shape(reading({**ATIF, "steps": steps}, "run.json")[0][0]) == SHAPE
    steps = [
        {"step_id": 1, "source": "user", "message": "You are in a room."},
        {"step_id": 2, "source": "agent", "message": "go north", "observation": {"results": [{"content": "A hall."}]}},
        {"step_id": 3, "source": "agent", "message": "old", "is_copied_context": True},
        {"step_id": 4, "source": "agent", "message": "stop"},
    ]
    (got,), report = reading({**ATIF, "steps": steps}, "run.json")
    episode, _ = episode_of(got)
    assert (episode.actions, episode.replies) == (("go north", "stop"), ("A hall.", ""))
    assert report.notes["steps copied from another trajectory (left out)"] == 1


def test_our_own_export(reading: Any) -> None:
    from rlready.export import to_atif
    from rlready.types import Task, Trajectory, Turn, Verdict

    system, asked = Message("system", "Use tools."), Message.user("2+3?")
    call = '<tool_call>{"name": "add", "arguments": {"b": 3, "a": 2}}</tool_call>'
    first = Turn([1], [2], text=call, context=(system, asked))
    reply = Message("tool", "5", (), "call_1_0")
    second = Turn([1, 2, 3], [4], parent=0, text="It is 5.", context=(reply,))
    task = Task((system, asked), {"answer": 5})
    trajectory = Trajectory(task, [first, second], reward=0.9, verdict=Verdict.RIGHT, seed=11)
    (got,), _ = reading(to_atif(trajectory, session="run").to_json_dict(), "run.json")
    episode, _ = episode_of(got, rules="Use tools.")
    assert episode.task_id == task.id and episode.seed == 11 and episode.instruction == "2+3?"
    assert episode.actions == ('<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "It is 5.")
    assert episode.replies == ("5", "") and episode.success and episode.finished and episode.reward == 0.9
