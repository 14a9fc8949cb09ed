"""Hosted environments: deadlines, deaths, late replies, and nothing left behind, also after kill -9."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rlready import Observation, Step, Task
from rlready.envs import ChatEnv, ProcessEnv, ProcessPool, process, wire
from rlready.errors import EnvError, UserError

HERE = Path(__file__).parent
COUNTER = f"{HERE / 'hosted.py'}:Counter"
TASK = Task.of("count")


def run(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(body())


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether a process ends (a zombie has ended) within some seconds."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


async def begin(**options: Any) -> tuple[ProcessEnv, Observation]:
    env = ProcessEnv(COUNTER, **options)
    return env, await env.reset(TASK, 7)


def test_an_episode_in_another_process() -> None:
    async def body() -> None:
        env, first = await begin()
        assert first.messages[0].text == "seed 7" and first.actions == ("go",)
        assert first.info["pid"] != os.getpid()
        steps = [await env.step("go") for _ in range(5)]
        assert [s.reward for s in steps] == [1, 2, 3, 4, 5] and steps[-1].terminated
        assert [m.text for m in steps[1].observation.messages] == ["seed 7", "go", "1", "go", "2"]
        assert not steps[0].info["torch"]  # the child imports what the environment needs, no more
        await env.close()
        await env.close()
        assert gone(first.info["pid"])

    run(body)


@pytest.mark.parametrize("action", ["sleep", "hold", "stop"])
def test_a_call_past_its_deadline_is_killed(action: str) -> None:
    async def body() -> None:
        env, first = await begin(deadline=0.5)
        pids = (await env.step("descend")).info["pids"]
        began = time.monotonic()
        with pytest.raises(
            EnvError, match=r"step took longer than 0.5 seconds, so the environment's process was killed"
        ):
            await env.step(action)
        assert time.monotonic() - began < 3
        assert all(gone(pid) for pid in (first.info["pid"], *pids))
        with pytest.raises(EnvError, match="took longer"):
            await env.step("go")
        await env.close()

    run(body)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("die", "ended with code 3 during step. Its last words: the engine is out of coal"),
        ("segfault", "was killed by SIGSEGV during step"),
        ("exit", "ended with code 4 during step"),
    ],
)
def test_a_death_is_told(action: str, words: str) -> None:
    async def body() -> None:
        env, first = await begin()
        pids = (await env.step("descend")).info["pids"]
        with pytest.raises(EnvError, match=words):
            await env.step(action)
        assert all(gone(pid) for pid in (first.info["pid"], *pids))
        await env.close()

    run(body)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("raise", r"step raised LookupError: no such room \(hosted.py line"),
        ("lambda", "step raised the result cannot be sent"),
        ("type", "step gave a str, not a Step"),
    ],
)
def test_an_error_leaves_the_process_alive(action: str, words: str) -> None:
    async def body() -> None:
        env, _ = await begin()
        with pytest.raises(EnvError, match=words):
            await env.step(action)
        assert (await env.step("go")).reward == 2
        await env.close()

    run(body)


def test_a_reply_is_read_not_executed(tmp_path: Path) -> None:
    async def body() -> None:
        mark = tmp_path / "mark"
        for action in ("exploit", "object"):
            env, _ = await begin(environment={"RLREADY_TEST_MARK": str(mark)})
            if action == "exploit":
                with pytest.raises(EnvError, match=r"sent what cannot be taken: it holds a posix.system"):
                    await env.step(action)
            else:
                assert type(await _refused(env, action)) is EnvError
            await env.close()
        assert not mark.exists()

    async def _refused(env: ProcessEnv, action: str) -> Exception:
        try:
            await env.step(action)
        except EnvError as error:
            return error
        raise AssertionError("a foreign object came through")

    run(body)


def test_chatter_neither_blocks_nor_piles_up() -> None:
    async def body() -> None:
        env, _ = await begin(deadline=20)
        for _ in range(3):
            await env.step("chatter")
        await env.step("go")
        worker = env._worker
        assert worker is not None and os.fstat(worker._words.fileno()).st_size < 1 << 20
        await env.close()

    run(body)


def test_a_cancelled_call_costs_the_process_its_life() -> None:
    async def body() -> None:
        env, first = await begin()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("sleep"), 0.2)
        with pytest.raises(EnvError, match="step was cancelled"):
            await env.step("go")
        assert gone(first.info["pid"])
        await env.close()

    run(body)


def test_late_replies_never_shift_the_next() -> None:
    import socket

    async def body() -> None:
        env, _ = await begin()
        worker = env._worker
        assert worker is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        real, worker._line = worker._line, ours
        number = worker._number
        late = [wire.dump((n, "ok", f"late {n}")) for n in (number - 1, number)]
        theirs.sendall(b"".join(late) + wire.dump((number + 1, "ok", "mine")))
        assert await worker.call("step", 1, "go", deadline=5) == "mine"
        theirs.sendall(late[1])  # left in the line, as after a call that was given up
        theirs.sendall(wire.dump((number + 2, "ok", "mine too")))
        assert await worker.call("step", 1, "go", deadline=5) == "mine too"
        theirs.sendall(wire.dump((number + 9, "ok", "whose?")))
        with pytest.raises(EnvError, match="a question that was not asked"):
            await worker.call("step", 1, "go", deadline=5)
        for end in (real, theirs):
            end.close()
        ours.close()
        await env.close()

    run(body)


def test_boot_failures_are_told() -> None:
    async def body() -> None:
        for name, words in (
            ("slow_boot", "boot took longer than 0.7 seconds"),
            ("no_env", "the factory gave a str, not an Env"),
            ("broken", "boot raised RuntimeError: no display"),
            ("missing", "boot raised AttributeError"),
        ):
            env = ProcessEnv(f"{HERE / 'hosted.py'}:{name}", boot_deadline=0.7 if name == "slow_boot" else 30)
            with pytest.raises(EnvError, match=words):
                await env.reset(TASK, 0)
            await env.close()
        with pytest.raises(EnvError, match="boot raised ModuleNotFoundError: No module named 'no_such_module'"):
            await ProcessEnv("no_such_module:Env").reset(TASK, 0)

    run(body)


def test_factories_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(UserError, match="cannot be sent to another process"):
        ProcessEnv(lambda: ChatEnv())
    with pytest.raises(UserError, match="must be written as module:name"):
        ProcessEnv("hosted")


def test_callables_of_modules_and_partials() -> None:
    async def body() -> None:
        env = ProcessEnv(functools.partial(ChatEnv, system="Be brief."))
        first = await env.reset(TASK, 0)
        assert [m.text for m in first.messages] == ["Be brief.", "count"]
        twin = await env.fork()
        assert (await twin.step("x")).terminated and (await env.step("y")).terminated
        await env.close()
        await twin.close()

    run(body)


def test_forks_share_a_process_and_its_fate() -> None:
    async def body() -> None:
        env, first = await begin(deadline=1.0)
        await env.step("go")
        twin = await env.fork()
        third = await twin.fork()
        assert [(await e.step("go")).reward for e in (env, twin, third)] == [2, 2, 2]
        both = await asyncio.gather(env.step("go"), twin.step("go"))
        assert [s.reward for s in both] == [3, 3]
        await third.close()
        await env.step("go")
        await env.close()
        assert (await twin.step("go")).reward == 4  # outlives the one it was forked from
        with pytest.raises(EnvError, match="cannot be reset"):
            await twin.reset(TASK, 0)
        with pytest.raises(EnvError, match="took longer"):
            await twin.step("sleep")
        assert gone(first.info["pid"])
        await twin.close()
        stiff = ProcessEnv(COUNTER.replace("Counter", "Unforkable"))
        await stiff.reset(TASK, 0)
        with pytest.raises(NotImplementedError, match="no forks here"):
            await stiff.fork()
        await stiff.close()

    run(body)


def test_closing_that_fails_is_told_and_ends_the_process() -> None:
    async def body() -> None:
        env, first = await begin()
        for _ in range(3):
            await env.step("go")
        with pytest.raises(EnvError, match="close raised OSError: cannot close at three"):
            await env.close()
        assert gone(first.info["pid"])
        await env.close()

    run(body)


def test_a_pool_uses_processes_again_and_replaces_the_dead() -> None:
    async def episode(pool: ProcessPool, *actions: str) -> dict[str, Any]:
        env = pool()
        first = await env.reset(TASK, 0)
        try:
            for action in actions:
                await env.step(action)
        finally:
            await env.close()
        return first.info

    with ProcessPool(COUNTER, size=2, deadline=5) as pool:
        one = asyncio.run(episode(pool, "go"))
        two = asyncio.run(episode(pool, "go"))  # another loop, the same process
        assert two["pid"] == one["pid"] and two["episodes"] == 2 and pool.idle == 1

        async def at_once() -> set[int]:
            envs = [pool() for _ in range(3)]
            firsts = await asyncio.gather(*(env.reset(TASK, 0) for env in envs))
            await asyncio.gather(*(env.close() for env in envs))
            return {first.info["pid"] for first in firsts}

        assert len(asyncio.run(at_once())) == 3
        assert pool.idle == 2
        with pytest.raises(EnvError, match="SIGSEGV"):
            asyncio.run(episode(pool, "segfault"))
        assert pool.idle == 1
        worker = pool._idle[0]
        os.kill(worker.pid, signal.SIGKILL)  # dies while idle
        assert gone(worker.pid)
        assert asyncio.run(episode(pool, "go"))["episodes"] == 1
        pids = [w.pid for w in pool._idle]
    assert pool.idle == 0 and all(gone(pid) for pid in pids)
    with ProcessPool(COUNTER, max_episodes=2) as pool:
        seen = [asyncio.run(episode(pool))["pid"] for _ in range(4)]
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_nothing_piles_up_over_episodes() -> None:
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def body() -> None:
        counts = []
        for _ in range(4):
            env, _ = await begin()
            await env.step("go")
            await env.close()
            counts.append(handles())
        assert counts[-1] == counts[0]
        lost, first = await begin()
        del lost  # nobody closes it
        import gc

        gc.collect()
        assert gone(first.info["pid"])

    run(body)
    process._reap()
    assert process._dying == []


@pytest.mark.parametrize("hang", ["idle", "hold", "stop"])
def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path, hang: str) -> None:
    out = tmp_path / "pids"
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, os, sys, time
            from rlready import Task
            from rlready.envs import ProcessEnv

            async def main():
                env = ProcessEnv({COUNTER!r}, deadline=600)
                first = await env.reset(Task.of("x"), 0)
                pids = (await env.step("descend")).info["pids"]
                with open({str(out)!r} + ".new", "w") as file:
                    file.write(" ".join(map(str, [env.pid, first.info["pid"], *pids])))
                os.replace({str(out)!r} + ".new", {str(out)!r})
                await (asyncio.sleep(600) if {hang!r} == "idle" else env.step({hang!r}))

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    try:
        end = time.monotonic() + 30
        while not out.exists():
            assert time.monotonic() < end and parent.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        pids = [int(word) for word in out.read_text().split()]
        assert len(pids) == 4 and not any(gone(pid, within=0.01) for pid in pids)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert [pid for pid in pids if not gone(pid)] == []


def test_an_environment_of_the_main_script(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from rlready import Env, Observation, Step, Task
            from rlready.envs import ProcessEnv

            class Mine(Env):
                async def reset(self, task, seed):
                    return Observation(f"hello {seed}")
                async def step(self, action):
                    return Step(Observation("bye"), terminated=True)

            async def main():
                env = ProcessEnv(Mine)
                print((await env.reset(Task.of("x"), 5)).messages[0].text)
                await env.close()

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("hello 5\n", 0), done.stderr


def test_the_reader_of_replies_takes_ours_and_refuses_others() -> None:
    import numpy as np

    step = Step(Observation("a", ["b"], {"x": np.float32(2), "y": np.arange(3), "z": {1, 2}}), 0.5, True)
    number, kind, value = wire.load_reply(pickle.dumps((1, "ok", step), protocol=5))
    assert (number, kind) == (1, "ok") and value.observation.messages == step.observation.messages
    assert value.observation.info["x"] == 2 and list(value.observation.info["y"]) == [0, 1, 2]
    for bad in (os.system, eval, subprocess.Popen, getattr):
        with pytest.raises(EnvError, match="cannot be taken"):
            wire.load_reply(pickle.dumps((1, "ok", bad), protocol=5))
    with pytest.raises(EnvError, match="cannot be taken"):  # a dotted path through one of our modules
        wire.load_reply(b"\x80\x04\x8c\x0drlready.types\x8c\x0ajson.loads\x93.")
    with pytest.raises(EnvError, match="cannot be taken"):
        wire.load_reply(b"garbage")
    with pytest.raises(EnvError, match="announced a reply"):
        wire.cut(bytearray(wire.HEADER.pack(1 << 60)))
