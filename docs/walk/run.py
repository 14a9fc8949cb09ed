"""Runs docs/dream.md: every command as printed there, in an empty folder; records what it said and drew.

    python docs/walk/run.py                         # the walk
    python docs/walk/run.py --seeds 0 1 2           # and its training with further seeds
    python docs/walk/run.py --airline tau_airline_gpt4o.json

Results go to docs/walk/results/, pictures to docs/img/; `python docs/walk/page.py` writes them into the page, and a
test fails where page and results differ. The airline log is not ours: it comes from the public repository
sierra-research/tau-bench (historical_trajectories/gpt-4o-airline.json, MIT licence).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DESK = "rlready.worlds.fiction.desk"
REAL = f"--real {DESK}:Desk --tasks {DESK}:tasks --tasks {DESK}:test_tasks"
WALK = {
    "logs": "python -m rlready.worlds.fiction logs desk.jsonl --episodes 3600 --seed 0",
    "fit": "rlready dream fit desk.jsonl --out gym --seed 0",
    "report": f"rlready dream report gym {REAL} --real-budget 1000",
    "train": f"rlready dream train gym {REAL} --real-budget 20000 --seed 0",
}


def run(command: str, folder: Path) -> dict[str, Any]:
    """One command line in a folder; its output, standard error last, and its seconds.

    Raises:
        SystemExit: the command failed.
    """
    began = time.perf_counter()
    env = os.environ | {"COLUMNS": "100", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}
    line = command.replace("python -m", f"{sys.executable} -m", 1)
    done = subprocess.run(line, shell=True, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    seconds = round(time.perf_counter() - began, 1)
    return {"command": command, "out": done.stdout.rstrip(), "err": done.stderr.rstrip(), "seconds": seconds}


def about() -> dict[str, Any]:
    """Where and on what this was measured."""
    import torch

    import rlready

    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "rlready": rlready.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, no GPU, shared",
        "commit": commit.stdout.strip(),
    }


def walk(seeds: list[int]) -> dict[str, Any]:
    """The whole walk, its training once per seed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        steps = {name: run(WALK[name], folder) for name in ("logs", "fit", "report")}
        runs = []
        for seed in seeds:
            command = WALK["train"].replace("--seed 0", f"--seed {seed}")
            step = run(command, folder)
            if seed == seeds[0]:
                steps["train"] = step
            newest = max((folder / "runs").iterdir(), key=lambda p: p.stat().st_mtime)
            runs.append({"seed": seed, "seconds": step["seconds"], **read_run(newest)})
            if seed == seeds[0]:
                draw(newest, ROOT / "docs" / "img" / "dream-train.png")
        report = json.loads((folder / "gym" / "report.json").read_text(encoding="utf-8"))
        screenshot(folder / "gym" / "report.html", ROOT / "docs" / "img" / "dream-report.png")
        fitted = json.loads((folder / "gym" / "fit.json").read_text(encoding="utf-8"))
    return {"about": about(), "steps": steps, "runs": runs, "backends": fitted["backends"], "closed": report["closed"]}


def read_run(folder: Path) -> dict[str, Any]:
    """What a training run found."""
    record = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    out = {"metrics": record["metrics"], "notes": record["notes"]}
    header = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return out | {"spent": header.get("spent", {})}


def draw(folder: Path, path: Path) -> None:
    """Success over iterations: in the dream, and in reality where it was checked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from rlready.run_files import read_jsonl

    lines = [r for r in read_jsonl(folder / "metrics.jsonl") if r["stage"] == "dream RL"]
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axis = plt.subplots(figsize=(6.4, 3.4), dpi=130)
    for name, label, style in (
        ("success", "batch, dream", {"color": "0.7", "lw": 1}),
        ("real/success", "batch, real round", {"color": "tab:orange", "marker": "s", "ls": ""}),
        ("eval/agreement/dream", "check, dream", {"color": "tab:blue", "marker": "o"}),
        ("eval/agreement/real", "check, reality", {"color": "tab:orange", "marker": "o"}),
    ):
        points = [(r["step"], r[name]) for r in lines if r.get(name) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), label=label, **style)
    axis.set(xlabel="iteration of RL in the dream", ylabel="success, sampled at temperature 1", ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def screenshot(page: Path, path: Path) -> None:
    """A picture of a page, where a browser is at hand; an older picture stays otherwise."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.stderr.write("No browser here: the picture of the report is not renewed.\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1500"]
    subprocess.run([*command, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True, timeout=120)


def airline(log: Path) -> dict[str, Any]:
    """80 real conversations: what fit understands, and how backends compare on held-out tasks, three splits."""
    out: dict[str, Any] = {"about": about(), "splits": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for seed in range(3):
            step = run(f"rlready dream fit {log.resolve()} --out gym{seed} --seed {seed}", folder)
            step["command"] = step["command"].replace(str(log.resolve()), log.name)
            fitted = json.loads((folder / f"gym{seed}" / "fit.json").read_text(encoding="utf-8"))
            verdict = json.loads((folder / f"gym{seed}" / "verdict.json").read_text(encoding="utf-8"))
            seen = json.loads((folder / f"gym{seed}" / "understanding.json").read_text(encoding="utf-8"))
            out["splits"].append(
                {"seed": seed, "seconds": step["seconds"], "backends": fitted["backends"], "curve": fitted["curve"],
                 "verdict": verdict["verdict"], "splits": fitted["splits"]}
            )  # fmt: skip
            if seed == 0:
                out["step"], out["understanding"] = step, seen
    return out


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--airline", type=Path, help="the real log; only its part is run")
    args = parser.parse_args()
    name, found = ("airline", airline(args.airline)) if args.airline else ("walk", walk(args.seeds))
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Wrote {path}.")


if __name__ == "__main__":
    main()
