"""`rlready papers` and `rlready claims`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlready.cli.common import JsonOption, out, print_json
from rlready.recipes import registry

_VERDICT_STYLE = {"holds": "bold green", "fails": "bold red", "not measured": "dim"}


def papers(
    query: Annotated[list[str] | None, typer.Argument(help="Words to search for.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the papers, or search them by words.

    A paper *runs* when its recipe can be started with `rlready run`; the others are planned.

    Try:

    - `rlready papers`
    - `rlready papers table image`
    - `rlready papers --json`
    """
    everything = registry.papers()
    words = " ".join(query or [])
    found = registry.search(words) if words else list(everything)
    if as_json:
        print_json([p.to_json() for p in found])
        return
    console = out()
    if not found:
        console.print(f'No paper matches "{words}". All {len(everything)}: rlready papers.', markup=False)
        return
    for p in found:
        status = Text(p.status, style="bold green" if p.status == "runs" else "dim")
        head = Text.assemble((f"{p.number:2}  {p.slug:22}", "bold cyan"), f"{p.year}  arXiv {p.arxiv}  ", status)
        console.print(head)
        for text, style in ((p.title, "italic"), (p.summary, "")):
            console.print(Padding(Text(text, style=style), (0, 0, 0, 4)))
    console.print()
    running = [p.slug for p in found if p.status == "runs"]
    console.print(f"{_count(len(found), 'paper')}, {len(running)} with a recipe that runs.")
    if running:
        console.print(f"Try: rlready run {running[0]} --preset smoke")


def claims(
    slug: Annotated[
        str | None, typer.Argument(help="One paper's slug, number or arXiv id.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each recipe claims, the paper's figure, ours, and whether it holds.

    The numbers come from `results/<preset>.json` in the recipe's folder, which only `rlready run --record` writes. A
    claim that does not hold is shown as failing.

    Try:

    - `rlready claims`
    - `rlready claims dreamgym --json`
    """
    chosen = [registry.paper(slug)] if slug else list(registry.papers())
    judged = [(p, _judged(p)) for p in chosen]
    if as_json:
        print_json([_as_json(p, rows) for p, rows in judged])
        return
    console = out()
    for p, rows in judged:
        if rows:
            _print_claims(p, rows)
    empty = [p.slug for p, rows in judged if not rows]
    if slug and empty:
        console.print(f"{slug} claims nothing yet ({chosen[0].status}).", markup=False)
    elif empty:
        console.print(
            f"{_count(len(empty), 'paper')} without claims yet: {', '.join(empty)}.", markup=False, style="dim"
        )


def _judged(p: registry.Paper) -> list[dict[str, Any]]:
    from rlready.claims import judged, read_results

    return judged(p.claims, read_results(p.folder))


def _as_json(p: registry.Paper, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"number": p.number, "slug": p.slug, "arxiv": p.arxiv, "status": p.status, "claims": list(rows)}


def _print_claims(p: registry.Paper, rows: Sequence[dict[str, Any]]) -> None:
    console = out()
    console.print(Text.assemble((p.name, "bold"), f", {p.title} (arXiv {p.arxiv})"))
    console.print(claims_table(rows))
    for row in rows:
        if row["note"]:
            console.print(f"{row['id']}: {row['note']}", markup=False, style="dim")
    for line in sorted({_measured(row) for row in rows if row["when"]}):
        console.print(line, markup=False, style="dim")
    console.print()


def _measured(row: dict[str, Any]) -> str:
    where = f"preset {row['preset']}, {_count(row['seeds'], 'seed')}, {row['machine']}"
    return f"Measured {row['when'][:10]}: {where}, commit {row['commit'] or 'unknown'}."


def claims_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Judged claims for a terminal."""
    table = Table(header_style="bold", show_lines=True, expand=True)
    table.add_column("claim", ratio=3)
    table.add_column("the paper", ratio=2)
    table.add_column("wanted", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        ours = "" if row["measured"] is None else f"{row['measured']:.3g}"
        if row["spread"] is not None:
            ours += f" ±{row['spread']:.2g}"
        verdict = Text(row["verdict"], style=_VERDICT_STYLE[row["verdict"]])
        table.add_row(
            row["statement"], row["paper"] or "gives no figure", f"{row['op']} {row['threshold']:g}", ours, verdict
        )
    return table


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
