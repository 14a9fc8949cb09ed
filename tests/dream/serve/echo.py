"""A small environment that can tell a lost, repeated or shifted reply: each reply is a hash of all that was done."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any, ClassVar

from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task

TASKS = TaskSet([Task((Message.user(f"task {i}"),), {"n": i}, id=f"t{i}") for i in range(5)], name="echo")


def digest(task: str, seed: int, actions: list[str]) -> str:
    """What the last of these actions is answered."""
    body = repr((task, seed, actions)).encode()
    return f"{len(actions)}:{hashlib.blake2b(body, digest_size=6).hexdigest()}"


class Echo(Env):
    """Actions are commands; what is none of these is only noted.

    "wait S" sleeps, "hold" waits for its gate, "hang" never returns, "deaf" cannot be cancelled at first, "raise"
    fails, "quit" ends the episode with reward 1.
    """

    live: ClassVar[Counter[str]] = Counter()
    gates: ClassVar[dict[str, tuple[asyncio.Event, asyncio.Event]]] = {}

    def __init__(self, delay: Any = None) -> None:
        Echo.live["made"] += 1
        self.delay = delay
        self.actions: list[str] = []
        self.messages: list[Message] = []
        self.closed = False

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.seed = task, seed
        if "wait" in task.data:
            await asyncio.sleep(task.data["wait"])
        self.messages = [*task.prompt]
        return Observation(self.messages)

    async def step(self, action: str) -> Step:
        assert not self.closed
        command, _, rest = action.partition(" ")
        if self.delay is not None:
            await asyncio.sleep(self.delay())
        if command == "wait":
            await asyncio.sleep(float(rest.split()[0]))
        elif command == "hold":
            entered, gate = Echo.gates[action]
            entered.set()
            await gate.wait()
        elif command == "hang":
            await asyncio.Event().wait()
        elif command == "deaf":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(float(rest))
        elif command == "raise":
            raise ValueError("boom")
        self.actions.append(action)
        text = digest(self.task.id, self.seed, self.actions)
        self.messages += [Message("assistant", action), Message.user(text)]
        done = command == "quit"
        return Step(Observation(self.messages), 1.0 if done else 0.25, terminated=done, info={"n": len(self.actions)})

    async def close(self) -> None:
        assert not self.closed
        self.closed = True
        Echo.live["closed"] += 1


def factory(delay: Any = None) -> EnvFactory:
    """Environments of the above; the counts start afresh."""
    Echo.live.clear()
    Echo.gates.clear()
    return lambda: Echo(delay)


def all_closed() -> bool:
    """Whether every environment that was made has been closed, once."""
    return Echo.live["made"] == Echo.live["closed"]
