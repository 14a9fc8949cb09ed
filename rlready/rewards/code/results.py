"""What comes of running a program on tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Result = Literal["success", "fail:wrong-output", "fail:error", "fail:timeout", "fail:other"]
RESULTS: tuple[Result, ...] = ("success", "fail:wrong-output", "fail:error", "fail:timeout", "fail:other")


@dataclass(frozen=True)
class Test:
    """One test: what is given on standard input, and what is to be printed."""

    __test__ = False  # not a test of pytest's

    input: str
    output: str


@dataclass(frozen=True)
class TestResult:
    """What one test came to.

    Attributes:
        result: success, or how it failed; "fail:other" is too much output.
        reason: one sentence.
        expected: what was to be printed.
        stdout: what was printed, as far as it was read.
        stderr: the same for standard error.
        exit_code: of the program; minus the signal's number where a signal ended it; None where it was ended from here.
        seconds: wall-clock time.
        cpu_seconds: processor time, 0 where it is not known.
    """

    __test__ = False

    result: Result
    reason: str
    expected: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the test was passed."""
        return self.result == "success"


@dataclass(frozen=True)
class CodeResult:
    """What a program came to.

    Attributes:
        result: success where every test was passed; else that of the first test that failed, or of compiling.
        reason: one sentence; it names the test, counted from 1.
        tests: results of the tests in their order, up to the first that failed unless all were asked for.
        expected: of the test that decided.
        stdout: of the test that decided, or of compiling.
        stderr: the same for standard error.
        exit_code: the same for the exit code.
        asked: how many tests there are.
        compiled: False where compiling failed.
        sandbox_failed: the sandbox broke, again and again; nothing is known of the program then.
    """

    result: Result
    reason: str
    tests: tuple[TestResult, ...] = field(default=())
    expected: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    asked: int = 0
    compiled: bool = True
    sandbox_failed: bool = False

    @property
    def passed(self) -> int:
        """How many tests were passed."""
        return sum(test.passed for test in self.tests)

    @property
    def fraction(self) -> float:
        """The share of all tests that was passed; tests that were not run are not passed."""
        return self.passed / self.asked if self.asked else 0.0
