"""Function tests: Python tests of a Python program, run where the program cannot reach them.

The program and its tests run in two cells. The tests call the program's functions over a channel that carries plain
data, and compare what comes back in their own process. So nothing that the program does to itself counts: ending early
with status 0, replacing comparisons or built-in functions, objects that equal everything, reading the expected values.
A test that was not reported as passed was not passed.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field, replace
from typing import Any

from rlready.aio import call_in_thread
from rlready.errors import UserError
from rlready.rewards.code.boxes import Box, memory_file
from rlready.rewards.code.inside import image
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.loop import Job, Lane, Loop, Outcome
from rlready.rewards.code.pool import CodePool
from rlready.rewards.code.programs import failure
from rlready.rewards.code.results import CodeResult, TestResult

_GRACE = 2.0
_PACKET = 1 << 16


@dataclass
class _Heard:
    """What the tests reported."""

    tests: list[tuple[str, bool, str]] = field(default_factory=list)
    broken: str = ""
    ended: bool = False
    complete: bool = False

    def take(self, sock: socket.socket) -> None:
        while True:
            try:
                data = sock.recv(_PACKET, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                return
            if not data:
                return
            message: dict[str, Any] = json.loads(data)
            if "test" in message:
                self.tests.append((message["test"], message["ok"], message["why"]))
            self.broken = message.get("broken", self.broken)
            self.ended = self.ended or "ended" in message
            self.complete = self.complete or "end" in message


async def run_function_tests(pool: CodePool, code: str, tests: str, timeout_s: float = 10.0) -> CodeResult:
    """As `run_function_tests_sync`, without holding up the event loop."""
    return await call_in_thread(run_function_tests_sync, pool, code, tests, timeout_s)


def run_function_tests_sync(pool: CodePool, code: str, tests: str, timeout_s: float = 10.0) -> CodeResult:
    """Run Python tests against a Python program.

    Args:
        pool: a pool for Python.
        code: the program.
        tests: assertions, `test_` functions, test cases of unittest, or a function `check(candidate)`.
        timeout_s: wall-clock seconds for all of them together.

    Returns:
        The result, each test with its own; `sandbox_failed` where the tests themselves cannot be run.

    Raises:
        UserError: the pool is for another language, or there are no tests.
    """
    if pool.language.suffix != ".py":
        raise UserError(f"Function tests are for Python; this pool runs {pool.language.name}.")
    if not tests.strip():
        raise UserError("There are no tests: a program that is not tested is neither right nor wrong.")

    def work(box: Box) -> CodeResult:
        return _run(box, code, tests, timeout_s, pool.sandbox.limits)

    return pool.use(work, lambda why: CodeResult("fail:other", why, sandbox_failed=True))


def _run(box: Box, code: str, tests: str, seconds: float, limits: Limits) -> CodeResult:
    loop = Loop(box)
    heard = _Heard()
    channels = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    report, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    images = [memory_file(image.pack({name: text.encode("utf-8", "surrogatepass")}))
              for name, text in (("solution.py", code), ("tests.py", tests))]  # fmt: skip
    nothing = memory_file(b"")
    ends: dict[str, Outcome] = {}
    try:
        solution = loop.open(Job(("python3",), "solution", "solution.py", images[0], seconds, limits))
        tester = loop.open(Job(("python3",), "tester", "tests.py", images[1], seconds + _GRACE, limits))
        solution.begin("solution", nothing, "", (channels[0].fileno(),))
        tester.begin("tester", nothing, "", (channels[1].fileno(), told.fileno()))
        for sock in (*channels, told):
            sock.close()
        loop.listen(report.fileno(), lambda: heard.take(report) if not (heard.complete or heard.ended) else None)
        while "tester" not in ends:
            for lane, outcome in loop.step():
                ends[lane.tag] = outcome
        heard.take(report)
        if "solution" not in ends and heard.ended:
            _wait(loop, solution, ends)
    finally:
        for fd in (*images, nothing):
            os.close(fd)
        for sock in (*channels, told):
            sock.close()
        loop.ignore(report.fileno())
        report.close()
        loop.close()
    return _sum_up(heard, ends, seconds, limits)


def _wait(loop: Loop, lane: Lane, ends: dict[str, Outcome]) -> None:
    """Wait for how a program ended that the tests said is gone."""
    while lane.running:
        for other, outcome in loop.step():
            ends[other.tag] = outcome


def _sum_up(heard: _Heard, ends: dict[str, Outcome], seconds: float, limits: Limits) -> CodeResult:
    if heard.broken:
        return CodeResult("fail:other", heard.broken, sandbox_failed=True)
    results = [_result(*test) for test in heard.tests]
    program, tester = ends.get("solution"), ends["tester"]
    if not heard.complete:
        results.append(_unfinished(program, tester, seconds, limits))
    out, err = ("", "") if program is None else (_text(program.stdout), _text(program.stderr))
    passed = sum(test.passed for test in results)
    bad = next((n for n, test in enumerate(results) if not test.passed), None)
    whole = CodeResult("success", f"all {passed} tests were passed" if passed != 1 else "the test was passed",
                       tuple(results), stdout=out, stderr=err, asked=len(results))  # fmt: skip
    if bad is None:
        return whole
    code = program.code if program is not None else None
    return replace(whole, result=results[bad].result, reason=results[bad].reason, exit_code=code)


def _result(name: str, ok: bool, why: str) -> TestResult:
    return TestResult("success" if ok else "fail:wrong-output", name if ok else f"{name}: {why}")


def _unfinished(program: Outcome | None, tester: Outcome, seconds: float, limits: Limits) -> TestResult:
    """Why the tests did not come to their end."""
    if program is not None and program.how == "ended" and program.code == 0:
        return TestResult("fail:error", "the program ended with exit code 0 before the tests were done", exit_code=0)
    if program is not None and not (program.how == "ended" and program.code == 0):
        result, reason = failure(program, seconds, limits)
        return TestResult(result, f"before the tests were done: {reason}", exit_code=program.code)
    result, reason = failure(tester, seconds, limits)
    if result == "fail:error" and tester.how == "ended":
        reason = "the tests did not come to their end"
    return TestResult(result, reason)


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "replace")
