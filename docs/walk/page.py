"""Writes the measured parts of docs/dream.md from docs/walk/results/*.json: `python docs/walk/page.py`.

A test fails where the page says something else than the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "dream.md"
Result = dict[str, Any]


def read(name: str) -> Result:
    """A recorded result."""
    found: Result = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def step(r: Result, name: str) -> str:
    """A command and what it printed, progress left out."""
    done = r["steps"][name]
    return f"```\n$ {done['command']}\n{done['out']}\n```"


def seeds(r: Result) -> str:
    """The result of each training run."""
    ways = ("greedy", "sampled at 1")
    head = [
        "seed",
        *(f"{who}, {way}" for way in ways for who in ("cloning", "after RL")),
        "real transitions",
        "minutes",
    ]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for run in r["runs"]:
        m = run["metrics"]
        cells = [str(run["seed"])]
        for way in ways:
            cells += [f"{m[f'real/{who}, {way}']:.1%}" for who in ("filtered cloning", "after RL in the dream")]
        cells += [f"{run['spent']['real']:,}", f"{run['seconds'] / 60:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- seed {run['seed']}: {run['notes'][-1]}" for run in r["runs"])]
    return "\n".join(lines)


def backends(rows: list[Result]) -> list[str]:
    """The table of backends."""
    out = ["| backend | exact, kinds | exact, steps | F1, kinds | F1, steps | errors found | verdicts, AUROC |",
           "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for row in rows:
        name = f"{row['name']} with code" if row["with_code"] else row["name"]
        exact, f1 = row["exact"], row["f1"]
        cells = [f"{exact['macro']:.1%}", f"{exact['micro']:.1%}", f"{f1['macro']:.2f}", f"{f1['micro']:.2f}"]
        found, auc = row["errors"]["recall"], row["verdict"]["auroc"]
        cells += ["-" if found is None else f"{found:.0%}", "-" if auc is None else f"{auc:.2f}"]
        out.append(f"| {name} | {' | '.join(cells)} |")
    return out


def airline(r: Result) -> str:
    """Three splits of the real log."""
    lines = []
    for split in r["splits"]:
        lines += [f"Split {split['seed']} ({split['splits']['test']} tasks held out, {split['seconds']:.0f} s):", ""]
        lines += [*backends(split["backends"]), ""]
    return "\n".join(lines).rstrip()


def about(r: Result) -> str:
    """What was measured on what."""
    a = r["about"]
    where = f"{a['machine']}; torch {a['torch']}, Python {a['python']}"
    return f"Measured by `docs/walk/run.py` at commit {a['commit']} ({where})."


PARTS = {
    "logs": lambda: step(read("walk"), "logs"),
    "fit": lambda: step(read("walk"), "fit"),
    "report": lambda: step(read("walk"), "report"),
    "train": lambda: step(read("walk"), "train"),
    "seeds": lambda: seeds(read("walk")),
    "about": lambda: about(read("walk")),
    "airline-fit": lambda: f"```\n$ {read('airline')['step']['command']}\n{read('airline')['step']['out']}\n```",
    "airline": lambda: airline(read("airline")),
}


def fill(text: str) -> str:
    """The page with its measured parts made anew.

    Raises:
        ValueError: a mark of a part is missing.
    """
    for name, make in PARTS.items():
        body = make()
        pattern = re.compile(rf"<!-- {name}:begin -->\n.*?<!-- {name}:end -->", re.DOTALL)
        n = len(pattern.findall(text))
        if n != 1:
            raise ValueError(f"docs/dream.md needs the marks of {name} once, and has them {n} times")
        before, after = pattern.split(text)
        text = f"{before}<!-- {name}:begin -->\n{body}\n<!-- {name}:end -->{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
