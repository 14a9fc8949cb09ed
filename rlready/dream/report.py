"""The report on a dream: everything that was measured, as `report.json`, `report.md` and `report.html`.

`measure.whole.measure_gym` fills it; `report_html` draws it. What was not measured is None, and is said to be missing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlready.dream.fidelity import ModelErrorReport
from rlready.dream.gate import GateReport
from rlready.dream.measure.closed_loop import ClosedLoop, Sameness
from rlready.dream.measure.curve import Curve
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.open_loop import OpenLoop
from rlready.dream.measure.quality import Quality
from rlready.dream.measure.verdict import Economics, Verdict
from rlready.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class DreamReport:
    """What was measured of a dream.

    Attributes:
        name: of the gym.
        simulator: its simulator's name.
        fingerprint: of parser, template and flags.
        split: whose episodes were measured on.
        loops: open loop, a row each: every simulator with code, each alone, the baselines.
        verdict, gate, curve, sameness, quality, errors, economics: see their classes.
        closed: dreams replayed in the real environment; None where there was none.
        rules: what the typed state knows, as `StateRules.describe` says it.
        about: what else belongs to it (counts of episodes, versions, settings), JSON-ready.
    """

    name: str
    simulator: str
    fingerprint: str
    split: str
    loops: tuple[OpenLoop, ...]
    verdict: Verdict | None = None
    gate: GateReport | None = None
    curve: Curve | None = None
    sameness: Sameness | None = None
    quality: Quality | None = None
    errors: ModelErrorReport | None = None
    economics: Economics | None = None
    closed: ClosedLoop | None = None
    rules: tuple[dict[str, Any], ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; NaN becomes null."""
        record: dict[str, Any] = to_json(self)
        if self.gate is not None:
            record["gate"] = self.gate.to_json()
        return {"format": FORMAT, **record}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> DreamReport:
        """Inverse of `to_json`."""
        return from_json(cls, record)

    def save(self, folder: Path) -> list[Path]:
        """Write `report.json`, `report.md` and `report.html`, each as a whole; returns the paths."""
        from rlready.dream.report_html import to_html

        folder.mkdir(parents=True, exist_ok=True)
        body = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        texts = {"report.json": body, "report.md": to_markdown(self), "report.html": to_html(self)}
        out = []
        for name, text in texts.items():
            path = folder / name
            part = folder / f".{name}.{os.getpid()}.tmp"
            try:
                part.write_bytes(text.encode("utf-8", "replace"))
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
            out.append(path)
        return out

    @classmethod
    def load(cls, folder: Path) -> DreamReport:
        """Read a folder's `report.json`.

        Raises:
            UserError: there is none, or it is of another format.
        """
        path = folder / "report.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"There is no report in {folder}. Make one: rlready dream report {folder}.") from error
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}). Measure again: rlready dream report {folder}.") from error
        if record.get("format") != FORMAT:
            raise UserError(f"{path} has format {record.get('format')}; this rlready reads {FORMAT}. Measure again.")
        return cls.from_json(record)


# ---------------------------------------------------------------------- words and numbers that both forms share


def number(value: float | None, digits: int = 2) -> str:
    """A figure for people; a dash where it could not be computed."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share for people; a dash where it could not be computed."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}%"


def row_name(loop: OpenLoop) -> str:
    """How a row of the open loop is called."""
    return f"{loop.name} with code" if loop.with_code else loop.name


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads and rows; the first column is text, the others are figures."""


def backends(report: DreamReport) -> Table:
    """Open loop, every backend a row."""
    heads = (
        "backend",
        "exact, kinds",
        "exact, steps",
        "F1, kinds",
        "F1, steps",
        "errors found",
        "errors right",
        "ends",
        "verdict Brier",
        "confidence AUROC",
        "unreadable",
    )
    return heads, [
        (
            row_name(r),
            percent(r.exact.macro),
            percent(r.exact.micro),
            number(r.f1.macro),
            number(r.f1.micro),
            percent(r.errors.recall),
            percent(r.errors.precision),
            percent(r.done.accuracy),
            number(r.verdict.brier, 3),
            number(r.confidence.stated.auroc),
            percent(r.unparsable),
        )
        for r in report.loops
    ]


def fields(report: DreamReport) -> Table:
    """Accuracy of documents by the number of fields that changed, every backend two rows."""
    buckets = [b for b in ("new", "0", "1", "2", "3+") if any(b in r.fields for r in report.loops)]
    names = {"new": "first seen", "0": "none changed", "1": "1 changed", "2": "2 changed", "3+": "3 or more"}
    rows = []
    for r in report.loops:
        cells = [r.fields.get(b) for b in buckets]
        rows.append((row_name(r), *(percent(c.fields if c else None) for c in cells)))
        rows.append((f"{row_name(r)}, changed fields only", *(percent(c.moved if c else None) for c in cells)))
    return ("backend", *(names[b] for b in buckets)), rows


def kinds(report: DreamReport) -> Table:
    """The first row's accuracy by kind of action, beside the recorded count."""
    recorded = report.curve.recorded if report.curve is not None else {}
    if not report.loops:
        return ("action",), []
    return ("action", "steps", "recorded", "exact", "F1", "recorded errors"), [
        (kind, str(k.steps), str(recorded.get(kind, "-")), percent(k.exact), number(k.f1), percent(k.failed))
        for kind, k in report.loops[0].by_kind.items()
    ]


def points(report: DreamReport) -> Table:
    """The curve as a table."""
    heads = ("recordings", "exact, steps", "F1, kinds", "F1, steps", "kinds seen", "actions seen", "errors seen")
    if report.curve is None:
        return heads, []
    return heads, [
        (
            str(p.traces),
            percent(p.exact.micro),
            number(p.f1.macro),
            f"{number(p.f1.micro)}{f' ± {p.f1_spread:.2f}' if p.orders > 1 else ''}",
            percent(p.kinds),
            percent(p.actions),
            percent(p.errors),
        )
        for p in report.curve.points
    ]


def world_lines(report: DreamReport) -> list[tuple[str, str]]:
    """Same actions, contradictions, inventions, pair test: (what, figure)."""
    out: list[tuple[str, str]] = []
    same, quality = report.sameness, report.quality
    if same is not None:
        out += [
            (
                "Same actions, same replies",
                f"{same.different} of {same.scripts} scripts differ over {same.replays} replays; "
                f"reward variance {same.reward_variance:g} (0 is wanted)",
            ),
            (
                "Same world in fresh sessions",
                f"{same.other_worlds} of {same.scripts} scripts differ in {same.sessions} sessions"
                if same.sessions
                else "not compared",
            ),
        ]
    if quality is not None:
        c, rc, i, ri, pair = (
            quality.contradictions,
            quality.recorded_contradictions,
            quality.inventions,
            quality.recorded_inventions,
            quality.pair_test,
        )
        out += [
            ("Contradictions an episode", f"{number(c.per_episode)} (in recordings {number(rc.per_episode)})"),
            (
                "Identifiers and numbers that stand nowhere",
                f"{percent(i.share)} of {i.facts} (in held-out recordings {percent(ri.share)})",
            ),
            ("Length of replies, dream over recorded", number(quality.length_ratio)),
            (
                "Real or dream? (0.5 cannot be told)",
                f"AUC {number(pair.auc)} ± {number(pair.noise)} over {pair.pairs} pairs",
            ),
        ]
    return out


def real_lines(report: DreamReport) -> list[tuple[str, str]]:
    """The closed loop and the bound: (what, figure)."""
    out: list[tuple[str, str]] = []
    closed, errors = report.closed, report.errors
    if closed is not None:
        out += [
            (
                "Dreams replayed in the real environment",
                f"{closed.episodes} for {closed.real_transitions} real transitions"
                + (f", {closed.skipped} left out for want of budget" if closed.skipped else "")
                + (f", {closed.void} void" if closed.void else ""),
            ),
            ("Same outcome", percent(closed.outcome)),
            ("Succeeded in the dream only (flattery)", percent(closed.flattered)),
            ("Succeeded in reality only", percent(closed.missed)),
            ("Success in the dream minus in reality", f"{100 * closed.optimism:+.1f} points"),
            ("Same replies", f"{percent(closed.replies)}, F1 {number(closed.f1)}"),
            ("Steps before the first wrong reply", f"{number(closed.first_wrong, 1)}; {percent(closed.clean)} without"),
            ("Rank correlation over tasks", number(closed.task_rank)),
            ("Rank correlation over agents", number(closed.actor_rank)),
            ("Pairs of agents in the right order", percent(closed.order)),
        ]
    if errors is not None:
        loss = 2 * errors.error()
        out += [
            ("epsilon_R, mean and largest", f"{number(errors.reward_mean, 3)}, {number(errors.reward_max, 3)}"),
            ("epsilon_P, mean and largest", f"{number(errors.reply_mean, 3)}, {number(errors.reply_max, 3)}"),
            (
                f"The bound, discount {errors.gamma:g}",
                f"real improvement >= gain in the dream / {1 - errors.gamma:.2g} - penalty - {loss:.3g}",
            ),
        ]
    return out


# ---------------------------------------------------------------------- Markdown


def to_markdown(report: DreamReport) -> str:
    """The report in short."""
    parts = [f"# The dream {_plain(report.name)}", ""]
    said = f"Simulator {report.simulator}; parser and template {report.fingerprint}; measured on {report.split}."
    parts += [_plain(said), ""]
    if report.verdict is not None:
        parts += [f"**Verdict: {report.verdict.word}.**", ""]
        parts += [f"- {_plain(r)}" for r in report.verdict.reasons]
        if report.verdict.needs:
            parts += ["", "It needs:", "", *(f"- {_plain(n)}" for n in report.verdict.needs)]
        parts.append("")
    parts += ["## Gate", ""]
    if report.gate is None:
        parts += ["Not run.", ""]
    else:
        for check in report.gate.checks:
            parts.append(f"- {check.name}: {'passed' if check.passed else 'FAILED'}")
            parts += [f"  - {_plain(f)}" for f in check.failures]
            parts += [f"  - mend: {check.mend}"] if not check.passed else []
            parts += [f"  - note: {n}" for n in check.notes]
        parts.append("")
    for title, table in (
        ("Open loop: recorded histories, one step at a time", backends(report)),
        ("Documents, by fields that changed", fields(report)),
        ("By kind of action", kinds(report)),
        ("Over the number of recordings", points(report)),
    ):
        if table[1]:
            parts += [f"## {title}", "", *_table(*table), ""]
    lines = world_lines(report)
    if lines:
        parts += ["## One world, and its own", "", *(f"- {a}: {_plain(b)}" for a, b in lines), ""]
    parts += ["## Reality", ""]
    if report.closed is None:
        parts += ["Not checked in a real environment.", ""]
    parts += [f"- {a}: {b}" for a, b in real_lines(report)]
    return "\n".join(parts).rstrip() + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|"
    return (
        [f"| {' | '.join(map(_cell, r))} |" for r in [heads]]
        + [line]
        + [f"| {' | '.join(map(_cell, r))} |" for r in rows]
    )


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line, with nothing that Markdown would take for a tag."""
    return " ".join(text.split()).replace("<", "&lt;")
