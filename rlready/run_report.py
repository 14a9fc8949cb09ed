"""What a run says at its end: tables, numbers, notes and pictures, as JSON, Markdown and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from rlready.progress import duration
from rlready.run_files import dump_json, write_atomic


@dataclass(frozen=True)
class Table:
    """A table of results. Cells are text or numbers; a share between 0 and 1 is text by then, see `percent`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int]]

    def to_rich(self, width: int | None = None) -> RichTable:
        """For a terminal of `width` characters: headings, then names, then cells are broken, and nothing is cut off."""
        table = RichTable(title=self.title, title_justify="left", title_style="bold", header_style="bold")
        rows = [[cell(value) for value in row] for row in self.rows]
        columns = [[row[i] for row in rows] for i in range(len(self.columns))]
        left = [
            i == 0 or (all(isinstance(row[i], str) for row in self.rows) and _longest(column) > 30)
            for i, column in enumerate(columns)
        ]
        for i, at in enumerate(_widths(self.columns, columns, left, width)):
            table.add_column(self.columns[i], justify="left" if left[i] else "right", width=at, overflow="fold")
        for row in rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """For `report.md`."""
        lines = [list(self.columns), ["---"] + ["---:"] * (len(self.columns) - 1)]
        lines += [[cell(value).replace("|", "\\|") for value in row] for row in self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _widths(
    names: Sequence[str], columns: Sequence[Sequence[str]], left: Sequence[bool], width: int | None
) -> list[int]:
    """Characters of each column: all it wants, or, where that is too much, what breaks least."""
    heading = [_longest(name.split()) for name in names]
    whole = [_longest(column) for column in columns]
    words = [_longest(word for text in column for word in text.split()) for column in columns]
    wanted = [max(len(name), w) for name, w in zip(names, whole, strict=True)]
    if width is None:
        return wanted
    floors = [
        [max(h, w) for h, w in zip(heading, whole, strict=True)],  # headings in several lines
        [max(h, min(24, w) if at else n) for h, w, n, at in zip(heading, words, whole, left, strict=True)],  # names
        [max(h, min(24, w)) for h, w in zip(heading, words, strict=True)],  # cells
        [3] * len(names),  # words
    ]
    room = width - 3 * len(names) - 1
    for floor in floors:
        while sum(wanted) > room and any(w > f for w, f in zip(wanted, floor, strict=True)):
            widest = max((w, i) for i, (w, f) in enumerate(zip(wanted, floor, strict=True)) if w > f)[1]
            wanted[widest] -= 1
    return wanted


@dataclass
class Report:
    """A run's report.

    Attributes:
        title: first line.
        tables: what it shows.
        metrics: numbers by name, which claims are judged by.
        notes: sentences.
        plots: names of the picture files.
        seed: the run's.
        seconds: wall-clock seconds, those before a resume included.
        spent: amounts by kind, such as real transitions.
    """

    title: str
    tables: list[Table] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)
    seed: int = 0
    seconds: float = 0.0
    spent: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        tables = [
            {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]} for t in self.tables
        ]
        return {
            "title": self.title, "tables": tables, "metrics": self.metrics, "notes": self.notes, "plots": self.plots,
            "seed": self.seed, "seconds": round(self.seconds, 1), "spent": self.spent,
        }  # fmt: skip

    def to_markdown(self) -> str:
        """As Markdown."""
        blocks = [f"# {self.title}", *(t.to_markdown() for t in self.tables), *self.notes, self.footer()]
        blocks += [f"![{Path(p).stem.replace('_', ' ')}]({p})" for p in self.plots]
        return "\n\n".join(blocks) + "\n"

    def footer(self) -> str:
        """One line: seed, time, and what was spent."""
        spent = [f"{n:,} {kind} transitions" for kind, n in self.spent.items()]
        return f"Seed {self.seed}; {'; '.join([duration(self.seconds), *spent])}."


def write_report(report: Report, folder: Path, metric: str | None) -> None:
    """Write a report into a run folder, with the plots of what `metrics.jsonl` holds.

    Args:
        report: what was drawn is added to its `plots`.
        folder: the run's.
        metric: what to draw; None takes the most telling one there is.
    """
    from rlready.plots import plot_run

    report.plots += plot_run(folder, metric)
    write_atomic(folder / "report.json", dump_json(report.to_json(), indent=1))
    write_atomic(folder / "report.md", report.to_markdown())


def cell(value: str | float | int) -> str:
    """A table cell's text."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def percent(value: float, spread: float | Mapping[str, float] | None = None) -> str:
    """A share as "41.2%", with its spread as "41.2% ±3.0"."""
    text = f"{100 * value:.1f}%"
    return text if spread is None or isinstance(spread, Mapping) else f"{text} ±{100 * spread:.1f}"
