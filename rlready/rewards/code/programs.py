"""A program in a box: how it is started, compiling it once, and what became of a run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from types import TracebackType

from rlready.rewards.code.backends import BoxBroken
from rlready.rewards.code.boxes import Box, memory_file
from rlready.rewards.code.inside import image
from rlready.rewards.code.languages import Language
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.loop import Job, Loop, Outcome, run_once
from rlready.rewards.code.outputs import Compare, difference
from rlready.rewards.code.results import CodeResult, Result, Test, TestResult

_SIMPLE = re.compile(r"[\w ./:+,@%-]+", re.ASCII)
_ASSIGNS = re.compile(r"\w+=")
_PYTHON_FLAGS = frozenset({"-I", "-S", "-s", "-E", "-B", "-u"})
_COMPILE_SECONDS = 10.0
_KEPT_ERRORS = 20_000


def command(line: str, filename: str) -> tuple[tuple[str, ...], str]:
    """A shell line as a command, and the role it has in a cell: a plain Python program needs no new interpreter."""
    words = tuple(shlex.split(line)) if _SIMPLE.fullmatch(line) else ()
    if not words or _ASSIGNS.match(words[0]) or words[0] in ("cd", "exec", "set", "ulimit", "export"):
        return ("/bin/sh", "-c", line), "execute"
    if words[0] in ("python3", "python") and words[-1] == filename and set(words[1:-1]) <= _PYTHON_FLAGS:
        return words, "python"
    return words, "execute"


class Program:
    """A program in one language, put into a box; a context manager, after which nothing of it is left.

    Attributes:
        loop: the loop that its cells are in.
        job: how it is run; that of the compiled program once it was compiled.
    """

    def __init__(self, box: Box, language: Language, code: str, seconds: float, limits: Limits) -> None:
        """Pack the program's text."""
        self.language, self.seconds, self.limits = language, seconds, limits
        self._images = [memory_file(image.pack({language.filename: code.encode("utf-8", "surrogatepass")}))]
        self.loop = Loop(box)
        argv, role = command(language.execute, language.filename)
        self.job = Job(argv, role, language.filename, self._images[0], seconds, limits)

    def compile(self) -> CodeResult | None:
        """Compile it where the language is compiled; what went wrong, or None.

        Raises:
            BoxBroken: the sandbox does not work.
        """
        if not self.language.compile:
            return None
        argv, _ = command(self.language.compile, "")
        seconds = max(self.seconds, _COMPILE_SECONDS)
        job = Job(argv, "execute", self.language.filename, self._images[0], seconds, self.limits)
        lane = self.loop.open(job)
        outcome = run_once(self.loop, lane, b"", keep=True)
        if outcome.how == "ended" and outcome.code == 0:
            self._images.append(memory_file(b""))
            why = lane.pack(self._images[-1])
            self.loop.end(lane)
            if not why:
                argv, role = command(self.language.execute, self.language.filename)
                self.job = Job(argv, role, self.language.filename, self._images[-1], self.seconds, self.limits)
                return None
            return CodeResult("fail:error", why, compiled=False)
        result, reason = failure(outcome, seconds, self.limits)
        out, err = _text(outcome.stdout), _text(outcome.stderr[-_KEPT_ERRORS:])
        return CodeResult(
            result, f"it does not compile: {reason}", stdout=out, stderr=err, exit_code=outcome.code, compiled=False
        )

    def __enter__(self) -> Program:
        """The program itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its cells and forget its files."""
        for fd in self._images:
            os.close(fd)
        if isinstance(error, BoxBroken):  # the box is thrown away with all that is in it
            with contextlib.suppress(BoxBroken):
                self.loop.close()
        else:
            self.loop.close()


def judge(
    outcome: Outcome, test: Test, compare: Compare, tolerance: float, seconds: float, limits: Limits
) -> TestResult:
    """What a run on a test came to."""
    out = _text(outcome.stdout)
    if outcome.how == "ended" and outcome.code == 0:
        what = difference(out, test.output, compare, tolerance)
        result: Result = "fail:wrong-output" if what else "success"
        reason = what or "the output is the expected one"
    else:
        result, reason = failure(outcome, seconds, limits)
    return TestResult(
        result=result,
        reason=reason,
        expected=test.output,
        stdout=out,
        stderr=_text(outcome.stderr[-_KEPT_ERRORS:]),
        exit_code=outcome.code,
        seconds=outcome.seconds,
        cpu_seconds=outcome.cpu,
    )


def failure(outcome: Outcome, seconds: float, limits: Limits) -> tuple[Result, str]:
    """What a run that did not end well came to, and why."""
    if outcome.how == "time" or outcome.code == -signal.SIGXCPU:
        return "fail:timeout", f"it did not end within {seconds:g} s"
    if outcome.how == "output":
        return "fail:other", f"it wrote more than {limits.output_mb} MB of output"
    if outcome.how == "memory":
        return "fail:error", f"it used more than {limits.memory_mb} MB of memory"
    if outcome.how == "died":
        return "fail:error", "it was ended by the system, with all that it had started"
    if outcome.code is not None and outcome.code < 0:
        return "fail:error", f"it was ended by signal {-outcome.code} ({_signal(-outcome.code)})"
    return "fail:error", f"it ended with exit code {outcome.code}{_last_line(outcome.stderr)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _last_line(errors: bytes) -> str:
    lines = _text(errors[-2000:]).strip().splitlines()
    return f" ({lines[-1].strip()[:200]})" if lines else ""


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "replace")
