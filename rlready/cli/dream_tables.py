"""What `rlready dream fit`, `show` and `report` print, at 100 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlready.progress import duration

if TYPE_CHECKING:
    from rlready.dream.measure.verdict import Verdict
    from rlready.dream.report import DreamReport
    from rlready.dreaming.fit import Fitted
    from rlready.dreaming.understand import Kind, Spread, Understanding

_MOST_KINDS = 12
_MOST_DROPPED = 3
_VERDICT = {"fit to train in": "bold green", "needs more": "bold yellow", "do not dream": "bold red"}


def print_understanding(
    console: Console,
    u: Understanding,
    dropped: Sequence[Mapping[str, Any]],
    folder: Path,
    hidden: Sequence[str] = (),
) -> None:
    """What was read, kinds of action, what was dropped, what is missing (but for lacks that were made up for)."""
    forms = ", ".join(f"{form} x {n}" if n > 1 else form for form, n in u.forms.items())
    console.print(Text.assemble((f"{u.runs:,} runs of {u.tasks:,} tasks", "bold"), f"   {forms}, {_size(u.bytes)}"))
    _rows(console, _facts(u))
    console.print()
    console.print(_kinds(u))
    if dropped:
        more = f" (the first {len(dropped):,} are listed)" if u.dropped > len(dropped) else ""
        console.print(f"\n{u.dropped:,} records were dropped; all in {folder / 'dropped.jsonl'}{more}:", markup=False)
        for record in dropped[:_MOST_DROPPED]:
            number = f" (record {record['number']})" if record.get("number") else ""
            console.print(
                f"  {record['file']} line {record['line']}{number}: {record['reason']}", markup=False, soft_wrap=True
            )
        if len(dropped) > _MOST_DROPPED:
            console.print(f"  and {u.dropped - _MOST_DROPPED:,} more", markup=False)
    lacks = [lack for lack in u.lacks if lack.name not in hidden]
    if lacks:
        console.print("\nWhat is missing, and why that hurts", style="bold")
        for lack in lacks:
            _item(console, lack.what, " ".join(p for p in (lack.hurts, lack.mend) if p))


def _facts(u: Understanding) -> list[tuple[str, str]]:
    n = u.lengths
    rows = [("success", f"{u.success_rate:.0%} of {u.judged:,} judged runs" if u.judged else "no run has a reward")]
    if u.success_rate is not None:
        rows[0] = ("success", f"{rows[0][1]}; {u.judged - u.successes:,} failed")
    rows.append(("actions", f"{u.steps:,}; a run has {_spread(n, '')}"))
    rows.append(("errors", f"{u.errors:,} replies are errors ({_share(u.errors, u.steps)})"))
    rows.append(("endings", f"{u.finished:,} of {u.runs:,} runs came to their own end"))
    if len(u.sources) > 1 or u.random:
        who = ", ".join(f"{name} {count:,}" for name, count in u.sources.items())
        rows.append(("who", f"{who}; random play {_share(u.random, u.runs)}"))
    models = [f"{name} {count:,}" for name, count in u.models.items() if name]
    if models:
        rows.append(("models", ", ".join(models[:5])))
    for name, r in (("calls", u.calls), ("words", u.words)):
        if r.places:
            said = f"{r.places:,} met again after the same history; {r.differing:,} of them answered differently"
            rows.append((f"same {name}", said))
    beside = [
        (u.duplicates, "exact duplicates (kept once)"),
        (u.parallel, "messages with several calls (read one after another)"),
        (u.thoughts, "messages with words beside a call (left out)"),
        (u.malformed, "malformed calls"),
        (u.unanswered, "calls without a result"),
    ]
    said = "; ".join(f"{count:,} {what}" for count, what in beside if count)
    if said:
        rows.append(("also", said))
    if u.tools:
        rows.append(("tools", f"{u.tools} with their schemas in the log, {u.tools - len(u.unused)} of them called"))
    elif u.called:
        rows.append(("tools", f"{u.called} called; their schemas are learned from the calls"))
    if u.step_seconds.n:
        rows.append(("times", f"a reply takes {_seconds(u.step_seconds)}" + _setup(u)))
    elif u.setup_seconds.n:
        rows.append(("times", _setup(u).removeprefix("; ")))
    return rows


def _setup(u: Understanding) -> str:
    return f"; a set-up takes {_seconds(u.setup_seconds)}" if u.setup_seconds.n else ""


def _kinds(u: Understanding) -> Table:
    table = _table("kind of action", "share", "count", "errors", "in runs")
    shown, rest = u.kinds[:_MOST_KINDS], u.kinds[_MOST_KINDS:]
    for kind in shown:
        table.add_row(*_kind(u, kind))
    if rest:
        count, errors = sum(k.count for k in rest), sum(k.errors for k in rest)
        table.add_row(
            f"{len(rest)} more kinds", _share(count, u.steps), f"{count:,}", _share(errors, count), "", style="dim"
        )
    return table


def _kind(u: Understanding, kind: Kind) -> tuple[str, ...]:
    share, errors = _share(kind.count, u.steps), _share(kind.errors, kind.count)
    return kind.name[:48], share, f"{kind.count:,}", errors, f"{kind.runs:,}"


# ---------------------------------------------------------------------- what was measured


def print_measured(console: Console, fitted: Fitted) -> None:
    """What was chosen, the curve, the backends beside the baselines, and the verdict."""
    facts = fitted.facts
    console.print()
    chosen = [
        ("held out", "{dev} of {all} tasks to calibrate, {test} to measure".format(**_sizes(facts["splits"]))),
        ("simulator", f"{facts['simulator']['name']}: {facts['simulator']['why']}"),
        ("verdicts by", f"{facts['reward_source']['name']}: {facts['reward_source']['why']}"),
        ("code answers", _rules(facts["rules"])),
    ]
    _rows(console, chosen)
    if facts["curve"] is not None:
        curve = facts["curve"]
        console.print(
            f"\nThe curve: next replies on {curve['steps']:,} held-out steps, by runs that were learned from",
            style="bold",
        )
        console.print(_curve(curve))
    if facts["backends"]:
        console.print("\nBackends beside the two baselines, on the same held-out steps", style="bold")
        console.print(_backends(facts["backends"], fitted.seconds["by_backend"]))
        console.print(_MEANS, style="dim")
    print_verdict(console, fitted.verdict)


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The verdict in words, its reasons and needs."""
    console.print()
    console.print(Text.assemble(("Verdict: ", "bold"), (f"{verdict.word}.", _VERDICT.get(verdict.word, "bold"))))
    for reason in verdict.reasons:
        _item(console, reason, "", emphasise=False)
    if verdict.needs:
        console.print("What it needs:", style="bold")
        for need in verdict.needs:
            _item(console, need, "", emphasise=False)


def _sizes(splits: Mapping[str, int]) -> dict[str, int]:
    return {**splits, "all": splits["train"] + splits["dev"] + splits["test"]}


_ANSWERS = {
    "entity": "documents that were read or written",
    "repeat": "the same question again",
    "refusal": "the same refusal again",
    "arithmetic": "arithmetic",
    "constant": "replies that are always the same",
    "shared": "what all tasks share",
    "effect": "what writing does to known documents",
    "unknown": "ids that do not exist",
}


def _rules(rules: Sequence[Mapping[str, Any]]) -> str:
    used = {r["rule"] for r in rules if r["used"]}
    return ", ".join(["wrong calls", "recorded episodes", *(text for rule, text in _ANSWERS.items() if rule in used)])


def _curve(curve: Mapping[str, Any]) -> Table:
    table = _table("traces", "exact", "token F1", "kinds seen", "actions seen", "errors seen")
    for p in curve["points"]:
        table.add_row(
            f"{p['traces']:,}", _both(p["exact"]), _both(p["f1"]), number(p["kinds"], ".0%"),
            number(p["actions"], ".0%"), number(p["errors"], ".0%"),
        )  # fmt: skip
    return table


def _backends(rows: Sequence[Mapping[str, Any]], seconds: Mapping[str, float | None]) -> Table:
    table = _table("backend", "exact", "token F1", "errors found", "verdicts", "unreadable", "a step")
    for row in rows:
        name = f"{row['name']} with code" if row["with_code"] else row["name"]
        takes = seconds.get(name)
        table.add_row(
            _BASELINES.get(name, name)[:32], _both(row["exact"]), _both(row["f1"]),
            number(row["errors"]["recall"], ".0%"), number(row["verdict"]["auroc"], ".2f"),
            number(row["unparsable"], ".0%"), "-" if takes is None else said(takes),
        )  # fmt: skip
    return table


_MEANS = "exact, token F1: mean over kinds of action / over steps; verdicts: AUROC, 0.5 is guessing"
_BASELINES = {"no_change": "no change", "nearest": "nearest recorded transition"}


def _both(mean: Mapping[str, float | None]) -> str:
    """A figure over kinds of action and over steps."""
    return f"{number(mean['macro'], '.2f')} / {number(mean['micro'], '.2f')}"


def print_next(console: Console, fitted: Fitted) -> None:
    """The commands that come next."""
    name = fitted.folder
    console.print(f"\nThe gym is in {name}/. Next:", markup=False)
    commands = {
        f"rlready dream report {name}": "measure it in full",
        f"rlready dream train {name}": "train an agent in it",
        f"rlready dream serve {name} --port 8000": "offer it to other tools",
    }
    wide = max(map(len, commands))
    for command, what in commands.items():
        console.print(Text.assemble(f"  {command:<{wide + 2}}", (what, "dim")), soft_wrap=True)


# ---------------------------------------------------------------------- the report


def print_report(console: Console, report: DreamReport, folder: Path) -> None:
    """The report in short, and where the whole is."""
    from rlready.dream.report import real_lines, row_name, world_lines

    console.print(Text.assemble((report.name, "bold"), f"   {report.simulator}, measured on {report.split}"))
    if report.gate is not None:
        console.print(Text(str(report.gate)), style="" if report.gate.passed else "red", soft_wrap=True)
    console.print("\nOpen loop: every backend on the same held-out steps", style="bold")
    console.print(
        _backends([r.to_json() for r in report.loops], {row_name(r): r.seconds_per_step for r in report.loops})
    )
    console.print(_MEANS, style="dim")
    for title, lines in (("One world, and its own", world_lines(report)), ("Reality", real_lines(report))):
        if lines:
            console.print(f"\n{title}", style="bold")
            _rows(console, lines)
    if report.closed is None:
        console.print("not checked in a real environment (--real)", style="yellow")
    if report.verdict is not None:
        print_verdict(console, report.verdict)
    console.print(f"\nThe whole report: {folder / 'report.html'}", markup=False, soft_wrap=True)


# ---------------------------------------------------------------------- pieces


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Names and what is said of them, in two columns."""
    wide = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines = textwrap.wrap(text, max(40, min(console.width, 100) - wide))
        console.print(Text.assemble((f"{name:<{wide}}", "dim"), ("\n" + " " * wide).join(lines)), soft_wrap=True)


def _item(console: Console, head: str, rest: str, *, emphasise: bool = True) -> None:
    lines = textwrap.wrap(f"{head} {rest}", max(40, min(console.width, 100) - 2))
    text = Text("- ")
    text.append("\n  ".join(lines))
    if emphasise and lines:
        text.stylize("bold", 2, 2 + min(len(head), len(lines[0])))
    console.print(text)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def number(value: float | None, form: str = ".3f") -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def _spread(s: Spread, unit: str) -> str:
    if not s.n or s.least is None or s.greatest is None:
        return "-"
    return f"{s.least:,.0f} to {s.greatest:,.0f}{unit}, half of them {s.quarter:,.0f} to {s.three_quarters:,.0f}{unit}"


def _seconds(s: Spread) -> str:
    if s.median is None or s.three_quarters is None:
        return "-"
    return f"{said(s.median)} (a quarter more than {said(s.three_quarters)})"


def said(seconds: float) -> str:
    """Seconds as people say them, short times in milliseconds."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _size(n: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
