"""Writes the generated parts of docs/algorithms.md, and its picture: `python docs/algorithms/page.py`.

The combinations, papers and line counts come from the classes (`rlready.algorithms.about`), the curves from
docs/algorithms/results/*.json, the signs from `rlready.signs_table`. A test fails where the page says something else.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlready.algorithms import ALGORITHMS
from rlready.algorithms.about import facts
from rlready.signs_table import Level, Thresholds, usual

HERE = Path(__file__).parent
PAGE = HERE.parent / "algorithms.md"
PICTURE = HERE.parent / "img" / "algorithms.png"
RIVAL = "reinforce"
"""What differences are taken against."""
POINTS = 8
BLOCKS = "▁▂▃▄▅▆▇█"
Result = dict[str, Any]


def results() -> dict[str, Result]:
    """What is recorded, by preset, in the order of `ALGORITHMS`."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (HERE / "results").glob("*.json")}
    return {name: found[name] for name in ALGORITHMS if name in found}


def curves(r: Result) -> list[list[float]]:
    """The reward by update, a line a seed."""
    return [r["seeds"][seed]["reward"] for seed in sorted(r["seeds"], key=int)]


def area(rewards: Sequence[float]) -> float:
    """Mean reward over all samples of a run."""
    return statistics.fmean(rewards)


def binned(rewards: Sequence[float], points: int = POINTS) -> list[float]:
    """Means over as many equal parts of a run, or its points where it has fewer."""
    n = min(points, len(rewards))
    return [statistics.fmean(rewards[i * len(rewards) // n : (i + 1) * len(rewards) // n]) for i in range(n)]


def spark(r: Result) -> str:
    """The mean curve of all seeds in blocks, from 0 to 1."""
    means = [statistics.fmean(each) for each in zip(*(binned(c) for c in curves(r)), strict=True)]
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(x * len(BLOCKS)))] for x in means)


def spread(values: Sequence[float]) -> str:
    """Mean and deviation between seeds, in percent."""
    deviation = f" ± {100 * statistics.stdev(values):.0f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.0f}{deviation}"


def against(r: Result, rival: Result) -> str:
    """Difference of the areas to the rival's, in points, paired by seed; bold beyond two standard errors."""
    shared = sorted(r["seeds"].keys() & rival["seeds"].keys(), key=int)
    gaps = [100 * (area(r["seeds"][s]["reward"]) - area(rival["seeds"][s]["reward"])) for s in shared]
    if len(gaps) < 2:
        return "-"
    mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    text = f"{mean:+.1f} ± {error:.1f}"
    return f"**{text}**" if abs(mean) > 2 * error else text


def papers(text: str) -> str:
    """Arxiv ids as links."""
    return re.sub(r"\b(\d{4}\.\d{5})\b", r"[\1](https://arxiv.org/abs/\1)", text)


def table() -> str:
    """One line an algorithm: what it combines, where from, how long, when to use it, how it learnt."""
    measured = results()
    head = ["", "credit", "ratio", "clip", "average", "KL", "paper", "lines", "when to use it", "learning curve",
            "reward, mean", f"against {RIVAL}", "after, greedy", "after, sampled"]  # fmt: skip
    rows = [head, ["---"] * 7 + ["---:", "---", "---"] + ["---:"] * 4]
    for name in ALGORITHMS:
        f = facts(name)
        row = [f"`{name}`", *(f[key].replace("|", "\\|") for key in ("credit", "ratio", "clip", "average", "kl"))]
        row += [papers(f["paper"]), str(f["lines"]), f["when"]]
        r = measured.get(name)
        if r is None:
            row += ["-"] * 5
        else:
            seeds = r["seeds"].values()
            beside = against(r, measured[RIVAL]) if name != RIVAL and RIVAL in measured else "-"
            row += [spark(r), spread([area(c) for c in curves(r)]), beside]
            row += [spread([seed["after"][way] for seed in seeds]) for way in ("greedy", "sampled")]
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def task() -> str:
    """What was measured, in words."""
    measured = results()
    if not measured:
        return "Nothing is measured yet."
    r = measured.get(RIVAL) or next(iter(measured.values()))
    s = r["setting"]
    seeds = sorted({len(each["seeds"]) for each in measured.values()})
    begun = statistics.fmean(c[0] for each in measured.values() for c in curves(each))
    missing = [f"`{name}`" for name in ALGORITHMS if name not in measured]
    many = f"{seeds[0]} seeds" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    sentences = [
        f"{len(measured)} presets, {many}, {s['steps']} updates of {s['prompts']} tasks x {s['group']} answers "
        f"({s['steps'] * s['prompts'] * s['group']:,} samples), learning rate {s['lr']:g}, AdamW {s['betas']}, "
        f"gradient clipped at {s['clip']:g}, one model of {s['start']['layers']} layers and width {s['start']['dim']}; "
        f"success is {100 * begun:.0f}% at first.",
    ]
    vine = measured.get("vineppo")
    if vine is not None:
        share = statistics.fmean(seed["tokens of probes"] / seed["tokens"] for seed in vine["seeds"].values())
        sentences.append(f"VinePPO's probes cost {share:.1f} times the tokens of its samples, which are not counted.")
    if missing:
        sentences.append(f"Not measured: {', '.join(missing)}.")
    return " ".join(sentences)


def ranking() -> str:
    """Which presets differ from the rival on this task, in words."""
    measured = results()
    if RIVAL not in measured:
        return f"`{RIVAL}` is not measured, so nothing is compared."
    better: list[str] = []
    worse: list[str] = []
    alike: list[str] = []
    for name, r in measured.items():
        text = against(r, measured[RIVAL]) if name != RIVAL else "-"
        if text != "-":
            (alike if not text.startswith("**") else better if text.startswith("**+") else worse).append(f"`{name}`")
    said = [
        f"{label}: {', '.join(names)}." for label, names in
        ((f"Better than `{RIVAL}` here, beyond two standard errors", better),
         ("Worse", worse), ("Not told apart", alike)) if names
    ]  # fmt: skip
    return " ".join(said) or "There are too few seeds to compare."


def level(at: Level, relative: bool) -> str:
    """A level's bounds in words."""
    unit = " x start" if relative else ""
    sides = [f"{sign} {bound:g}{unit}" for sign, bound in (("<", at.low), (">", at.high)) if bound is not None]
    return f"{at.name}: {' or '.join(sides)}, {at.patience} in a row" if at.patience > 1 else f"{at.name}: {sides[0]}"


def signs() -> str:
    """The table of signs with their default thresholds."""
    rows = [["sign", "reads", "begins", "mend"], ["---"] * 4]
    for sign in usual(Thresholds()):
        reads = f"`{sign.reads}`" if isinstance(sign.reads, str) else sign.of
        begins = "; ".join(level(each, sign.relative) for each in sign.levels)
        rows.append([f"`{sign.name}`", reads, begins.replace("|", "\\|"), sign.mend])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PARTS: dict[str, Callable[[], str]] = {"table": table, "task": task, "ranking": ranking, "signs": signs}


def fill(text: str) -> str:
    """The page with its generated parts made anew.

    Raises:
        ValueError: a mark of a part is missing.
    """
    for name, make in PARTS.items():
        pattern = re.compile(rf"<!-- {name}:begin -->\n.*?<!-- {name}:end -->", re.DOTALL)
        if (n := len(pattern.findall(text))) != 1:
            raise ValueError(f"docs/algorithms.md needs the marks of {name} once, and has them {n} times")
        before, after = pattern.split(text)
        text = f"{before}<!-- {name}:begin -->\n{make()}\n<!-- {name}:end -->{after}"
    return text


def draw(path: Path) -> None:
    """A panel a preset: mean reward over seeds with its range, by samples; the rival's mean behind it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    measured = results()
    columns = 6
    lines = max(1, math.ceil(len(measured) / columns))
    figure, axes = plt.subplots(
        lines, columns, figsize=(11, 1.7 * lines + 0.4), sharex=True, sharey=True, squeeze=False
    )

    def line(r: Result) -> tuple[list[float], list[list[float]]]:
        each = next(iter(r["seeds"].values()))["samples an update"]
        smooth = [binned(c, 20) for c in curves(r)]
        total = each * len(curves(r)[0])
        return [total * (i + 0.5) / len(smooth[0]) for i in range(len(smooth[0]))], smooth

    for axis, (name, r) in zip(axes.flat, measured.items(), strict=False):
        if RIVAL in measured and name != RIVAL:
            at, smooth = line(measured[RIVAL])
            axis.plot(at, [statistics.fmean(v) for v in zip(*smooth, strict=True)], color="#b0b0b0", linewidth=1)
        at, smooth = line(r)
        values = list(zip(*smooth, strict=True))
        axis.fill_between(
            at, [min(v) for v in values], [max(v) for v in values], color="#1b6ca8", alpha=0.2, linewidth=0
        )
        axis.plot(at, [statistics.fmean(v) for v in values], color="#1b6ca8", linewidth=1.4)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(measured) :]:
        axis.axis("off")
    figure.supxlabel("samples", fontsize=8)
    figure.supylabel("success on new tasks", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
