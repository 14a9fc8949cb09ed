"""The server speaks the protocol of openenv-core's own client, and no reply is lost or shifted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from openenv.core.env_server.types import HealthResponse, ResetResponse, SchemaResponse, State, StepResponse
from openenv.core.generic_client import GenericEnvClient
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rlready.dream.serve import Limits, Server
from rlready.dream.serve.client import DreamClient
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory
from tests.dream.serve.echo import TASKS, Echo, all_closed, digest, factory


def server(delay: Any = None, tasks: Any = TASKS, **limits: Any) -> Server:
    return Server(factory(delay), tasks, limits=Limits(**limits), seed=7)


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, **more}


def test_an_episode_through_the_stock_client() -> None:
    async def run() -> None:
        async with server() as served, GenericEnvClient(base_url=served.url) as env:
            first = await env.reset(task="t3", seed=5, episode_id="mine", colour="red")
            assert first.observation["text"] == "task 3" and first.reward is None and not first.done
            assert first.observation["metadata"] == {"ignored": ["colour"]}
            second = await env.step(say("go"))
            assert second.observation["text"] == digest("t3", 5, ["go"])
            assert [m["role"] for m in second.observation["messages"]] == ["user", "assistant", "user"]
            assert (second.reward, second.done, second.observation["step"]) == (0.25, False, 1)
            state = await env.state()
            assert State(**state).step_count == 1 and state["episode_id"] == "mine"
            assert (state["task"], state["seed"], state["done"], state["working_on"]) == ("t3", 5, False, None)
            call = await env.step({"tool": "find", "arguments": {"b": 1, "a": {"d": 2, "c": 3}}})
            text = '<tool_call>{"name": "find", "arguments": {"a": {"c": 3, "d": 2}, "b": 1}}</tool_call>'
            assert call.observation["text"] == digest("t3", 5, ["go", text])
            last = await env.step(say("quit"))
            assert last.done and last.reward == 1.0 and last.observation["terminated"]
            assert last.observation["metadata"]["verdict"] == "right"
            with pytest.raises(RuntimeError, match="EPISODE_OVER"):
                await env.step(say("more"))
            again = await env.reset(task=3, seed=5)
            assert again.observation["text"] == "task 3"
            assert (await env.step(say("go"))).observation["text"] == digest("t3", 5, ["go"])
        assert all_closed()

    asyncio.run(run())


def test_the_synchronous_client_and_a_server_in_a_thread() -> None:
    with server() as served:
        with GenericEnvClient(base_url=served.url).sync() as env:
            env.reset(task="t1", seed=2)
            assert env.step(say("a")).observation["text"] == digest("t1", 2, ["a"])
        assert httpx.get(f"{served.url}/health").json() == {"status": "healthy"}
    assert all_closed()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")


def test_the_http_routes_of_the_protocol_have_its_types() -> None:
    with server() as served, httpx.Client(base_url=served.url) as http:
        first = http.post("/reset", json={"task": "t2", "seed": 4}).json()
        assert ResetResponse(**{k: first[k] for k in ("observation", "reward", "done")}).observation["text"] == "task 2"
        body = {"task": "t2", "seed": 4, "history": ["a", {"text": "b"}], "action": {"text": "c"}, "request_id": "x"}
        reply = http.post("/step", json=body).json()
        assert reply["observation"]["text"] == digest("t2", 4, ["a", "b", "c"]) and reply["request_id"] == "x"
        assert StepResponse(**{k: reply[k] for k in ("observation", "reward", "done")}).reward == 0.25
        SchemaResponse(**http.get("/schema").json())
        HealthResponse(**http.get("/health").json())
        State(**http.get("/state").json())
        assert http.get("/metadata").json()["name"] == "rlready"
        assert http.get("/metrics").json()["sessions"]["open"] == 0
    assert all_closed()


KINDS: tuple[type[GenericEnvClient], ...] = (GenericEnvClient, GenericEnvClient, GenericEnvClient)
STEPS = 12


async def sixty_four(served: Server, odd: Callable[[GenericEnvClient, int, int], Awaitable[Any]]) -> None:
    """Play 64 episodes at once, a quarter of them through the client with ids; `odd` takes every seventh step.

    Every reply must be the one that belongs to this episode and this step.
    """

    async def play(n: int, client: type[GenericEnvClient]) -> None:
        done: list[str] = []
        async with client(base_url=served.url, connect_timeout_s=60, message_timeout_s=60) as env:
            first = await env.reset(task=n % 5, seed=n)
            assert first.observation["task"] == f"t{n % 5}"
            while len(done) < STEPS:
                if (n + len(done)) % 7 == 0:
                    action, result = await odd(env, n, len(done))
                else:
                    action = f"do {n}.{len(done)}"
                    result = await again(env, action)
                done.append(action)
                assert result.observation["text"] == digest(f"t{n % 5}", n, done)
                assert result.observation["step"] == len(done)
            assert (await env.state())["step_count"] == STEPS
            assert (await again(env, "quit")).done

    kinds = (*KINDS, Numbered)
    await asyncio.gather(*(play(n, kinds[n % 4]) for n in range(64)))
    counts = served.book.metrics()["counts"]
    assert counts["opened"] == counts["episodes"] == 64
    assert counts["steps"] == 64 * (STEPS + 1)  # nothing was carried out twice
    assert counts["errors"] == counts["stuck"] == 0


async def again(env: GenericEnvClient, action: str) -> Any:
    """Ask until the deadline is kept."""
    while True:
        try:
            return await env.step(say(action))
        except RuntimeError as error:
            assert "TIMEOUT" in str(error), error


def test_sixty_four_episodes_at_once_with_delays_and_deadlines() -> None:
    late = []

    async def odd(env: GenericEnvClient, n: int, step: int) -> Any:
        action = f"wait 0.35 {n}.{step}"
        with pytest.raises(RuntimeError, match="TIMEOUT"):
            await env.step(say(action))
        if n % 2 and not isinstance(env, Numbered):  # another action meanwhile, or afterwards
            with pytest.raises(RuntimeError, match=r"STILL_WORKING|UNSEEN_REPLY"):
                await env.step(say("other"))
        late.append(action)
        return action, await again(env, action)

    async def run() -> None:
        rng = random.Random(0)
        async with server(lambda: rng.random() * 0.02, deadline=0.25) as served:
            await sixty_four(served, odd)
            assert served.book.metrics()["counts"]["timeouts"] >= len(late) > 100
        assert all_closed() and Echo.live["made"] == 64

    asyncio.run(run())


def test_sixty_four_episodes_at_once_with_cancelled_requests() -> None:
    """Also for clients without ids: asking again while the environment is at work gets one reply, the right one."""
    gave_up = []

    async def odd(env: GenericEnvClient, n: int, step: int) -> Any:
        action = f"hold {n}.{step}"
        entered, gate = Echo.gates[action] = asyncio.Event(), asyncio.Event()
        asked = asyncio.ensure_future(env.step(say(action)))
        await entered.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        gave_up.append(action)
        if n % 2 and not isinstance(env, Numbered):
            with pytest.raises(RuntimeError, match="STILL_WORKING"):
                await env.step(say("other"))
        asyncio.get_running_loop().call_later(0.02, gate.set)
        return action, await again(env, action)

    async def run() -> None:
        rng = random.Random(0)
        async with server(lambda: rng.random() * 0.02) as served:
            await sixty_four(served, odd)
            assert len(gave_up) > 100 and served.book.metrics()["counts"]["timeouts"] == 0
        assert all_closed() and Echo.live["made"] == 64

    asyncio.run(run())


class Numbered(DreamClient):
    """The client with ids; what it recovered stands in for the reply that was given up."""

    async def step(self, action: dict[str, Any], **kwargs: Any) -> Any:
        if self._open is not None and self._open["type"] == "step" and self._open["data"] == action:
            return self._parse_result((await self._exchange(self._open))["data"])
        return await super().step(action, **kwargs)


def test_a_late_reply_never_answers_the_next_request() -> None:
    """openenv issue 1143: the stock client gives up, the environment goes on, and the next request is another one."""

    async def run() -> None:
        async with server() as served, GenericEnvClient(base_url=served.url) as env:
            await env.reset(task="t0", seed=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.step(say("wait 0.3")), 0.05)
            with pytest.raises(RuntimeError, match="still working on request step-2"):
                await env.step(say("other"))
            assert (await env.state())["working_on"] == "step-2"
            await asyncio.sleep(0.4)
            assert (await env.state())["working_on"] is None
            with pytest.raises(RuntimeError, match="UNSEEN_REPLY"):  # not taken on what nobody saw
                await env.step(say("other"))
            late = await env.step(say("wait 0.3"))  # asked for again: the kept reply, not a second step
            assert late.observation["text"] == digest("t0", 1, ["wait 0.3"])
            after = await env.step(say("other"))
            assert after.observation["text"] == digest("t0", 1, ["wait 0.3", "other"])

    asyncio.run(run())


def test_a_reply_that_was_on_its_way_is_skipped_by_the_client_with_ids() -> None:
    async def run() -> None:
        async with server() as served, DreamClient(base_url=served.url) as env:
            await env.reset(task="t0", seed=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.step(say("wait 0.1")), 0.05)
            await asyncio.sleep(0.2)  # the reply now lies in the client's buffer
            result = await env.step(say("next"))
            assert env.missed is not None
            assert env.missed["data"]["observation"]["text"] == digest("t0", 1, ["wait 0.1"])
            assert result.observation["text"] == digest("t0", 1, ["wait 0.1", "next"])
            assert (await env.state())["step_count"] == 2

    asyncio.run(run())


def test_a_reset_overtakes_what_hangs() -> None:
    async def run() -> None:
        async with server(deadline=0.3, grace=0.1) as served, GenericEnvClient(base_url=served.url) as env:
            for command in ("hang", "deaf 0.6"):
                await env.reset(task="t0", seed=1)
                with pytest.raises(RuntimeError, match="TIMEOUT"):
                    await env.step(say(command))
                await env.reset(task="t1", seed=2)
                assert (await env.step(say("a"))).observation["text"] == digest("t1", 2, ["a"])
            assert served.book.metrics()["counts"]["stuck"] == 1  # the deaf one was left alone

    asyncio.run(run())


def test_a_failing_environment_ends_its_episode_only() -> None:
    async def run() -> None:
        async with server() as served, GenericEnvClient(base_url=served.url) as env:
            await env.reset(task="t0", seed=1)
            with pytest.raises(RuntimeError, match=r"ValueError: boom \(code: EXECUTION_ERROR\)"):
                await env.step(say("raise"))
            with pytest.raises(RuntimeError, match="EPISODE_FAILED"):
                await env.step(say("a"))
            await env.reset(task="t0", seed=1)
            assert (await env.step(say("a"))).observation["text"] == digest("t0", 1, ["a"])
        assert all_closed()

    asyncio.run(run())


def test_wrong_messages_get_clear_answers_and_change_nothing() -> None:
    async def run() -> None:
        async with server() as served, GenericEnvClient(base_url=served.url) as env:
            with pytest.raises(RuntimeError, match="NO_EPISODE"):
                await env.step(say("a"))
            with pytest.raises(RuntimeError, match="There is no task 'nine'"):
                await env.reset(task="nine")
            with pytest.raises(RuntimeError, match='"seed" must be a number from 0'):
                await env.reset(seed=-1)
            await env.reset(task="t0", seed=1)
            with pytest.raises(RuntimeError, match="An action is"):
                await env.step({"code": "1"})
            with pytest.raises(RuntimeError, match="UNKNOWN_TYPE"):
                await env._send_and_receive({"type": "render"})
            assert env._ws is not None
            await env._ws.send("{no json")
            with pytest.raises(RuntimeError, match="INVALID_JSON"):
                await env._send_and_receive({"type": "state"})
            assert (await env._receive())["type"] == "state"
            assert (await env.step(say("a"))).observation["text"] == digest("t0", 1, ["a"])

    asyncio.run(run())


def test_messages_in_pieces_and_messages_too_large() -> None:
    async def run() -> None:
        async with server(max_bytes=3000) as served, GenericEnvClient(base_url=served.url) as env:
            await env.reset(task="t0", seed=1)
            assert env._ws is not None
            await env._ws.send(iter(['{"type": "step", "da', 'ta": {"text"', ': "a"}}']))
            assert (await env._receive())["data"]["observation"]["text"] == digest("t0", 1, ["a"])
            for too_large in ("x" * 4000, iter(["x" * 2000] * 2)):
                async with GenericEnvClient(base_url=served.url) as other:
                    await other.reset()
                    assert other._ws is not None
                    await other._ws.send(too_large)
                    with pytest.raises(ConnectionClosed, match="1009"):
                        await other._receive()
            with pytest.raises(InvalidStatus, match="404"):
                await connect(f"ws://127.0.0.1:{served.port}/elsewhere")
            assert (await env.step(say("b"))).observation["text"] == digest("t0", 1, ["a", "b"])
        assert all_closed()

    asyncio.run(run())


def test_only_new_messages_are_sent_where_that_is_asked_for() -> None:
    async def run() -> None:
        async with server() as served, GenericEnvClient(base_url=served.url) as env:
            context = (await env.reset(task="t0", seed=1, messages="new")).observation["messages"]
            for n in range(3):
                seen = (await env.step(say(f"a{n}"))).observation
                assert len(seen["messages"]) == 2 and seen["start"] == len(context)
                context = context[: seen["start"]] + seen["messages"]
            whole = await env.reset(task="t0", seed=1)
            for n in range(3):
                whole = await env.step(say(f"a{n}"))
            assert whole.observation["messages"] == context and whole.observation["start"] == 0

    asyncio.run(run())


def test_the_score_of_the_task_set_is_the_last_reward() -> None:
    def score(task: Task, trajectory: Trajectory) -> Score:
        if any("broken" in turn.text for turn in trajectory.turns):
            raise RuntimeError("no judge")
        return Score.right(len(trajectory.turns), turns=len(trajectory.turns))

    async def run() -> None:
        scored = TaskSet(TASKS, score)
        async with server(tasks=scored, max_steps=3) as served, GenericEnvClient(base_url=served.url) as env:
            await env.reset(task="t0", seed=1)
            assert (await env.step(say("a"))).reward == 0.0
            await env.step(say("b"))
            last = await env.step(say("c"))
            assert last.done and last.reward == 3.0 and last.observation["truncated"]
            assert last.observation["metadata"]["scores"] == {"turns": 3.0}
            await env.reset(task="t0", seed=1)
            await env.step(say("broken"))
            last = await env.step(say("quit"))
            assert last.done and last.reward is None
            assert "no judge" in last.observation["metadata"]["failure"]

    asyncio.run(run())


def test_a_leaving_client_frees_its_place_at_once() -> None:
    """openenv PR 1000: leaked sessions use up capacity."""

    async def run() -> None:
        async with server(max_sessions=2, idle_seconds=60) as served:
            for _ in range(6):
                async with GenericEnvClient(base_url=served.url) as env:
                    await env.reset()
                    task = asyncio.ensure_future(env.step(say("hang")))
                    await asyncio.sleep(0.02)
                    task.cancel()
            for _ in range(3):  # without a goodbye
                env = GenericEnvClient(base_url=served.url)
                await env.reset()
                assert env._ws is not None
                env._ws.transport.abort()
                await asyncio.sleep(0.05)
            ends = time.monotonic() + 2
            while served.book.open_now and time.monotonic() < ends:
                await asyncio.sleep(0.01)
            assert not served.book.open_now and not served.book.connections and all_closed()

    asyncio.run(run())
