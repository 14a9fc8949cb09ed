"""Verifying programs: rlready's warm pool against a fresh isolated process for each test, paired.

The same programs, right and wrong, on the same tests. The other side starts bubblewrap with prlimit in it for every
test, as a user of its own where root runs it: what a careful script does. Both stop at a program's first failing test
and compare alike; their verdicts must agree. A block of programs by the one, then by the other, the order changing.

    python benchmarks/code_pool.py            # writes benchmarks/results/code_pool.json, prints the ratios
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parts import write

from rlready.rewards.code import CodePool, Language, Test, language
from rlready.rewards.code.outputs import difference
from rlready.rewards.code.pool import cores

TESTS = 10
USER = 70_000
LIMITS = ["--as=2147483648", "--cpu=12", "--nproc=33", "--fsize=67108864", "--core=0", "--nofile=1024"]


def numbers(n: int) -> list[int]:
    """The numbers of a test."""
    return [(7 * n * n + 13 * k * k + 5 * k) % 101 - 30 for k in range(n + 3)]


REFERENCES: dict[str, Callable[[list[int]], object]] = {
    "sum": sum,
    "maximum": max,
    "evens": lambda a: sum(x % 2 == 0 for x in a),
    "running maximum": lambda a: " ".join(str(max(a[: i + 1])) for i in range(len(a))),
    "sorted": lambda a: " ".join(map(str, sorted(a))),
    "squares": lambda a: sum(x * x for x in a),
    "distinct": lambda a: len(set(a)),
    "wrong from the third test on": lambda a: sum(a),
    "raises": sum,
    "no program": sum,
}
PROGRAMS: dict[str, dict[str, str]] = {
    "python": {
        "sum": "print(sum(map(int, input().split())))",
        "maximum": "print(max(map(int, input().split())))",
        "evens": "a = list(map(int, input().split()))\nprint(sum(x % 2 == 0 for x in a))",
        "running maximum": (
            "out = []\nfor x in map(int, input().split()):\n"
            "    out.append(x if not out or x > out[-1] else out[-1])\nprint(*out)"
        ),
        "sorted": "print(*sorted(map(int, input().split())))",
        "squares": "total = 0\nfor word in input().split():\n    total += int(word) ** 2\nprint(total)",
        "distinct": "print(len(set(input().split())))",
        "wrong from the third test on": "a = list(map(int, input().split()))\nprint(sum(a[:5]))",
        "raises": "print(sum(map(int, input().split(','))))",
        "no program": "print(sum(",
    },
    "lua": {
        "sum": 'local t = 0\nfor w in io.read("l"):gmatch("%S+") do t = t + tonumber(w) end\nprint(t)',
        "maximum": (
            'local m\nfor w in io.read("l"):gmatch("%S+") do\n  local x = tonumber(w)\n'
            "  if not m or x > m then m = x end\nend\nprint(m)"
        ),
        "evens": (
            'local n = 0\nfor w in io.read("l"):gmatch("%S+") do\n'
            "  if tonumber(w) % 2 == 0 then n = n + 1 end\nend\nprint(n)"
        ),
        "running maximum": (
            'local out, m = {}\nfor w in io.read("l"):gmatch("%S+") do\n  local x = tonumber(w)\n'
            '  if not m or x > m then m = x end\n  out[#out + 1] = m\nend\nprint(table.concat(out, " "))'
        ),
        "sorted": (
            'local a = {}\nfor w in io.read("l"):gmatch("%S+") do a[#a + 1] = tonumber(w) end\n'
            'table.sort(a)\nprint(table.concat(a, " "))'
        ),
        "squares": (
            'local t = 0\nfor w in io.read("l"):gmatch("%S+") do t = t + tonumber(w) ^ 2 end\nprint(math.floor(t))'
        ),
        "distinct": (
            'local s, n = {}, 0\nfor w in io.read("l"):gmatch("%S+") do\n'
            "  if not s[w] then s[w] = true; n = n + 1 end\nend\nprint(n)"
        ),
        "wrong from the third test on": (
            'local t, n = 0, 0\nfor w in io.read("l"):gmatch("%S+") do\n'
            "  n = n + 1\n  if n <= 5 then t = t + tonumber(w) end\nend\nprint(t)"
        ),
        "raises": 'error("no")',
        "no program": "print((",
    },
}


def tests_of(name: str) -> list[Test]:
    """The tests of a task."""
    given = [numbers(n) for n in range(TESTS)]
    return [Test(" ".join(map(str, a)) + "\n", f"{REFERENCES[name](a)}\n") for a in given]


class Fresh:
    """A process of its own for every test: bubblewrap, and limits in it."""

    def __init__(self, chosen: Language, parallel: int) -> None:
        """Prepare for programs in a language."""
        self.language, self.parallel = chosen, parallel
        self.pool = ThreadPoolExecutor(parallel)
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self.user = {"user": USER, "group": USER, "extra_groups": []}

    def command(self, folder: str) -> list[str]:
        """The command for one test."""
        line = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
        for name in ("lib", "lib64", "bin"):
            line += ["--symlink", f"usr/{name}", f"/{name}"]
        for path in ("/etc/alternatives", "/etc/ld.so.cache"):
            line += ["--ro-bind-try", path, path]
        line += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            "67108864",
            "--tmpfs",
            "/tmp",
            "--ro-bind",
            folder,
            "/job",
        ]
        line += [
            "--chdir",
            "/job",
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin",
            "--cap-drop",
            "ALL",
            "--remount-ro",
            "/",
        ]
        return [*line, "prlimit", *LIMITS, *self.language.execute.split()]

    def passes(self, folder: str, test: Test) -> bool:
        """Run one test."""
        done = subprocess.run(
            self.command(folder), input=test.input.encode(), capture_output=True, timeout=30, cwd="/", **self.user
        )
        return done.returncode == 0 and not difference(done.stdout.decode("utf-8", "replace"), test.output)

    def verify(self, program: str, tests: Sequence[Test]) -> bool:
        """Whether a program passes all tests; those after a failing one are not run."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            Path(folder, self.language.filename).write_text(program)
            for at in range(0, len(tests), self.parallel):
                if not all(self.pool.map(lambda test: self.passes(folder, test), tests[at : at + self.parallel])):
                    return False
        return True


def measure(name: str, parallel: int, rounds: int) -> dict[str, Any]:
    """Both sides in turn; seconds of each round, and what they say of the programs."""
    chosen = language(name).require()
    fresh = Fresh(chosen, parallel)
    tasks = {task: (program, tests_of(task)) for task, program in PROGRAMS[name].items()}
    seconds: dict[str, list[float]] = {"fresh": [], "pool": []}
    with CodePool(chosen, workers=1, parallel=parallel) as pool:
        sides: dict[str, Callable[[str, Sequence[Test]], bool]] = {
            "fresh": fresh.verify,
            "pool": lambda program, tests: pool.run_sync(program, tests).result == "success",
        }
        verdicts = {side: {task: verify(*given) for task, given in tasks.items()} for side, verify in sides.items()}
        if verdicts["fresh"] != verdicts["pool"]:
            raise SystemExit(f"The sides disagree: {verdicts}")
        for n in range(rounds):
            for side in list(sides) if n % 2 else list(sides)[::-1]:
                began = time.perf_counter()
                for program, tests in tasks.values():
                    sides[side](program, tests)
                seconds[side].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["fresh"], seconds["pool"], strict=True)]
    return {
        "parallel": parallel,
        "right": sum(verdicts["pool"].values()),
        "programs": len(tasks),
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "milliseconds a program": {s: 1000 * statistics.median(v) / len(tasks) for s, v in seconds.items()},
        "seconds": seconds,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    found: dict[str, Any] = {"tests": TESTS, "cores": cores(), "rounds": rounds, "languages": {}}
    for name in PROGRAMS:
        found["languages"][name] = {}
        for label, parallel in (("one test at a time", 1), ("all cores", cores())):
            result = measure(name, parallel, rounds)
            found["languages"][name][label] = result
            ms, ratio = result["milliseconds a program"], result["ratio"]
            print(
                f"{name}, {label}: {ratio['median']:.1f} times ({ratio['min']:.1f} to {ratio['max']:.1f}); "
                f"{ms['fresh']:.1f} and {ms['pool']:.1f} ms a program"
            )
    write("code_pool", found)


if __name__ == "__main__":
    main()
