"""The tools of a domain over MCP, through the client of the official package."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from rlready.dream.domain import Domain, Ending, ToolSpec
from rlready.dream.serve import Limits, Server
from rlready.dream.serve.mcp_server import looks_failed, mcp_server
from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.errors import UserError
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task

DOMAIN = Domain(
    rules="Be polite.",
    tools={
        "add": ToolSpec(
            "add", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "Add to the sum."
        ),
        "wait": ToolSpec("wait", {"properties": {"seconds": {"type": "number"}}}),
    },
    says=True,
    ending=Ending(words_close=True),
)
TASKS = TaskSet([Task(DOMAIN.prompt(f"make {n}"), {"instruction": f"make {n}"}, id=f"make-{n}") for n in (3, 5)])


class Sum(Env):
    """Adds up; parallel calls would show in the sums."""

    made: list[Sum] = []  # noqa: RUF012

    def __init__(self) -> None:
        Sum.made.append(self)
        self.sum, self.turn, self.at_work, self.closed = 0, 0, False, False

    async def reset(self, task: Task, seed: int) -> Observation:
        self.sum = seed
        self.messages = list(task.prompt)
        self.goal = int(task.id.removeprefix("make-"))
        return Observation(self.messages)

    async def step(self, action: str) -> Step:
        assert not self.at_work
        self.at_work = True
        (read,) = DOMAIN.parse(action)
        info: dict[str, Any] = {"failed": False}
        self.turn += 1
        arguments = read.arguments or {}
        if read.tool == "add":
            await asyncio.sleep(0.01)
            self.sum += arguments["n"]
            text = json.dumps({"sum": self.sum})
        elif read.tool == "wait":
            await asyncio.sleep(arguments["seconds"])
            text = "waited"
        elif read.tool:
            text, info["failed"] = f"no tool {read.tool}", True
        else:
            self.messages.append(Message("assistant", action))
            return Step(Observation(self.messages), float(self.sum == self.goal), terminated=True)
        self.at_work = False
        answer = Message("tool", text, tool_call_id=f"call_{self.turn}_0")
        self.messages += [Message("assistant", action), answer]
        return Step(Observation(self.messages), info=info)

    async def close(self) -> None:
        self.closed = True


def fresh() -> EnvFactory:
    Sum.made.clear()
    return Sum


def text(result: Any) -> str:
    assert len(result.content) == 1
    return str(result.content[0].text)


async def play(client: Client) -> None:
    """An episode, whatever the transport."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == {"add", "wait", "say", "begin_task"}
    assert listed["add"].description == "Add to the sum." and listed["add"].input_schema["required"] == ["n"]
    assert listed["wait"].input_schema["type"] == "object"
    early = await client.call_tool("add", {"n": 1})
    assert early.is_error and "begin_task first" in text(early)
    begun = await client.call_tool("begin_task", {"task": "make-5", "seed": 2})
    assert text(begun) == "Be polite.\n\nmake 5" and not begun.is_error
    one = await client.call_tool("add", {"n": 1})
    assert json.loads(text(one)) == {"sum": 3} and not one.is_error
    assert one.meta is not None and (one.meta["rlready/step"], one.meta["rlready/done"]) == (1, False)
    wrong = await client.call_tool("subtract", {"n": 1})
    assert wrong.is_error and text(wrong) == "no tool subtract"
    both = await asyncio.gather(client.call_tool("add", {"n": 1}), client.call_tool("add", {"n": 1}))
    assert sorted(json.loads(text(r))["sum"] for r in both) == [4, 5]
    last = await client.call_tool("say", {"text": "It is done."})
    assert last.meta is not None and last.meta["rlready/done"] and last.meta["rlready/reward"] == 1.0
    over = await client.call_tool("add", {"n": 1})
    assert over.is_error and "over" in text(over)
    unknown = await client.call_tool("begin_task", {"task": "make-9"})
    assert unknown.is_error and "There is no task 'make-9'" in text(unknown)
    await client.call_tool("begin_task", {"task": 0, "seed": 0})
    assert json.loads(text(await client.call_tool("add", {"n": 7})))["sum"] == 7


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_in_process(mode: str) -> None:
    async def run() -> None:
        async with Client(mcp_server(fresh(), TASKS, DOMAIN), mode=mode) as client:
            await play(client)
        assert len(Sum.made) == 2 and all(env.closed for env in Sum.made)

    asyncio.run(run())


def test_over_http_one_episode_a_session() -> None:
    async def run() -> None:
        async with Server(fresh(), TASKS, domain=DOMAIN) as served:
            address = f"{served.url}/mcp"
            async with Client(address) as one, Client(address, mode="legacy") as two:
                await play(one)
                await two.call_tool("begin_task", {"task": "make-3", "seed": 100})
                assert json.loads(text(await two.call_tool("add", {"n": 1})))["sum"] == 101
                assert json.loads(text(await one.call_tool("add", {"n": 1})))["sum"] == 8
                assert served.book.metrics()["sessions"]["open"] == 2
            assert not served.book.open_now  # the clients said goodbye
            for n in range(2):  # a client of the protocol without sessions names its own
                async with Client(f"{address}?session=mine", mode="2026-07-28") as named:
                    if n == 0:
                        await named.call_tool("begin_task", {"task": "make-3", "seed": 10})
                    assert json.loads(text(await named.call_tool("add", {"n": 1})))["sum"] == 11 + n
        assert all(env.closed for env in Sum.made)

    asyncio.run(run())


def test_many_http_sessions_at_once_do_not_mix() -> None:
    async def episode(url: str, n: int) -> None:
        async with Client(f"{url}/mcp") as client:
            await client.call_tool("begin_task", {"task": 0, "seed": 1000 * n})
            for step in range(1, 6):
                got = json.loads(text(await client.call_tool("add", {"n": 1})))
                assert got["sum"] == 1000 * n + step

    async def run() -> None:
        async with Server(fresh(), TASKS, domain=DOMAIN) as served:
            await asyncio.gather(*(episode(served.url, n) for n in range(12)))

    asyncio.run(run())


def test_a_fixed_task_begins_with_the_first_call() -> None:
    async def run() -> None:
        async with Client(mcp_server(fresh(), TASKS, DOMAIN, task="make-3", seed=40)) as client:
            assert client.instructions == "Be polite.\n\nmake 3"
            assert "begin_task" not in {tool.name for tool in (await client.list_tools()).tools}
            assert json.loads(text(await client.call_tool("add", {"n": 2})))["sum"] == 42
        assert len(Sum.made) == 1 and Sum.made[0].closed

    asyncio.run(run())

    async def drawn(seed: int) -> int:
        async with Client(mcp_server(fresh(), TASKS, DOMAIN, seed=seed)) as client:
            await client.call_tool("begin_task", {})
            return int(json.loads(text(await client.call_tool("add", {"n": 0})))["sum"])

    worlds = [asyncio.run(drawn(seed)) for seed in (1, 1, 2)]
    assert worlds[0] == worlds[1] != worlds[2]  # several tasks: the server's seed decides
    with pytest.raises(UserError, match='no task "make-7"'):
        mcp_server(fresh(), TASKS, DOMAIN, task="make-7")


def test_a_deadline_is_an_error_of_the_protocol_and_the_reply_is_kept() -> None:
    async def run() -> None:
        server = mcp_server(fresh(), TASKS, DOMAIN, task=0, limits=Limits(deadline=0.1))
        async with Client(server) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("wait", {"seconds": 0.3})
            assert refused.value.data["code"] == "TIMEOUT"
            with pytest.raises(MCPError) as refused:
                await client.call_tool("add", {"n": 1})
            assert refused.value.data["code"] == "STILL_WORKING"
            await asyncio.sleep(0.3)
            with pytest.raises(MCPError) as refused:
                await client.call_tool("add", {"n": 1})
            assert refused.value.data["code"] == "UNSEEN_REPLY"
            kept = await client.call_tool("wait", {"seconds": 0.3})
            assert text(kept) == "waited" and kept.meta is not None and kept.meta["rlready/step"] == 1
            assert (await client.call_tool("add", {"n": 1})).meta["rlready/step"] == 2  # type: ignore[index]

    asyncio.run(run())


def test_a_call_that_the_client_gives_up_does_not_shift_the_next() -> None:
    async def run() -> None:
        async with Server(fresh(), TASKS, domain=DOMAIN) as served, Client(f"{served.url}/mcp") as client:
            await client.call_tool("begin_task", {"task": 0, "seed": 0})
            with pytest.raises((TimeoutError, MCPError)):
                await client.call_tool("wait", {"seconds": 0.3}, read_timeout_seconds=0.05)
            await asyncio.sleep(0.4)
            result = await client.call_tool("wait", {"seconds": 0.3})
            assert text(result) == "waited"
            added = await client.call_tool("add", {"n": 4})
            assert json.loads(text(added)) == {"sum": 4}

    asyncio.run(run())


def test_on_standard_input_and_output() -> None:
    code = (
        "from rlready.dream.serve import serve_stdio\n"
        "from tests.dream.serve.test_mcp import DOMAIN, TASKS, Sum\n"
        "serve_stdio(Sum, TASKS, DOMAIN)\n"
    )
    command = StdioServerParameters(command=sys.executable, args=["-c", code], cwd=Path(__file__).parents[3])

    async def run() -> None:
        async with Client(command) as client:
            await play(client)

    asyncio.run(run())


def test_what_reads_as_an_error() -> None:
    assert looks_failed("Error: no") and looks_failed("error no") and looks_failed('{"error": "no"}')
    assert not looks_failed('{"error": ""}') and not looks_failed("an error") and not looks_failed("{broken")


def test_the_transport_of_the_package_reaches_it_too() -> None:
    async def run() -> None:
        server = Server(fresh(), TASKS, domain=DOMAIN)
        async with server as served, Client(streamable_http_client(f"{served.url}/mcp")) as client:
            assert len((await client.list_tools()).tools) == 4

    asyncio.run(run())
