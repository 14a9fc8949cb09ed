"""Does a language's YAML do what it says? Small programs in it, one for each way in which a program can end.

    sum          two tests passed                  success
    wrong        another output                    fail:wrong-output
    error        an exit code that is not 0        fail:error
    nonsense     no program at all                 fail:error
    timeout      a loop without end                fail:timeout
    output       100 MB of output                  fail:other
    processes    processes without end             contained
    memory       memory without end                contained
    after        the first program again           success, and no process is left

The programs are written in the language, so they stand in files of their own beside this one, one for each ending of a
file's name. For a language of another ending they are given: a YAML file with the keys of those.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.rewards.code.languages import Language, language
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.pool import CodePool
from rlready.rewards.code.results import CodeResult, Test

FOLDER = Path(__file__).parent / "conformance"
PROGRAMS = ("sum", "wrong", "error", "timeout", "output", "processes", "memory")
TESTS = (Test("3 4\n", "7"), Test("10 -2\n", "8"))
NONSENSE = ")]}this is\x01 no program of any kind {[(\n\"'` ((( end end\n"
CONTAINED = "contained"
LIMITS = Limits(memory_mb=256, processes=16, output_mb=4)
WANTED = {
    "sum": "success",
    "wrong": "fail:wrong-output",
    "error": "fail:error",
    "nonsense": "fail:error",
    "timeout": "fail:timeout",
    "output": "fail:other",
    "processes": CONTAINED,
    "memory": CONTAINED,
    "after": "success",
}
_MARGIN = 20.0
"""Seconds beyond the limit in which a contained program must be gone; a busy machine needs some."""


@dataclass(frozen=True)
class Check:
    """One program's outcome.

    Attributes:
        name: of the check.
        wanted: the result code, or "contained": any failure, in time, and the pool goes on.
        got: the result code.
        ok: whether it is as wanted; None where it could not be run.
        reason: what the sandbox says.
        seconds: wall-clock time.
    """

    name: str
    wanted: str
    got: str
    ok: bool | None
    reason: str
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {"check": self.name, "wanted": self.wanted, "got": self.got, "ok": self.ok, "reason": self.reason,
                "seconds": round(self.seconds, 3)}  # fmt: skip


@dataclass(frozen=True)
class Conformance:
    """All checks of a language.

    Attributes:
        language: what was checked.
        checks: in their order.
        programs: file of the programs; empty where there are none.
    """

    language: Language
    checks: tuple[Check, ...]
    programs: str

    @property
    def ok(self) -> bool:
        """Whether every check ran and came out as wanted."""
        return all(check.ok for check in self.checks)

    @property
    def codes(self) -> frozenset[str]:
        """The result codes that were seen where they were wanted."""
        return frozenset(check.got for check in self.checks if check.ok and check.wanted == check.got)

    @property
    def contained(self) -> bool:
        """Whether the loop, the output, the processes and the memory without end were ended and the pool went on."""
        names = {"timeout", "output", "processes", "memory", "after"}
        return all(check.ok for check in self.checks if check.name in names)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {"language": self.language.name, "file": self.language.source, "programs": self.programs, "ok": self.ok,
                "checks": [check.to_json() for check in self.checks]}  # fmt: skip


@cache
def _by_suffix() -> dict[str, Path]:
    return {str(_read(path)["suffix"]): path for path in sorted(FOLDER.glob("*.yaml"))}


def programs_for(chosen: Language, path: str | Path | None = None) -> tuple[dict[str, str], str]:
    """The conformance programs of a language, and the file they are from; none where its ending is not known.

    Raises:
        UserError: a file was given and is no file of programs; file and key are named.
    """
    if path is None:
        path = _by_suffix().get(chosen.suffix) or _by_suffix().get(chosen.suffix.lower())
        if path is None:
            return {}, ""
    record = _read(Path(path))
    return {name: record[name] for name in PROGRAMS}, str(path)


def check_language(
    name: str | Path | Language, *, programs: str | Path | None = None, timeout_s: float = 2.0
) -> Conformance:
    """Run the conformance programs in the sandbox.

    Args:
        name: a language, its name, or the path of its YAML file.
        programs: a YAML file of programs, for a language whose programs are not known.
        timeout_s: seconds of a test; starting the interpreter must fit in.

    Raises:
        UserError: the YAML is wrong, its programs are not installed, or nothing isolates programs here.
    """
    chosen = language(name).require()
    written, source = programs_for(chosen, programs)
    before = _descendants()
    checks: list[Check] = []
    with CodePool(chosen, 1, LIMITS) as pool:
        pool.start()
        for each, wanted in WANTED.items():
            text = NONSENSE if each == "nonsense" else written.get("sum" if each == "after" else each)
            if text is None:
                lack = f"no program is known for files that end in {chosen.suffix or 'nothing'}; give --programs FILE"
                checks.append(Check(each, wanted, "not run", None, lack))
                continue
            began = time.perf_counter()
            result = pool.run_sync(text, TESTS, timeout_s)
            seconds = time.perf_counter() - began
            checks.append(Check(each, wanted, result.result, _holds(wanted, result, seconds, timeout_s),
                                result.reason, seconds))  # fmt: skip
    left = _descendants() - before
    if left and checks[-1].ok:
        ended = checks[-1]
        checks[-1] = Check(ended.name, ended.wanted, ended.got, False, f"{len(left)} processes are left", ended.seconds)
    return Conformance(chosen, tuple(checks), source)


def _holds(wanted: str, result: CodeResult, seconds: float, timeout_s: float) -> bool:
    if result.sandbox_failed:
        return False
    if wanted == CONTAINED:
        return result.result != "success" and seconds < len(TESTS) * timeout_s + _MARGIN
    return result.result == wanted


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is no file of programs: {str(error).splitlines()[0]}.") from error
    if not isinstance(record, Mapping):
        raise UserError(f"{path} holds no keys. It needs {', '.join(PROGRAMS)}.")
    known = ("suffix", *PROGRAMS)
    for key in record:
        if key not in known:
            raise UserError(f"{path}: {did_you_mean('key', str(key), known)}")
    for key in PROGRAMS:
        if not isinstance(record.get(key), str):
            raise UserError(f'{path}: "{key}" must be a program, as text.')
    return record


def _descendants() -> set[int]:
    """The processes that were started from here, theirs included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    found: set[int] = set()
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found
