"""The reward: a program is run on its tests, and all of them or none is paid.

`partial` adds what the released code of the paper pays for a program that runs and answers wrongly. Results are
remembered by program and tests, since a policy that has learnt something says the same thing often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rlready.rewards.code import CodePool, CodeResult, Language, Result, Test, find_program
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory, Verdict

PARTIAL = 0.2
RAN: tuple[Result, ...] = ("success", "fail:wrong-output")

Key = tuple[str, tuple[Test, ...]]


class Judge:
    """Runs programs in one language.

    Attributes:
        asked: programs that were judged.
        executed: programs that were run for it; the others were remembered.
    """

    def __init__(self, language: Language, *, workers: int | None = None, timeout_s: float = 2.0) -> None:
        """Start a worker, so that a sandbox that cannot be had is known at once.

        Raises:
            UserError: the language is not installed, or nothing isolates programs here.
        """
        self.pool = CodePool(language, workers).start()
        self.timeout_s = timeout_s
        self.asked = self.executed = 0
        self._known: dict[Key, CodeResult] = {}
        self._running: dict[Key, asyncio.Future[CodeResult]] = {}

    async def run(self, program: str, tests: Sequence[Test]) -> CodeResult:
        """What a program comes to; one that is being run already is waited for."""
        key = (program, tuple(tests))
        self.asked += 1
        if key in self._known:
            return self._known[key]
        running = self._running.get(key)
        if running is None or running.get_loop() is not asyncio.get_running_loop():
            self.executed += 1
            running = self._running[key] = asyncio.ensure_future(self._execute(key))
        return await asyncio.shield(running)

    async def _execute(self, key: Key) -> CodeResult:
        program, tests = key
        try:
            result = await self.pool.run(program, tests, self.timeout_s)
            if not result.sandbox_failed:
                self._known[key] = result
            return result
        finally:
            self._running.pop(key, None)

    def reward(self, partial: float = 0.0) -> RewardFn:
        """1 where all tests pass, `partial` where a program runs and answers wrongly, else 0."""

        async def program(task: Task, trajectory: Trajectory) -> Score:
            text = find_program(answer_text(trajectory), self.pool.language.name)
            if not text.strip():
                return Score(0.0, Verdict.NO_ANSWER, {"ran": 0.0}, "there is no fenced block with a program")
            result = await self.run(text, cases_of(task))
            if result.sandbox_failed:
                return Score.failed(result.reason)
            parts = {"ran": float(result.result in RAN)}
            if result.result == "success":
                return Score(1.0, Verdict.RIGHT, parts, result.reason)
            value = partial if result.result == "fail:wrong-output" else 0.0
            return Score(value, Verdict.WRONG, parts, f"{result.result}: {result.reason}")

        return declare(program, name="program", columns=["tests"])

    async def outputs(self, program: str, tests: Sequence[Test]) -> list[str] | None:
        """What a program prints on each test, right or wrong; None where it does not run on all of them."""
        result = await self.pool.run(program, tests, self.timeout_s, all_tests=True)
        if len(result.tests) < len(tests) or any(test.result not in RAN for test in result.tests):
            return None
        return [test.stdout.rstrip() for test in result.tests]

    def state_dict(self) -> dict[str, int]:
        """The counters, so that a resumed run has them."""
        return {"asked": self.asked, "executed": self.executed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Inverse of `state_dict`."""
        self.asked, self.executed = int(state["asked"]), int(state["executed"])

    def close(self) -> None:
        """End the workers."""
        self.pool.close()


def cases_of(task: Task) -> tuple[Test, ...]:
    """The tests of a task."""
    return tuple(Test(**test) for test in task.data["tests"])
