"""Megabytes a second from bytes to recordings, and what memory does while a log is read.

Chat JSONL as agents' harnesses write it: conversations of 4 to 42 messages of 50 to 2,000 characters, every third turn
with a tool call and its result. A second file has the same conversations under a system prompt of 8,000 characters.
Every recording is read and let go, as a fit does that keeps only what it needs.

Memory is the peak of the process's resident memory in its own process a file, less what it had before reading.

    python benchmarks/log_readers.py          # 0.2 GB of each kind; writes benchmarks/results/log_readers.json
    python benchmarks/log_readers.py --big    # and 2 GB
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

RESULTS = Path(__file__).parent / "results"
RULES = "You are an agent of an airline. Help the customer within the rules. "
WORDS = """flight reservation the customer a refund for baggage and cabin economy please passenger I would like to
change my seat on May 20 from Boston to Seattle with certificate payment gift card policy agent confirm total $351"""


def text(rng: random.Random, least: int = 50, most: int = 2000) -> str:
    """Words up to a length that is uniform from `least` to `most`; now and then a letter beyond ASCII, or a line."""
    vocabulary = WORDS.split()
    length = rng.randint(least, most)
    words: list[str] = []
    size = 0
    while size < length:
        word = rng.choice(vocabulary)
        if rng.random() < 0.02:
            word += rng.choice(("\n", "é", "—", '"'))
        words.append(word)
        size += len(word) + 1
    return " ".join(words)[:length]


def conversation(rng: random.Random, number: int, system: str) -> dict[str, Any]:
    """One record."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": text(rng)}]
    for turn in range(rng.randint(1, 10)):
        if rng.random() < 0.34:
            ident = f"call_{number}_{turn}"
            arguments = json.dumps({"reservation_id": f"R{rng.randrange(10**6)}", "note": text(rng, 10, 60)})
            call = {"id": ident, "type": "function", "function": {"name": "get_reservation", "arguments": arguments}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            result = {"reservation_id": ident, "status": "ok", "remarks": text(rng)}
            messages.append({"role": "tool", "tool_call_id": ident, "content": json.dumps(result)})
        messages.append({"role": "assistant", "content": text(rng)})
        messages.append({"role": "user", "content": text(rng)})
    return {
        "id": f"run-{number}",
        "task_id": f"task-{number % 500}",
        "reward": float(number % 3 == 0),
        "messages": messages,
    }


def write_log(path: Path, size: int, system: str) -> int:
    """A file of at least `size` bytes; returns the number of records. Records repeat, under ids of their own."""
    rng = random.Random(0)
    pool = [conversation(rng, number, system) for number in range(1000)]
    number, written = 0, 0
    with path.open("wb") as stream:
        while written < size:
            record = {**pool[number % len(pool)], "id": f"run-{number}"}
            written += stream.write(orjson.dumps(record) + b"\n")
            number += 1
    return number


def peak() -> float:
    """Peak resident memory of this process in MB; Linux's own count, for `ru_maxrss` keeps the parent's across exec."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def measure(path: Path) -> dict[str, float]:
    """Read a file in this process."""
    from rlready.experience.logs import LogReport, read_logs

    report = LogReport()
    messages = 0
    before = peak()
    began, busy = time.perf_counter(), time.process_time()
    for recording in read_logs(path, report=report):
        messages += len(recording.messages)
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    grown = peak() - before
    return {
        "MB": report.bytes / 1e6, "recordings": report.recordings, "dropped": report.reasons.total(),
        "messages": messages, "seconds": wall, "processor seconds": cpu, "memory growth in MB": grown,
    }  # fmt: skip


def in_own_process(path: Path) -> dict[str, float]:
    """As `measure`, in a process that has done nothing else."""
    done = subprocess.run([sys.executable, __file__, "--read", str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def rounds(path: Path, times: int) -> dict[str, float]:
    """Medians over rounds."""
    each = [in_own_process(path) for _ in range(times)]
    return {name: statistics.median(r[name] for r in each) for name in each[0]}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big", action="store_true", help="also read 2 GB (needs as much space for a moment)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        json.dump(measure(args.read), sys.stdout)
        return
    path = RESULTS / "log_readers.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results: dict[str, Any] = {k: v for k, v in old.items() if k == "chat, 2 GB"}
    kinds = [("chat, 0.2 GB", 200, RULES, args.rounds), ("long system prompt, 0.2 GB", 200, RULES * 118, args.rounds)]
    if args.big:
        kinds.append(("chat, 2 GB", 2000, RULES, 1))
    with tempfile.TemporaryDirectory() as folder:
        for name, megabytes, system, times in kinds:
            log = Path(folder) / "log.jsonl"
            records = write_log(log, megabytes * 10**6, system)
            results[name] = rounds(log, times)
            log.unlink()
            if results[name]["recordings"] != records or results[name]["dropped"]:
                raise SystemExit(f"{name}: {records} records were written, {results[name]['recordings']} read")
            print(name, {k: round(v, 2) for k, v in results[name].items()})
    results["about"] = {
        "python": platform.python_version(),
        "orjson": orjson.__version__,
        "machine": platform.machine(),
    }
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
