"""Fuzzes every parser of `rlready.rewards`: nothing may escape, and no input may take long.

    python fuzz/run.py --minutes 10                     # each parser for ten minutes, half of them by atheris
    python fuzz/run.py --minutes 1 --only teds tool_call --engine hypothesis

Inputs are put together from pieces that the parser has rules for, from characters that trip readers of text, and from
short texts that are repeated thousands of times, for work that grows faster than the input. Two engines share the
time: hypothesis, and atheris (libFuzzer, guided by the branches that inputs reach) where it is installed. An input
that fails is written to build/fuzz/, with what happened, and the exit status is 1. It may take `--seconds` of processor
time; one that does not come back within a minute more ends everything with a traceback of where it was, and stands in
build/fuzz/NAME.current.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOUND = HERE.parent / "build" / "fuzz"
sys.path[:0] = [str(HERE), str(HERE.parent)]
STUCK = 60.0
LONGEST = 200_000


class Failure(Exception):
    """What went wrong, with the input that shows it."""


class Trial:
    """Tries a target on one input after another, and keeps count."""

    def __init__(self, target: Any, seconds: float) -> None:
        """Nothing tried yet."""
        self.target, self.seconds = target, seconds
        self.count, self.slowest, self.worked = 0, 0.0, 0.0
        self.armed = -STUCK
        FOUND.mkdir(parents=True, exist_ok=True)
        self.current = (FOUND / f"{target.name}.current").open("w+b", buffering=0)

    def __call__(self, prediction: str, reference: str) -> None:
        """One input.

        Raises:
            Failure: something escaped, did not hold, or took too long.
        """
        self.count += 1
        self.guard(prediction, reference)
        began = time.process_time()
        try:
            self.target.check(prediction, reference)
        except Exception as error:
            raise Failure(self.keep(prediction, reference, f"{type(error).__name__}: {error}")) from error
        took = time.process_time() - began
        self.slowest, self.worked = max(self.slowest, took), self.worked + took
        if took > self.seconds:
            raise Failure(self.keep(prediction, reference, f"took {took:.1f} seconds"))

    def guard(self, prediction: str, reference: str) -> None:
        """See to it that an input that never comes back is known, and ends the process, even within one regex."""
        if time.monotonic() - self.armed > STUCK / 4:  # starting the guard's thread for every input takes long
            self.armed = time.monotonic()
            faulthandler.dump_traceback_later(self.seconds + STUCK, exit=True)
        data = f"{prediction}\x1f{reference}".encode("utf-8", "surrogatepass")
        self.current.seek(0)
        self.current.write(data)
        self.current.truncate(len(data))

    def close(self) -> None:
        """Nothing is stuck any more."""
        faulthandler.cancel_dump_traceback_later()
        self.current.close()

    def keep(self, prediction: str, reference: str, what: str) -> str:
        """Write the input down; returns what happened and where it is."""
        record = {"target": self.target.name, "what": what[:500], "prediction": prediction, "reference": reference}
        text = json.dumps(record)
        name = hashlib.blake2b(repr((prediction, reference)).encode(), digest_size=4).hexdigest()
        path = FOUND / f"{self.target.name}-{name}.json"
        path.write_text(text + "\n", encoding="utf-8")
        return f"{what[:300]} [{path}]"


def by_hypothesis(trial: Trial, minutes: float, first_seed: int, examples: int = 100) -> str:
    """Try inputs until the time is up; returns what failed, or nothing."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    pieces = st.sampled_from(list(trial.target.pieces))
    character = st.characters(codec=None)
    soup = st.lists(st.one_of(pieces, pieces, st.text(character, max_size=4)), max_size=40).map("".join)
    flood = st.builds(
        lambda unit, times, head, tail: head + unit * min(times, LONGEST // max(len(unit), 1)) + tail,
        st.lists(pieces, min_size=1, max_size=4).map("".join),
        st.sampled_from([3, 50, 1000, 20_000, LONGEST]),
        soup,
        soup,
    )
    gold = st.sampled_from(list(trial.target.golds))
    around = st.builds(lambda a, b, c: a + b + c, soup, gold, soup)
    prediction = st.one_of(soup, soup, around, flood)
    end = time.monotonic() + 60 * minutes
    number = first_seed
    while time.monotonic() < end:

        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(prediction, st.one_of(gold, gold, soup, around, flood))
        def run(text: str, reference: str) -> None:
            if time.monotonic() < end:
                trial(text, reference)

        try:
            run()
        except Failure as failure:
            return str(failure)
        number += 1
    return ""


def by_atheris(name: str, minutes: float, seconds: float, seed: int) -> tuple[str, dict[str, float]]:
    """The same in a process of libFuzzer's; returns what failed, and its counts."""
    folder = FOUND / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    notes = FOUND / f"{name}.atheris.json"
    notes.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--inside", name, "--seconds", str(seconds), str(folder), f"-seed={seed + 1}",
               f"-max_total_time={max(1, round(60 * minutes))}", "-max_len=4096", "-len_control=10",
               "-rss_limit_mb=4096", f"-timeout={round(seconds + STUCK)}", f"-artifact_prefix={FOUND}/"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    told = json.loads(notes.read_text()) if notes.exists() else {}
    failed = told.get("failed", "")
    if done.returncode and not failed:
        failed = f"atheris ended with {done.returncode}: {done.stderr[-300:]}"
    return failed, {name: told.get(name, 0.0) for name in ("count", "slowest", "worked")}


def inside(name: str, seconds: float, arguments: list[str]) -> None:
    """The process of libFuzzer."""
    import atheris

    with atheris.instrument_imports(
        include=["rlready.rewards", "rlready.jsontext", "rlready.schemas", "rlready.toolcalls"]
    ):
        import targets

        target = next(t for t in targets.targets() if t.name == name)
        target.check("", "")  # imports what is imported late
        for gold in target.golds:
            target.check(gold, gold)
    trial = Trial(target, seconds)
    notes = FOUND / f"{name}.atheris.json"
    corpus = next((Path(a) for a in arguments if not a.startswith("-")), None)
    if corpus is not None:
        for i, text in enumerate([*target.golds, *target.pieces]):
            (corpus / f"piece-{i}").write_bytes(b"\x00\x00" + text.encode("utf-8", "surrogatepass"))
    words = FOUND / f"{name}.dict"
    plain = [p for p in target.pieces if p.isascii() and p.isprintable() and p]
    words.write_text(
        "".join(f'"{p.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"\n' for p in plain)
    )
    last = time.monotonic()

    def note(failed: str = "") -> None:
        notes.write_text(
            json.dumps({"failed": failed, "count": trial.count, "slowest": trial.slowest, "worked": trial.worked})
        )

    def one(data: bytes) -> None:
        nonlocal last
        times, choice, rest = (data[0], data[1], data[2:]) if len(data) > 2 else (0, 0, data)
        text = rest.decode("utf-8", "replace").replace("\ufffd", "\ud800")
        prediction, cut, reference = text.partition("\x1f")
        if times > 200:  # long inputs of one unit, for work that grows faster than they do
            prediction *= min(10 ** (times % 5 + 1), LONGEST // max(len(prediction), 1) + 1)
        if not cut:
            reference = target.golds[choice % len(target.golds)]
        try:
            trial(prediction, reference)
        except Failure as failure:
            note(str(failure))
            raise
        if time.monotonic() - last > 1:
            last = time.monotonic()
            note()

    atheris.Setup([sys.argv[0], f"-dict={words}", *arguments], one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz all targets, one after another; 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each parser, all engines together")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these parsers")
    parser.add_argument("--engine", choices=["hypothesis", "atheris", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time that one input may take")
    parser.add_argument("--seed", type=int, default=0, help="where the inputs begin")
    parser.add_argument("--list", action="store_true", help="name the parsers and end")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.inside:
        inside(args.inside, args.seconds, rest)
        return 0
    if rest:
        parser.error(f"unknown: {' '.join(rest)}")
    import targets

    all_of_them = {target.name: target for target in targets.targets()}
    if args.list:
        print("\n".join(all_of_them))
        return 0
    unknown = set(args.only or ()) - set(all_of_them)
    if unknown:
        parser.error(f"no parser {', '.join(sorted(unknown))}; there are: {', '.join(all_of_them)}")
    there = importlib.util.find_spec("atheris") is not None
    if args.engine == "atheris" and not there:
        parser.error("atheris is not installed: pip install atheris")
    engines = [e for e in ("hypothesis", "atheris") if args.engine in (e, "both") and (e != "atheris" or there)]
    bad = False
    for name in args.only or all_of_them:
        for engine in engines:
            minutes = args.minutes / len(engines)
            if engine == "hypothesis":
                trial = Trial(all_of_them[name], args.seconds)
                failed = by_hypothesis(trial, minutes, args.seed)
                counts = {"count": trial.count, "slowest": trial.slowest, "worked": trial.worked}
                trial.close()
            else:
                failed, counts = by_atheris(name, minutes, args.seconds, args.seed)
            bad = bad or bool(failed)
            told = f"FAILED: {failed}" if failed else "held"
            print(
                f"{name:16} {engine:10} {counts['count']:9,.0f} inputs in {counts['worked']:6.1f} s of work, "
                f"slowest {counts['slowest']:5.2f} s: {told}",
                flush=True,
            )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
