"""Warm workers that run programs in one language on tests, several programs and several tests at a time.

A program is compiled once and then run on each input, in parallel up to the cores. What was to be printed never enters
the sandbox: the comparison is made here. A sandbox that breaks is started anew and the program tried again, three
times.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rlready.aio import call_in_thread
from rlready.errors import UserError
from rlready.rewards.code.backends import BoxBroken
from rlready.rewards.code.boxes import Box
from rlready.rewards.code.languages import Language, language
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.loop import Outcome, run_many
from rlready.rewards.code.outputs import TOLERANCE, Compare, check
from rlready.rewards.code.programs import Program, judge
from rlready.rewards.code.results import CodeResult, Test, TestResult
from rlready.rewards.code.sandbox import Sandbox

TRIES = 3
T = TypeVar("T")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CodePool:
    """Workers for programs in one language; they start when they are first needed.

    Args:
        name: the language: a name, a Language, or the path of a YAML file.
        workers: how many programs may run at a time; as many as there are cores where it is None.
        limits: bounds on a program.
        parallel: how many tests of one program may run at a time; the cores, shared among busy workers, where it is
            None.
        sandbox: how programs are isolated; `limits` and `unsafe` belong to it where it is given.
        unsafe: run programs with no isolation at all, as `Sandbox(unsafe=True)`.

    Raises:
        UserError: the language is not known, or its programs are not installed.
    """

    def __init__(
        self,
        name: str | Path | Language = "python",
        workers: int | None = None,
        limits: Limits | None = None,
        *,
        parallel: int | None = None,
        sandbox: Sandbox | None = None,
        unsafe: bool = False,
    ) -> None:
        """Set the pool up; see the class."""
        for what, value in (("workers", workers), ("parallel", parallel)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"{what} must be a whole number, 1 or more, not {value!r}.")
        if sandbox is not None and (limits is not None or unsafe):
            raise UserError("Give limits and unsafe to the sandbox, or no sandbox.")
        self.language = language(name).require()
        self.sandbox = sandbox or Sandbox(limits, unsafe)
        self.workers = workers or cores()
        self._parallel = parallel
        self._slots: queue.LifoQueue[Box | None] = queue.LifoQueue()
        self._boxes: list[Box] = []
        self._busy = 0
        self._lock = threading.Lock()
        for _ in range(self.workers):
            self._slots.put(None)
        self._finalizer = weakref.finalize(self, _close_all, self._boxes)

    def start(self) -> CodePool:
        """Start one worker now, so that a sandbox that cannot be had is known now.

        Raises:
            UserError: programs cannot be isolated here.
        """
        box = self._slots.get()
        try:
            box = box or self._new_box()
        except BoxBroken as error:
            raise UserError(f"The sandbox does not start: {error}.") from error
        finally:
            self._slots.put(box)
        return self

    async def run(
        self,
        code: str,
        tests: Sequence[Test],
        timeout_s: float = 10.0,
        compare: Compare = "text",
        *,
        tolerance: float = TOLERANCE,
        all_tests: bool = False,
    ) -> CodeResult:
        """As `run_sync`, without holding up the event loop."""
        return await call_in_thread(
            lambda: self.run_sync(code, tests, timeout_s, compare, tolerance=tolerance, all_tests=all_tests)
        )

    def run_sync(
        self,
        code: str,
        tests: Sequence[Test],
        timeout_s: float = 10.0,
        compare: Compare = "text",
        *,
        tolerance: float = TOLERANCE,
        all_tests: bool = False,
    ) -> CodeResult:
        """Run a program on tests.

        Args:
            code: its text.
            tests: what is given and what is to be printed.
            timeout_s: wall-clock seconds of one test; compiling has as many, and ten at least.
            compare: how outputs are compared; see `outputs`.
            tolerance: of "floats".
            all_tests: run every test; else the tests after the first one that fails (in their order) are not run.

        Raises:
            UserError: there is no test, a setting is wrong, or programs cannot be isolated here.
        """
        check(compare, tolerance)
        tests = list(tests)
        if not tests:
            raise UserError("There are no tests: a program that is not tested is neither right nor wrong.")
        if not isinstance(timeout_s, (int, float)) or isinstance(timeout_s, bool) or not 0 < timeout_s <= 3600:
            raise UserError(f"timeout_s must be a number of seconds between 0 and 3600, not {timeout_s!r}.")
        judged: dict[int, TestResult] = {}

        def failed(number: int, outcome: Outcome) -> bool:
            judged[number] = judge(outcome, tests[number], compare, tolerance, timeout_s, self.sandbox.limits)
            return not judged[number].passed and not all_tests

        def work(box: Box) -> CodeResult:
            judged.clear()
            with Program(box, self.language, code, timeout_s, self.sandbox.limits) as program:
                broken = program.compile()
                if broken is not None:
                    return replace(broken, asked=len(tests))
                inputs = [test.input.encode("utf-8", "surrogatepass") for test in tests]
                run_many(program.loop, program.job, inputs, self.parallel, failed)
            return _sum_up(tuple(judged[n] for n in sorted(judged)), len(tests), all_tests)

        return self.use(work, lambda why: CodeResult("fail:other", why, asked=len(tests), sandbox_failed=True))

    def use(self, work: Callable[[Box], T], broken: Callable[[str], T]) -> T:
        """Do something in a worker's box; where the sandbox breaks, in a new one, and at last give up.

        Args:
            work: what to do; it may be called several times.
            broken: what to return in the end, given the reason.

        Raises:
            UserError: programs cannot be isolated here.
        """
        box = self._slots.get()
        with self._lock:
            self._busy += 1
        try:
            why = ""
            for _ in range(TRIES):
                try:
                    box = box or self._new_box()
                    return work(box)
                except BoxBroken as error:
                    why = str(error)
                    self._drop(box)
                    box = None
            return broken(f"the sandbox broke {TRIES} times: {why}")
        except BaseException:  # an interrupt may have come anywhere
            self._drop(box)
            box = None
            raise
        finally:
            with self._lock:
                self._busy -= 1
            self._slots.put(box)

    @property
    def parallel(self) -> int:
        """How many tests of one program may run at a time now."""
        return self._parallel or max(1, cores() // max(1, self._busy))

    def _new_box(self) -> Box:
        box = self.sandbox.box(self.language.programs, self._parallel or cores())
        self._boxes.append(box)
        return box

    def _drop(self, box: Box | None) -> None:
        if box is not None:
            with contextlib.suppress(ValueError):
                self._boxes.remove(box)
            box.close()

    def close(self) -> None:
        """End the workers that are idle; they start again when they are needed."""
        for _ in range(self.workers):
            try:
                box = self._slots.get_nowait()
            except queue.Empty:  # at work
                break
            self._drop(box)
            self._slots.put(None)

    def __enter__(self) -> CodePool:
        """The pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        self.close()


def _close_all(boxes: list[Box]) -> None:
    for box in list(boxes):
        box.close()


def _sum_up(tests: tuple[TestResult, ...], asked: int, all_tests: bool) -> CodeResult:
    """The result of a program from those of its tests."""
    at = next((n for n, test in enumerate(tests) if not test.passed), None)
    if at is None:
        last = tests[-1]
        reason = f"all {asked} tests were passed" if asked > 1 else "the test was passed"
        return CodeResult("success", reason, tests, "", last.stdout, last.stderr, last.exit_code, asked)
    if not all_tests:  # those after it may have been run already, at the same time
        tests = tests[: at + 1]
    test = tests[at]
    reason = f"test {at + 1} of {asked}: {test.reason}"
    return CodeResult(test.result, reason, tests, test.expected, test.stdout, test.stderr, test.exit_code, asked)


_SHARED: dict[tuple[int, str, bool], CodePool] = {}
_SHARED_LOCK = threading.Lock()
_UNSAFE = False


def allow_unsafe(allowed: bool = True) -> None:
    """Let the shared pools run programs with no isolation at all: what `--unsafe-no-sandbox` says."""
    global _UNSAFE
    _UNSAFE = allowed


def shared_pool(name: str | Path | Language = "python") -> CodePool:
    """The pool of this process for a language, with the usual limits; made when it is first asked for.

    Raises:
        UserError: as `CodePool`.
    """
    chosen = language(name)
    key = (os.getpid(), f"{chosen.name} {chosen.source}", _UNSAFE)
    with _SHARED_LOCK:
        if key not in _SHARED:
            _SHARED[key] = CodePool(chosen, unsafe=_UNSAFE)
        return _SHARED[key]
