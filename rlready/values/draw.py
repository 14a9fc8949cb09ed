"""One picture of an analysis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlready.values.analysis import Analysis


def draw(path: Path, analysis: Analysis, *, title: str = "") -> None:
    """Draw estimates against the truth, errors and advantages by position, ranking and gradient variance to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[Callable[[Any], None]] = []
    if analysis.prediction is not None:
        panels += [lambda axes: _scatter(axes, analysis), lambda axes: _errors(axes, analysis)]
    if analysis.ranking is not None:
        panels.append(lambda axes: _ranking(axes, analysis))
    if analysis.variances:
        panels.append(lambda axes: _variance(axes, analysis))
    if analysis.positions:
        panels.append(lambda axes: _advantages(axes, analysis))
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        panel(axes)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title)
    figure.savefig(path)


def _scatter(axes: Any, analysis: Analysis) -> None:
    found = analysis.prediction
    assert found is not None
    shown = [name for name in found.estimates if name == "critic"] + [n for n in found.estimates if n != "critic"][-1:]
    for name in shown:
        axes.plot(found.truth, found.estimates[name], "o", markersize=3.5, alpha=0.6, label=name)
    ends = [min(found.truth), max(found.truth)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xlabel=f"truth, {found.rollouts} rollouts", ylabel="estimate", title="Values of states")
    axes.legend(frameon=False, fontsize=8)


def _errors(axes: Any, analysis: Analysis) -> None:
    found = analysis.prediction
    assert found is not None
    for name, bins in found.by_position.items():
        x = [(a.low + a.high) / 2 for a in bins]
        axes.errorbar(
            x,
            [a.absolute for a in bins],
            [a.absolute_se for a in bins],
            fmt="o-",
            markersize=3.5,
            capsize=2,
            label=name,
        )
    axes.axhline(found.truth_se, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="position in the answer", ylabel="absolute error", title="Error by position")
    axes.legend(frameon=False, fontsize=8)


def _ranking(axes: Any, analysis: Analysis) -> None:
    found = analysis.ranking
    assert found is not None
    for shift, what, label in ((-0.2, "accuracy", "ties wrong"), (0.2, "decided", "ties left out")):
        x = [i + shift for i in range(len(found.orders))]
        y = [getattr(o, what) for o in found.orders.values()]
        error = [getattr(o, f"{what}_se") for o in found.orders.values()]
        axes.bar(x, y, 0.38, yerr=error, capsize=2, label=label)
    axes.axhline(0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(found.orders)), list(found.orders))
    axes.set(ylabel="pairs ordered as in the truth", title="Which next step is better?", ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)


def _variance(axes: Any, analysis: Analysis) -> None:
    names = list(analysis.variances)
    axes.bar(
        names,
        [analysis.variances[n].variance for n in names],
        0.6,
        yerr=[analysis.variances[n].variance_se for n in names],
        capsize=2,
    )
    axes.set(ylabel="variance / |mean|²", title="Gradient from batch to batch")


def _advantages(axes: Any, analysis: Analysis) -> None:
    for name, bins in analysis.positions.items():
        x = [(b.low + b.high) / 2 for b in bins]
        (line,) = axes.plot(x, [b.mean for b in bins], marker="o", markersize=3, label=name)
        low, high = ([b.mean + sign * b.std for b in bins] for sign in (-1, 1))
        axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    axes.set(xlabel="position in the answer", ylabel="advantage ± deviation", title="Advantages by position")
    axes.legend(frameon=False, fontsize=8)
