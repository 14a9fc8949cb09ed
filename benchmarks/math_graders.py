"""Mathematical answers: verdicts and grades a second, rlready's verifier beside math-verify's.

Both sides run in lockstep in two processes: a block of pairs by the one, the same block by the other, so that what else
the machine does weighs on both. Time is processor time of the grading process (SymPy's helper of ours included).

The mix is made from a seed: gold answers in the shares of competition and school sets (whole numbers, fractions,
decimals, surds, expressions, intervals, sets, pairs, equations, units and percent, words), and for each four responses
as samples of one prompt are: the gold in another form, a wrong answer of its kind twice, another form once more. It is
known which are right, so both sides' accuracy on it is counted too.

    python -m venv mv && mv/bin/pip install math-verify
    python benchmarks/math_graders.py --python mv/bin/python --cases CASES.jsonl --memory 100000

writes benchmarks/results/math_graders.json. Without --python only rlready is measured. CASES are records as `rlready
grade` reads them, with `correct`; of the published ones 110 are mathematical, 74 of which are handed out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# How many of the 110 cases these graders get right, as their users reported in public.
PUBLIC = {"verl": 97, "math-verify": 95, "TRL": 91}
Pair = tuple[str, str, bool, bool]  # prediction, gold, whether it is a whole response, whether it is right

_PHRASES = (
    "We work it out step by step. {work}\n\nSo the answer is $\\boxed{{{a}}}$.",
    "{work} Therefore \\boxed{{{a}}}",
    "{work}\n\n**Final Answer**\n\n\\[\\boxed{{{a}}}\\]",
    "{work} The final answer is ${a}$. I hope it is correct.",
)
_WORK = (
    "First, note that $2x + 3 = 11$ gives $x = 4$, and then we add the parts. ",
    "Let $n$ be the number in question; by symmetry both halves are equal. ",
    "Using the identity $(a+b)^2 = a^2 + 2ab + b^2$ we expand and compare. ",
)


def _kinds(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A gold, other forms of it, and wrong answers."""
    a, c = rng.randint(2, 60), rng.randint(2, 9)
    b = rng.choice([n for n in range(2, 41) if n != a])
    kind = rng.choices(range(12), (34, 12, 6, 7, 12, 5, 4, 5, 5, 5, 3, 2))[0]
    if kind == 0:
        n = rng.choice((a, -a, a * 1000 + b, a * 100))
        return str(n), [str(n), f"{n:,}", f"{n}.0"], [str(n + 1), str(-n)]
    if kind == 1:
        return (
            rf"\frac{{{a}}}{{{a + b}}}",
            [f"{a}/{a + b}", rf"\dfrac{{{a * 2}}}{{{(a + b) * 2}}}"],
            [f"{b}/{a + b}", str(a)],
        )
    if kind == 2:
        return f"{a}.{b}", [f"{a}.{b}0", rf"\frac{{{a}{b:02d}}}{{100}}" if b > 9 else f"{a}.{b}"], [f"{b}.{a}", str(a)]
    if kind == 3:
        return rf"{c}\sqrt{{{b * 4 + 3}}}", [rf"\sqrt{{{c * c * (b * 4 + 3)}}}", rf"\sqrt{{{b * 4 + 3}}} \cdot {c}"], [
            rf"\sqrt{{{b * 4 + 3}}}", rf"{c + 1}\sqrt{{{b * 4 + 3}}}"]  # fmt: skip
    if kind == 4:
        return (
            f"x^2+{a + b}x+{a * b}",
            [f"(x+{a})(x+{b})", f"{a * b}+{a + b}x+x^2"],
            [f"(x-{a})(x+{b})", f"x^2+{a}x+{b}"],
        )
    if kind == 5:
        same = [rf"{a}\pi/{c}", rf"\frac{{{2 * a}}}{{{2 * c}}}\pi"]
        return rf"\frac{{{a}\pi}}{{{c}}}", same, [rf"\frac{{{a}}}{{{c}}}", rf"\frac{{{a + 1}\pi}}{{{c}}}"]
    if kind == 6:
        return rf"({-a}, {b}]", [rf"x \in ({-a},{b}]", rf"{-a} < x \le {b}"], [f"[{-a}, {b}]", f"({-b}, {a}]"]
    if kind == 7:
        return f"({a}, {b})", [f"({a},{b})", rf"\left({a}, {b}\right)"], [f"({b}, {a + 1})", f"({a}, {b + 1})"]
    if kind == 8:
        return (
            rf"\{{{a}, {a + b}\}}",
            [rf"\{{{a + b},{a}\}}", f"{a}, {a + b}"],
            [rf"\{{{a}\}}", rf"\{{{a},{a + b + 1}\}}"],
        )
    if kind == 9:
        return f"y = {c}x + {b}", [f"y={b}+{c}x", f"{c}x - y + {b} = 0"], [f"y={c}x-{b}", f"y = {c + 1}x+{b}"]
    if kind == 10:
        return rf"{a}\text{{ cm}}", [f"{a}", rf"{a} \text{{cm}}"], [rf"{a + 1}\text{{ cm}}", f"{a * 10}"]
    return rf"{a}\%", [rf"{a}\%", f"{a}%"], [rf"{a + 1}\%", f"{b + 70}"]


def mix(count: int, seed: int = 0) -> list[Pair]:
    """Pairs of the mix."""
    rng = random.Random(seed)
    out: list[Pair] = []
    while len(out) < count:
        gold, same, other = _kinds(rng)
        for right in (True, False, True, False):
            text = rng.choice(same if right else other)
            work = "".join(rng.choice(_WORK) for _ in range(rng.randint(1, 12)))
            out.append((rng.choice(_PHRASES).format(work=work, a=text), gold, True, right))
    rng.shuffle(out)
    return out[:count]


def cases(path: Path) -> list[Pair]:
    """The mathematical ones of the published cases."""
    out = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        record = json.loads(line) if line.strip() else {"kind": ""}
        if record["kind"].startswith("math"):
            whole = record["kind"] == "math_response"
            out.append((str(record["prediction"]), str(record["reference"]), whole, bool(record["correct"])))
    return out


def ours() -> Callable[[Pair], bool]:
    """Our verifier."""
    from rlready.rewards import verify_math
    from rlready.types import Verdict

    return lambda p: verify_math(p[0], p[1], response=p[2]).verdict is Verdict.RIGHT


def theirs() -> Callable[[Pair], bool]:
    """math-verify as its documentation has it: parse both, verify(gold, answer)."""
    from math_verify import parse, verify  # type: ignore[import-not-found]

    def grade(pair: Pair) -> bool:
        gold = pair[1] if "$" in pair[1] else f"${pair[1]}$"
        answer = pair[0] if pair[2] or "$" in pair[0] else f"${pair[0]}$"
        return bool(verify(parse(gold), parse(answer)))

    return grade


def serve(side: str) -> None:
    """A grading process: blocks of pairs come in as lines, verdicts and seconds go out."""
    grade = ours() if side == "ours" else theirs()
    for line in sys.stdin:
        pairs: list[Pair] = [tuple(p) for p in json.loads(line)]
        before, began = _processor(), time.perf_counter()
        verdicts: list[bool | None] = []
        for pair in pairs:
            try:
                verdicts.append(grade(pair))
            except Exception:
                verdicts.append(None)
        out = {"verdicts": verdicts, "cpu": _processor() - before, "wall": time.perf_counter() - began}
        sys.stdout.write(json.dumps(out) + "\n")
        sys.stdout.flush()


def _processor() -> float:
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


class Side:
    """One side's process."""

    def __init__(self, python: str, side: str) -> None:
        """Start it."""
        root = str(Path(__file__).resolve().parents[1])
        self._process = subprocess.Popen(
            [python, __file__, "--serve", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": root if side == "ours" else ""},
        )

    def grade(self, pairs: list[Pair]) -> dict[str, Any]:
        """Verdicts and seconds of a block."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(pairs) + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _blocks(pairs: list[Pair], size: int) -> Iterator[list[Pair]]:
    return (pairs[i : i + size] for i in range(0, len(pairs), size))


def _right(pairs: list[Pair], verdicts: list[bool | None]) -> dict[str, int]:
    marks = [(bool(v), p[3]) for p, v in zip(pairs, verdicts, strict=True)]
    return {
        "of": len(pairs),
        "agree": sum(v == r for v, r in marks),
        "wrongly_accepted": sum(v and not r for v, r in marks),
        "wrongly_refused": sum(r and not v for v, r in marks),
    }


def _resident_kb() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize() // 1024


def memory(count: int) -> dict[str, Any]:
    """Resident memory over many grades of ours, in this process."""
    grade = ours()
    marks = []
    for start in range(0, count, 5000):
        for pair in mix(5000, seed=start + 1):
            grade(pair)
        marks.append(_resident_kb())
    return {"grades": count, "resident_kb": marks}


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="an interpreter that has math-verify")
    parser.add_argument("--cases", type=Path, help="the published cases, graders.jsonl")
    parser.add_argument("--count", type=int, default=2000, help="pairs of the mix")
    parser.add_argument("--memory", type=int, default=0, help="and the memory over so many grades")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    sides = {"rlready": Side(sys.executable, "ours")}
    if args.python:
        sides["math-verify"] = Side(args.python, "theirs")
    out: dict[str, Any] = {"machine": platform.machine(), "python": platform.python_version(), "public_of_110": PUBLIC}
    if args.python:
        ask = "import importlib.metadata as m; print(m.version('math-verify'))"
        out["math-verify"] = subprocess.run(
            [args.python, "-c", ask], check=True, capture_output=True, text=True
        ).stdout.strip()
    pairs = mix(args.count)
    for side in sides.values():
        side.grade(pairs[:1] * 2)  # imports
    times: dict[str, list[float]] = {name: [] for name in sides}
    verdicts: dict[str, list[bool | None]] = {name: [] for name in sides}
    for block in _blocks(pairs, 100):
        for name, side in sides.items():
            reply = side.grade(block)
            times[name].append(reply["cpu"])
            verdicts[name] += reply["verdicts"]
    out["mix"] = {
        name: {**_right(pairs, verdicts[name]), "grades_a_second": round(len(pairs) / sum(times[name]), 1)}
        for name in sides
    }
    if len(sides) == 2:
        ratios = [b / a for a, b in zip(*times.values(), strict=True)]
        out["mix"]["times_as_fast"] = round(sum(times["math-verify"]) / sum(times["rlready"]), 2)
        out["mix"]["times_as_fast_by_block"] = [round(q, 2) for q in statistics.quantiles(ratios, n=4)]
    if args.cases:
        public = cases(args.cases)
        out["cases"] = {name: _right(public, side.grade(public)["verdicts"]) for name, side in sides.items()}
    for side in sides.values():
        side.close()
    if args.memory:
        out["memory"] = memory(args.memory)
    text = json.dumps(out, indent=1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "math_graders.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
