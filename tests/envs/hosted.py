"""Environments for the process tests: each misbehaves in a way of its own. Imported by child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

from rlready.envs.base import Env, Observation, Step
from rlready.types import Message, Task

EPISODES = 0


class Counter(Env):
    """Counts its steps; the action says what goes wrong."""

    async def reset(self, task: Task, seed: int) -> Observation:
        global EPISODES
        EPISODES += 1
        self.count = 0
        self.messages = [Message.user(f"seed {seed}")]
        return Observation(self.messages, ["go"], {"pid": os.getpid(), "episodes": EPISODES})

    async def step(self, action: str) -> Step:
        self.count += 1
        await asyncio.sleep(0)
        misbehave(action)
        info: dict[str, Any] = {"torch": "torch" in sys.modules}
        if action == "object":
            info["bad"] = object()
        if action == "lambda":
            info["bad"] = lambda: 0
        if action == "exploit":
            info["bad"] = Exploit()
        if action == "descend":
            info["pids"] = descend()
        if action == "type":
            return "text"  # type: ignore[return-value]
        self.messages += [Message("assistant", action), Message.user(str(self.count))]
        return Step(Observation(self.messages), float(self.count), self.count >= 5, info=info)

    async def fork(self) -> Env:
        other = Counter()
        other.count, other.messages = self.count, list(self.messages)
        return other

    async def close(self) -> None:
        if getattr(self, "count", 0) == 3:
            raise OSError("cannot close at three")


class Unforkable(Counter):
    async def fork(self) -> Env:
        raise NotImplementedError("no forks here")


class Exploit:
    """Unpickling this would run a command in whoever reads it."""

    def __reduce__(self) -> Any:
        return os.system, ("touch " + os.environ["RLREADY_TEST_MARK"],)


def misbehave(action: str) -> None:
    if action == "sleep":
        time.sleep(60)
    if action == "hold":  # backtracks for ever inside C code, without ever letting go of the interpreter lock
        import re

        re.match(r"(a+)+$", "a" * 60 + "b")
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action == "die":
        print("the engine is out of coal", file=sys.stderr, flush=True)
        os._exit(3)
    if action == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == "exit":
        sys.exit(4)
    if action == "raise":
        raise LookupError("no such room")
    if action == "chatter":
        for _ in range(200):
            print("x" * 100_000)


def descend() -> list[int]:
    """Start a grandchild in our process group and one in a session of its own; both only sleep."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return [subprocess.Popen(command).pid, subprocess.Popen(command, start_new_session=True).pid]


def slow_boot() -> Env:
    time.sleep(60)
    return Counter()


def no_env() -> str:
    return "not an environment"


def broken() -> Env:
    raise RuntimeError("no display")
