"""Sessions over plain HTTP: ids and retries, capacity, queue, deadlines, idle ones, foreign pages, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openenv.core.generic_client import GenericEnvClient

from rlready.dream.serve import Limits, Server, as_gymnasium
from rlready.dream.serve.assembly import Assembly
from rlready.dream.serve.sessions import Gate, Sessions
from rlready.dream.serve.wire import Reset, Step
from rlready.errors import UserError
from tests.dream.serve.echo import TASKS, Echo, all_closed, digest, factory


def server(**limits: Any) -> Server:
    return Server(factory(), TASKS, limits=Limits(**limits), seed=7)


def act(text: str, id: str | None = None, **more: Any) -> dict[str, Any]:
    return {"action": {"text": text}, **({} if id is None else {"request_id": id}), **more}


async def until(what: Any, seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


def test_a_session_with_ids_and_retries() -> None:
    with server() as served, httpx.Client(base_url=served.url) as http:
        made = http.post("/sessions", json={"task": "t2", "seed": 3, "request_id": "new-1"})
        assert made.status_code == 201
        id = made.json()["session"]
        again = http.post("/sessions", json={"task": "t2", "seed": 3, "request_id": "new-1"}).json()
        assert again == made.json()  # a repeated creation makes no second session
        one = http.post(f"/sessions/{id}/step", json=act("a", "r1")).json()
        assert one["observation"]["text"] == digest("t2", 3, ["a"]) and one["request_id"] == "r1"
        assert http.post(f"/sessions/{id}/step", json=act("a", "r1")).json() == one
        two = http.post(f"/sessions/{id}/step", json=act("a", "r2")).json()
        assert two["observation"]["text"] == digest("t2", 3, ["a", "a"])
        wrong = http.post(f"/sessions/{id}/step", json=act("b", "r2"))
        assert wrong.status_code == 422 and "ids must differ" in wrong.json()["error"]["message"]
        assert http.get(f"/sessions/{id}").json()["step_count"] == 2
        http.post(f"/sessions/{id}/reset", json={"task": "t2", "seed": 3})
        assert http.post(f"/sessions/{id}/step", json=act("b", "r2")).json()["observation"]["step"] == 1
        assert http.delete(f"/sessions/{id}").json() == {"closed": True}
        gone = http.post(f"/sessions/{id}/step", json=act("b"))
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "SESSION_CLOSED")
        assert http.get("/sessions/none").status_code == 404
        assert http.post("/sessions", content=b"{").json()["error"]["code"] == "INVALID_JSON"
        counts = http.get("/metrics").json()["counts"]
        assert (counts["opened"], counts["steps"], counts["duplicates"], counts["closed"]) == (1, 3, 2, 1)
        assert all_closed()


def test_seeds_and_tasks_of_episodes_that_name_none() -> None:
    def played(body: dict[str, Any], n: int = 6) -> list[tuple[str, int]]:
        with server() as served, httpx.Client(base_url=served.url) as http:
            out = []
            for _ in range(n):
                id = http.post("/sessions", json=body).json()["session"]
                state = http.get(f"/sessions/{id}").json()
                out.append((state["task"], state["seed"]))
            return out

    drawn = played({})
    assert drawn == played({})  # the server's seed decides
    assert [task for task, _ in drawn] == ["t0", "t1", "t2", "t3", "t4", "t0"] and len({s for _, s in drawn}) == 6
    seeded = played({"seed": 11}, 2)
    assert seeded[0] == seeded[1] and seeded[0][1] == 11  # one seed, one world


def test_a_deadline_then_the_kept_reply() -> None:
    async def run() -> None:
        async with server(deadline=0.15) as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions", json={"task": "t0", "seed": 1})).json()["session"]
            slow = act("wait 0.5", "slow")
            late = await http.post(f"/sessions/{id}/step", json=slow)
            assert late.status_code == 504 and late.json()["error"]["request_id"] == "slow"
            assert late.headers["retry-after"] == "1"
            busy = await http.post(f"/sessions/{id}/step", json=act("b", "b"))
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "STILL_WORKING")
            assert "slow" in busy.json()["error"]["message"] and busy.json()["error"]["request_id"] == "b"
            await asyncio.sleep(0.5)
            unseen = await http.post(f"/sessions/{id}/step", json=act("b", "b"))
            assert unseen.json()["error"]["code"] == "UNSEEN_REPLY"
            kept = (await http.post(f"/sessions/{id}/step", json=slow)).json()
            assert kept["observation"]["text"] == digest("t0", 1, ["wait 0.5"]) and kept["request_id"] == "slow"
            after = (await http.post(f"/sessions/{id}/step", json=act("b", "b"))).json()
            assert after["observation"]["text"] == digest("t0", 1, ["wait 0.5", "b"])
            assert served.book.metrics()["counts"]["late"] == 1

    asyncio.run(run())


def test_two_requests_with_one_id_at_once_are_carried_out_once() -> None:
    async def run() -> None:
        async with server() as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions", json={"task": "t0", "seed": 1})).json()["session"]
            posts = [http.post(f"/sessions/{id}/step", json=act("wait 0.1", "x")) for _ in range(5)]
            replies = await asyncio.gather(*posts)
            assert {r.json()["observation"]["text"] for r in replies} == {digest("t0", 1, ["wait 0.1"])}
            assert served.book.metrics()["counts"]["steps"] == 1

    asyncio.run(run())


def test_the_reply_to_a_lost_connection_is_kept() -> None:
    """Without ids as well: the server sees that nobody took the reply."""

    async def run() -> None:
        async with server() as served:
            async with httpx.AsyncClient(base_url=served.url) as http:
                id = (await http.post("/sessions", json={"task": "t0", "seed": 1})).json()["session"]
                with pytest.raises(httpx.ReadTimeout):
                    await http.post(f"/sessions/{id}/step", json=act("wait 0.2"), timeout=0.05)
            await asyncio.sleep(0.3)
            async with httpx.AsyncClient(base_url=served.url) as http:
                other = await http.post(f"/sessions/{id}/step", json=act("b"))
                assert other.json()["error"]["code"] == "UNSEEN_REPLY"
                kept = (await http.post(f"/sessions/{id}/step", json=act("wait 0.2"))).json()
                assert kept["observation"]["text"] == digest("t0", 1, ["wait 0.2"])
                assert (await http.get(f"/sessions/{id}")).json()["step_count"] == 1

    asyncio.run(run())


def test_capacity_is_answered_with_busy_on_both_transports() -> None:
    async def run() -> None:
        async with server(max_sessions=2) as served, httpx.AsyncClient(base_url=served.url) as http:
            one = (await http.post("/sessions")).json()["session"]
            async with GenericEnvClient(base_url=served.url) as env:
                await env.reset(task="t0", seed=1)
                full = await http.post("/sessions")
                assert full.status_code == 503 and full.json()["error"]["code"] == "CAPACITY_REACHED"
                assert int(full.headers["retry-after"]) == full.json()["error"]["retry_after"] >= 1
                async with GenericEnvClient(base_url=served.url) as other:
                    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                        await other.reset()
                    await http.delete(f"/sessions/{one}")
                    await other.reset(task="t1", seed=1)  # the same connection, once there is room
                    assert (await other.step({"text": "a"})).observation["text"] == digest("t1", 1, ["a"])
                assert (await env.step({"text": "a"})).observation["text"] == digest("t0", 1, ["a"])
            assert served.book.metrics()["counts"]["refused"] == 2

    asyncio.run(run())


def test_the_queue_has_an_end_and_counts_towards_the_deadline() -> None:
    async def run() -> None:
        limits = {"at_once": 1, "queue": 2, "deadline": 0.5}
        async with server(**limits) as served, httpx.AsyncClient(base_url=served.url) as http:
            posts = [http.post("/sessions", json={"task": "t0", "seed": n}) for n in range(3)]
            ids = [r.json()["session"] for r in await asyncio.gather(*posts)]
            ids.append((await http.post("/sessions", json={"task": "t0", "seed": 3})).json()["session"])
            waits = ("wait 0.35", "wait 0.3", "quick", "more")
            steps = []
            for id, what in zip(ids, waits, strict=True):
                steps.append(asyncio.ensure_future(http.post(f"/sessions/{id}/step", json=act(what, "x"))))
                await asyncio.sleep(0.03)
            got = [await step for step in steps]
            codes = [r.json().get("error", {}).get("code") for r in got]
            assert codes == [None, "TIMEOUT", "TIMEOUT", "QUEUE_FULL"]
            assert "nothing was done" in got[2].json()["error"]["message"]  # it never left the queue
            assert "still being worked on" in got[1].json()["error"]["message"]
            assert got[3].headers["retry-after"] == "1"
            await asyncio.sleep(0.3)
            states = [(await http.get(f"/sessions/{id}")).json()["step_count"] for id in ids]
            assert states == [1, 1, 0, 0]
            again = (await http.post(f"/sessions/{ids[2]}/step", json=act("quick", "x"))).json()
            assert again["observation"]["text"] == digest("t0", 2, ["quick"])
            assert served.book.gate.working == 0 and served.book.gate.longest == 2

    asyncio.run(run())


def test_a_place_at_the_gate_is_never_lost() -> None:
    async def run() -> None:
        gate = Gate(1, 3)
        first, second, third = gate.ticket(), gate.ticket(), gate.ticket()
        assert first is None and second is not None and third is not None
        gate.give_back(second)  # left the queue
        assert second.cancelled()
        await asyncio.sleep(0)
        assert len(gate.waiting) == 1
        gate.give_back(first)
        assert third.done() and gate.working == 1
        gate.give_back(third)  # was let in and gave up before it began
        assert gate.working == 0

    asyncio.run(run())


def test_slow_steps_begin_together_and_quick_ones_at_once() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        begun: list[tuple[str, float]] = []
        here = set[str]()
        everybody = {"a", "b", "c"}
        assembly = Assembly(loop, lambda: here == everybody)

        def join(name: str) -> None:
            here.add(name)
            assembly.join(lambda: begun.append((name, loop.time())))

        join("a")
        assert [name for name, _ in begun] == ["a"]  # nothing is known to be slow
        for _ in range(200):
            assembly.took(0.1)
        begun.clear()
        here.clear()
        join("a")
        await asyncio.sleep(0)
        join("b")
        assert not begun
        join("c")  # the last one
        assert [name for name, _ in begun] == ["a", "b", "c"]
        begun.clear()
        here.clear()
        asked = loop.time()
        join("a")  # alone: the others do not come
        await asyncio.sleep(0.05)
        assert [name for name, _ in begun] == ["a"] and begun[0][1] - asked < 0.1 / 5 + 0.02
        begun.clear()
        here.clear()
        assembly.working = 1  # somebody is at work, and the loop runs: the simulator takes newcomers
        join("b")
        assert [name for name, _ in begun] == ["b"]
        assembly.working = 0
        begun.clear()
        here.clear()
        ends = loop.time() + 0.06
        while loop.time() < ends:  # somebody comes all the time, and the first must not wait for ever
            join("a")
            await asyncio.sleep(0.001)
        assert begun[0][1] < ends

    asyncio.run(run())


def test_resets_that_overtake_each_other_leave_no_place_and_no_environment_behind() -> None:
    async def run() -> None:
        book = Sessions(factory(), TASKS, Limits(at_once=2, grace=0.5))
        book.start()
        session = book.open()
        await session.ask(Reset(task="t0", seed=0))
        asks = [asyncio.ensure_future(session.ask(Step("hang")))]
        for n in range(20):
            if n % 3 == 0:
                await asyncio.sleep(0)
            asks.append(asyncio.ensure_future(session.ask(Reset(task="t1", seed=n))))
        await asyncio.sleep(0.2)
        results = await asyncio.gather(*asks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, Exception)]
        assert all(getattr(r, "code", "") in ("CANCELLED", "QUEUE_FULL") for r in refused) and len(results) == 21
        assert not isinstance(results[-1], Exception)
        assert session.state()["seed"] == 19
        reply = await session.ask(Step("a"))
        assert digest("t1", 19, ["a"]).encode() in reply
        assert book.gate.working == 0
        await book.close()
        assert all_closed() and not book.open_now

    asyncio.run(run())


def test_idle_sessions_are_reaped_and_busy_ones_are_not() -> None:
    async def run() -> None:
        async with server(idle_seconds=0.2, max_sessions=3) as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions")).json()["session"]
            async with GenericEnvClient(base_url=served.url) as idle, GenericEnvClient(base_url=served.url) as busy:
                await idle.reset()
                await busy.reset(task="t0", seed=1)
                assert (await busy.step({"text": "wait 0.5"})).observation["text"] == digest("t0", 1, ["wait 0.5"])
                assert len(served.book.open_now) == 1
                gone = await http.post(f"/sessions/{id}/step", json=act("a"))
                assert (gone.status_code, gone.json()["error"]["code"]) == (410, "SESSION_EXPIRED")
                assert served.book.metrics()["counts"]["reaped"] == 2
                assert Echo.live["closed"] == 2
            await until(lambda: not served.book.connections)
            env = GenericEnvClient(base_url=served.url)
            await env.reset()
            await until(lambda: not served.book.open_now)
            with pytest.raises(RuntimeError, match="SESSION_EXPIRED"):
                await env.step({"text": "a"})
            await env.reset(task="t0", seed=1)  # the connection lives on
            assert (await env.step({"text": "a"})).observation["text"] == digest("t0", 1, ["a"])
            await until(lambda: not served.book.connections)  # and ends when nobody uses it
            await env.close()

    asyncio.run(run())


def test_what_hangs_is_reaped_too() -> None:
    async def run() -> None:
        async with server(idle_seconds=0.2, deadline=0.1) as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions")).json()["session"]
            assert (await http.post(f"/sessions/{id}/step", json=act("hang"))).status_code == 504
            await until(lambda: not served.book.open_now)
            assert all_closed() and served.book.gate.working == 0

    asyncio.run(run())


def test_too_large_requests_are_refused() -> None:
    async def run() -> None:
        async with server(max_bytes=2000) as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions")).json()["session"]
            large = await http.post(f"/sessions/{id}/step", json=act("a" * 3000))
            assert (large.status_code, large.json()["error"]["code"]) == (413, "TOO_LARGE")

    asyncio.run(run())


def test_foreign_pages_and_names_are_kept_out_and_others_cannot_reach_it() -> None:
    with server() as served:
        assert served.listen().getsockname()[0] == "127.0.0.1" and served.port > 0
        headers = {"Origin": "https://evil.example"}
        assert httpx.post(f"{served.url}/sessions", headers=headers).status_code == 403
        assert httpx.get(f"{served.url}/health", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"{served.url}/health", headers={"Origin": "http://localhost:3000"}).status_code == 200
        from websockets.exceptions import InvalidStatus
        from websockets.sync.client import connect

        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://127.0.0.1:{served.port}/ws", origin="https://evil.example")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no password"):
        Server(factory(), TASKS, host="0.0.0.0")


def test_a_taken_port_wrong_limits_and_no_tasks_are_said_clearly() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with (
            pytest.raises(UserError, match="choose another port"),
            Server(factory(), TASKS, port=other.getsockname()[1]),
        ):
            pass
    with pytest.raises(UserError, match="deadline must be positive"):
        Limits(deadline=0)
    with pytest.raises(UserError, match="at least one task"):
        Server(factory(), [])


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r'pip install "rlready\[serve\]"'):
        Server(factory(), TASKS)


def test_stopping_answers_what_waits_and_ends_everything() -> None:
    before = set(threading.enumerate())

    async def run() -> None:
        async with server(grace=0.3) as served, httpx.AsyncClient(base_url=served.url) as http:
            id = (await http.post("/sessions")).json()["session"]
            env = GenericEnvClient(base_url=served.url)
            await env.reset()
            waiting = [
                asyncio.ensure_future(http.post(f"/sessions/{id}/step", json=act("hang"))),
                asyncio.ensure_future(env.step({"text": "hang"})),
            ]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await served.stop()
            reply, error = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(reply, httpx.Response) and reply.status_code == 503
            assert reply.json()["error"]["code"] == "CLOSING"
            assert isinstance(error, RuntimeError) and "CLOSING" in str(error)
            await env.close()
        assert time.monotonic() - began < 3
        assert all_closed()
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not left

    asyncio.run(run())
    assert set(threading.enumerate()) <= before


def test_a_served_process_ends_on_a_signal() -> None:
    """`serve` in a process of its own: SIGINT ends it with status 0, whoever is connected."""
    code = (
        "from rlready.dream.serve import serve\n"
        "from tests.dream.serve.echo import TASKS, factory\n"
        "serve(factory(), TASKS, port=0, ready=lambda url: print(url, flush=True))\n"
        "print('ended', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], env=os.environ
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with GenericEnvClient(base_url=url).sync() as env:
            env.reset(task="t0", seed=1)
            assert env.step({"text": "a"}).observation["text"] == digest("t0", 1, ["a"])
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 0
        assert process.stdout.read() == "ended\n"
    finally:
        process.kill()
        process.wait()


def test_the_same_episode_in_process_as_a_gymnasium() -> None:
    env = as_gymnasium(factory(), TASKS, max_steps=2)
    text, info = env.reset(seed=3, options={"task": "t1"})
    assert info["task"] == "t1" and "task 1" in text
    text, reward, terminated, truncated, info = env.step("a")
    assert (reward, terminated, truncated) == (0.25, False, False) and info["messages"][-1]["content"].startswith("1:")
    assert env.step("b")[3]
    env.close()
    assert all_closed()
