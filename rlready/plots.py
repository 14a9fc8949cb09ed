"""Pictures of a run: success against steps, and against real transitions spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlready.run_files import read_jsonl

TELLING = ("eval/success", "dev/success", "test/success", "success", "eval/reward", "reward")
_SIZE, _DPI = (7.0, 4.2), 120


@dataclass
class Curve:
    """One line of a plot: x, y and its name."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


def choose_metric(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """The most telling metric that was logged often enough to draw (twice in one stage), or None."""
    seen = Counter((str(line.get("stage", "")), name) for line in lines for name in line)
    logged = {name for (_, name), n in seen.items() if n > 1}
    return next((name for name in TELLING if name in logged), None)


def curves(lines: Iterable[Mapping[str, Any]], metric: str, x: str) -> list[Curve]:
    """One curve per stage of `metric` against another key of the lines ("step", "real", "run_seconds").

    Real transitions and seconds are counted from the start of each stage, so that the stages of one run can be
    compared.
    """
    out: dict[str, Curve] = {}
    start: dict[str, float] = {}
    before = 0.0
    for line in lines:
        stage = str(line.get("stage", ""))
        if stage not in start:
            start[stage] = before
        value = line.get(metric)
        if value is not None:
            curve = out.setdefault(stage, Curve(stage or "run"))
            offset = start[stage] if x in ("real", "run_seconds") else 0.0
            curve.x.append(float(line[x]) - offset)
            curve.y.append(float(value))
        before = float(line.get(x, before))
    return list(out.values())


def draw(path: Path, lines: list[Curve], *, x: str, y: str, title: str = "") -> None:
    """Draw curves to a PNG file; a metric that is a success is shown as a percentage."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve in lines:
        axes.plot(
            curve.x, curve.y, label=curve.name, linewidth=1.6, marker="o" if len(curve.x) < 30 else "", markersize=3
        )
    axes.set(xlabel=x, ylabel=y.replace("/", " "), title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if y.endswith("success"):
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(lines) > 1:
        axes.legend(frameon=False)
    figure.savefig(path)


def plot_run(folder: Path, metric: str | None = None) -> list[str]:
    """Draw a run's two plots; returns the names of the files written (none where nothing telling was logged)."""
    lines = read_jsonl(folder / "metrics.jsonl")
    metric = metric or choose_metric(lines)
    if metric is None:
        return []
    name = metric.replace("/", "_")
    out = []
    for key, label in (("step", "step"), ("real", "real transitions")):
        found = [c for c in curves(lines, metric, key) if len(c.x) > 1]
        if not found or (key == "real" and not any(c.x[-1] > 0 for c in found)):
            continue
        file = f"{name}_by_{key}.png"
        draw(folder / file, found, x=label, y=metric, title=folder.name)
        out.append(file)
    return out
