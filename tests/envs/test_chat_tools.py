"""Single-turn and tool environments."""

from __future__ import annotations

import asyncio
import enum
import json
import time
from typing import Annotated, Any, Literal

import pytest

from rlready import Env, Message, Step, Task, TaskSet, Trajectory, Turn, rewards
from rlready.envs import ChatEnv, ToolEnv
from rlready.envs.schema import Tool
from rlready.errors import EnvError, UserError
from rlready.toolcalls import render_call

TASK = Task.of("What is 12 * 12?", answer=144, options=["12", "144"])


def call(name: str, **arguments: Any) -> str:
    return render_call(name, arguments)


def play(env: Env, *actions: str, task: Task = TASK) -> list[Step]:
    async def run() -> list[Step]:
        await env.reset(task, 0)
        steps = [await env.step(a) for a in actions]
        await env.close()
        return steps

    return asyncio.run(run())


def test_chat_is_one_turn() -> None:
    (step,) = play(ChatEnv(system="Be brief."), "144")
    assert step.terminated and step.reward == 0.0
    assert [(m.role, m.text) for m in step.observation.messages] == [
        ("system", "Be brief."),
        ("user", "What is 12 * 12?"),
        ("assistant", "144"),
    ]
    with pytest.raises(EnvError, match="is over"):
        play(ChatEnv(), "144", "145")
    with pytest.raises(EnvError, match="has no prompt"):
        play(ChatEnv(), task=Task(data={"x": 1}))


def test_chat_choices_and_fork() -> None:
    async def run() -> None:
        env = ChatEnv(choices="options")
        assert (await env.reset(TASK, 0)).actions == ("12", "144")
        other = await env.fork()
        assert (await env.step("12")).terminated
        assert (await other.step("144")).observation.messages[-1].text == "144"
        with pytest.raises(EnvError, match='no choices under "others"'):
            await ChatEnv(choices="others").reset(TASK, 0)

    asyncio.run(run())


class Unit(enum.Enum):
    METRES = "m"
    FEET = "ft"


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Longer text that is not shown.
    """
    return a * b


async def fail(message: str = "no reason") -> str:
    """Always raise."""
    raise LookupError(message)


def measure(
    length: float,
    unit: Unit,
    labels: list[str] | None = None,
    mode: Literal["short", "long"] = "short",
    where: Annotated[dict[str, int], "a place"] = {},  # noqa: B006
) -> dict[str, Any]:
    """Give back what came in."""
    return {"length": length, "unit": unit.name, "labels": labels, "mode": mode, "where": where}


def test_schema_from_type_hints() -> None:
    schema = Tool(measure).schema()
    assert schema == {
        "name": "measure",
        "description": "Give back what came in.",
        "parameters": {
            "type": "object",
            "properties": {
                "length": {"type": "number"},
                "unit": {"enum": ["m", "ft"]},
                "labels": {
                    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                    "default": None,
                },
                "mode": {"enum": ["short", "long"], "default": "short"},
                "where": {"type": "object", "additionalProperties": {"type": "integer"}, "description": "a place"},
            },
            "required": ["length", "unit"],
        },
    }
    assert play(ToolEnv([Tool(multiply)]), call("multiply", a=2, b=3))[0].observation.messages[-1].text == "6"
    assert Tool(multiply).description == "Multiply two integers."


def test_a_tool_episode() -> None:
    env = ToolEnv([multiply, fail, measure])
    first = asyncio.run(env.reset(TASK, 0))
    assert first.messages[0].role == "system" and '"multiply"' in first.messages[0].text
    steps = play(env, f"I compute. {call('multiply', a=12, b=12)}", "It is 144")
    assert not steps[0].terminated and steps[1].terminated
    assert steps[0].observation.messages[-1] == Message("tool", "144", tool_call_id="call_1_0")
    assert steps[0].observation.messages[-2].text.startswith("I compute.")
    assert steps[1].info["tool_calls"] == 1
    result = play(env, call("measure", length=2, unit="ft", labels=["a"], where={"x": 1}))[0]
    assert json.loads(result.observation.messages[-1].text) == {
        "length": 2.0,
        "unit": "FEET",
        "labels": ["a"],
        "mode": "short",
        "where": {"x": 1},
    }


@pytest.mark.parametrize(
    ("action", "words", "count"),
    [
        ('<tool_call>{"name": "multiply", "arguments": {"a": 1, }}</tool_call>', "not valid JSON", "tool_malformed"),
        ('<tool_call>{"name": "fail"}</tool_call>', 'no "arguments"', "tool_malformed"),
        ('<tool_call>{"name": "fail", "arguments": "oops"}</tool_call>', "not a JSON object", "tool_malformed"),
        (call("divide", a=1), 'there is no tool "divide". The tools are: multiply, fail, measure', "tool_unknown"),
        (call("multiply", a=1), 'needs the argument "b"', "tool_rejected"),
        (call("multiply", a=1, b=2, c=3), 'has no argument "c"; it takes a, b', "tool_rejected"),
        (call("multiply", a="1", b=2), "\"a\" must be an integer, but it is '1'", "tool_rejected"),
        (call("multiply", a=True, b=2), '"a" must be an integer', "tool_rejected"),
        (call("measure", length=1, unit="inch"), "must be one of 'm', 'ft'", "tool_rejected"),
        (call("measure", length=1, unit="m", labels=["a", 2]), "must be of the type", "tool_rejected"),
        (call("measure", length=1, unit="m", mode="mid"), "must be one of 'short', 'long'", "tool_rejected"),
        (call("measure", length=1, unit="m", where={"x": "y"}), "\"where\"['x'] must be an integer", "tool_rejected"),
        (call("fail", message="out of cheese"), "LookupError: out of cheese", "tool_raised"),
    ],
)
def test_errors_go_to_the_model_and_are_counted(action: str, words: str, count: str) -> None:
    (step,) = play(ToolEnv([multiply, fail, measure]), action)
    reply = step.observation.messages[-1]
    assert reply.role == "tool" and reply.text.startswith("Error: ") and words in reply.text
    assert step.info[count] == 1 and not step.terminated
    assert step.info["tool_calls"] == (1 if count == "tool_raised" else 0)


def test_nothing_is_executed_on_a_guess() -> None:
    ran: list[dict[str, Any]] = []

    def wipe(path: str = "/") -> str:
        ran.append({"path": path})
        return "wiped"

    for bad in ('{"name": "wipe"}', '{"name": "wipe", "arguments": null}', '{"name": "wipe", "arguments": {"path": }}'):
        play(ToolEnv([wipe]), f"<tool_call>{bad}</tool_call>")
    assert ran == []
    play(ToolEnv([wipe]), call("wipe"))
    assert ran == [{"path": "/"}]


def test_limits() -> None:
    env = ToolEnv([multiply], max_turns=2, max_calls=2, max_chars=10, system=None)
    steps = play(env, call("multiply", a=1, b=1) * 3, call("multiply", a=10**8, b=10**8))
    replies = [m.text for m in steps[1].observation.messages if m.role == "tool"]
    assert replies[:2] == ["1", "1"] and "at most 2 calls" in replies[2]
    assert replies[3] == "1000000000... [7 more characters were cut]"
    assert steps[1].truncated and not steps[1].terminated
    assert steps[0].observation.messages[0].role == "user"


def test_a_slow_tool_is_abandoned() -> None:
    def slow() -> str:
        time.sleep(3)
        return "late"

    async def slow_async() -> str:
        await asyncio.sleep(3)
        return "late"

    start = time.perf_counter()
    steps = play(ToolEnv([slow, slow_async], timeout=0.1), call("slow"), call("slow_async"))
    assert time.perf_counter() - start < 2
    assert [s.info["tool_timeouts"] for s in steps] == [1, 2]
    assert "took longer than 0.1 seconds" in steps[1].observation.messages[-1].text


def test_tools_with_state_are_made_per_episode() -> None:
    def make(task: Task, seed: int) -> dict[str, Any]:
        notes: list[str] = []

        def note(text: str) -> int:
            notes.append(text)
            return len(notes)

        return {"note": note}

    env = ToolEnv(make)
    for _ in range(2):
        steps = play(env, call("note", text="a"), call("note", text="b"))
        assert steps[-1].observation.messages[-1].text == "2"


def test_what_cannot_be_a_tool_is_refused() -> None:
    def star(*args: int) -> int:
        return 0

    def odd(x: complex) -> int:
        return 0

    with pytest.raises(UserError, match="must all be named"):
        ToolEnv([star])
    with pytest.raises(UserError, match=r"odd\(x\): JSON has no form"):
        ToolEnv([odd])
    with pytest.raises(UserError, match="needs a name"):
        ToolEnv([lambda: 1])
    with pytest.raises(UserError, match="Two tools have the name multiply"):
        ToolEnv([multiply, multiply])
    with pytest.raises(UserError, match="must be positive"):
        ToolEnv([multiply], max_turns=0)


def test_a_systems_own_message_is_kept() -> None:
    task = Task((Message("system", "You are a clerk."), Message.user("hi")))
    first = asyncio.run(ToolEnv([multiply]).reset(task, 0))
    assert [m.role for m in first.messages] == ["system", "user"]
    assert first.messages[0].text.startswith("You are a clerk.\n\nYou can call tools.")


def test_an_unfinished_call_is_never_paid_as_an_answer() -> None:
    tasks = TaskSet([TASK], rewards.math("answer"))
    steps = play(ToolEnv([multiply], max_turns=1), call("multiply", a=1, b=144))
    assert steps[0].truncated
    text = call("multiply", a=1, b=144)
    score = asyncio.run(tasks.score(TASK, Trajectory(TASK, [Turn([1], [2], text=text)])))
    assert score.value == 0.0 and score.verdict == "no_answer"
