"""`rlready runs`: list, show and export what was run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from rlready.cli.common import JsonOption, RootOption, out, print_json
from rlready.errors import UserError, did_you_mean

app = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)

_STATE_STYLE = {"done": "green", "running": "cyan", "interrupted": "yellow", "stopped": "yellow", "failed": "red"}
_COLUMNS = ("name", "what", "seed", "when (UTC)", "state", "last", "real steps", "time")
_BY_WORTH = ("name", "state", "last", "real steps", "time", "when (UTC)", "seed", "what")
NameArgument = Annotated[str, typer.Argument(help="The run's name or path.")]


@app.callback()
def runs(ctx: typer.Context, root: RootOption = "runs", as_json: JsonOption = False) -> None:
    """List the runs: what each is, its state, the last success or reward, what it spent.

    A run that was interrupted, stopped (its process was killed) or failed can be gone on with by `--resume NAME`.

    Try:

    - `rlready runs`
    - `rlready runs show dreamgym-small-1`
    - `rlready runs show dreamgym-small-1 --trajectory worst`
    - `rlready runs export dreamgym-small-1 --format atif`
    """
    if ctx.invoked_subcommand is not None:
        return
    from rlready.run_folder import read_header

    headers = []
    for place in sorted(Path(root).glob("*/run.json")):
        try:
            headers.append(read_header(place.parent) | {"name": place.parent.name})
        except UserError:  # the list goes on; `runs show` says what is wrong with this one
            headers.append({"name": place.parent.name, "state": "damaged"})
    headers.sort(key=lambda h: str(h.get("created", "")))
    rows = [_summary(h, Path(root)) for h in headers]
    if as_json:
        print_json(rows)
        return
    if not rows:
        out().print(f"No runs in {root}/ yet. Make one: rlready run dreamgym --preset smoke", markup=False)
        return
    console = out()
    console.print(_list(rows, console.width))


@app.command()
def show(
    name: NameArgument,
    trajectory: Annotated[
        str | None,
        typer.Option(help="Show one episode: worst, best, longest, shortest, last, or its number.", show_default=False),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(help="Only episodes judged right, wrong, no_answer or grader_failed.", show_default=False),
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage.", show_default=False)] = None,
    root: RootOption = "runs",
    as_json: JsonOption = False,
) -> None:
    """Show a run's stages, numbers and report, or one of its episodes.

    An episode is shown message by message, with the reward of every turn and the advantage it was trained with.

    Try:

    - `rlready runs show dreamgym-small-1`
    - `rlready runs show dreamgym-small-1 --trajectory worst`
    - `rlready runs show dreamgym-small-1 --trajectory longest --verdict wrong`
    """
    from rlready.run_read import load_run

    run = load_run(name, root)
    if trajectory is not None or verdict is not None:
        episodes = run.trajectories
        if verdict is not None:
            episodes = episodes.where(verdict=_known(verdict))
        if stage is not None:
            episodes = episodes.where(stage=stage)
        chosen = episodes.pick(trajectory or "worst")
        if as_json:
            where = {"step": chosen.step, "stage": chosen.stage, "group": chosen.group, "index": chosen.index}
            print_json(where | chosen.trajectory.to_json())
        else:
            chosen.show(out())
        return
    metrics = run.metrics if stage is None else run.metrics.stage(stage)
    if as_json:
        last = {s: {k: metrics.stage(s)[k][-1] for k in metrics.stage(s)} for s in metrics.stages}
        print_json({"run": run.header, "config": run.config, "last": last, "report": run.report})
        return
    _show(run, metrics)


@app.command()
def export(
    name: NameArgument,
    format: Annotated[str, typer.Option("--format", help="atif: Agent Trajectory Interchange Format 1.8.")] = "atif",
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder; by default `atif` in the run's.", show_default=False)
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="Only episodes with this verdict.", show_default=False)] = None,
    root: RootOption = "runs",
    as_json: JsonOption = False,
) -> None:
    """Write a run's episodes for other tools, one file each, token ids and log-probabilities included.

    Try:

    - `rlready runs export dreamgym-small-1 --format atif --out episodes`
    """
    if format != "atif":
        raise did_you_mean("format", format, ["atif"])
    from rlready.export import export_atif
    from rlready.run_files import disk_errors
    from rlready.run_read import load_run

    run = load_run(name, root)
    episodes = run.trajectories if verdict is None else run.trajectories.where(verdict=_known(verdict))
    if not len(episodes):
        raise UserError(f"Run {run.name} holds no {'such ' if verdict else ''}episodes.")
    folder = to or run.dir / "atif"
    with disk_errors(folder, "The run itself is as it was."):
        files = export_atif(episodes, folder, run=run.name)
    if as_json:
        print_json({"folder": str(folder), "files": [f.name for f in files]})
    else:
        out().print(f"{len(files)} episodes written to {folder}/.", markup=False)


def _known(verdict: str) -> str:
    from rlready.types import Verdict

    if verdict not in list(Verdict):
        raise did_you_mean("verdict", verdict, list(Verdict))
    return verdict


def _summary(header: dict[str, Any], root: Path) -> dict[str, Any]:
    from rlready.plots import TELLING
    from rlready.run_read import Metrics, load_run

    name = str(header["name"])
    try:
        metrics = load_run(root / name).metrics
    except UserError:  # the list goes on; `runs show` says what is wrong with this one
        metrics, header = Metrics([]), header | {"state": "damaged"}
    telling = next((k for k in TELLING if k in metrics), None)
    return {
        "name": name,
        "what": _what(header),
        "seed": header.get("seed"),
        "created": header.get("created"),
        "state": header.get("state"),
        "metric": telling,
        "value": float(metrics[telling][-1]) if telling else None,
        "spent": header.get("spent", {}),
        "seconds": header.get("seconds"),
    }


def _what(header: dict[str, Any]) -> str:
    if "recipe" in header:
        return f"{header['recipe']}, {header.get('preset', '')}"
    return str(header.get("tasks", ""))


def _list(rows: list[dict[str, Any]], width: int) -> Table:
    from rlready.progress import duration

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    texts: dict[str, list[Text]] = {name: [] for name in _COLUMNS}
    for row in rows:
        known = row["value"] is not None and not math.isnan(row["value"])
        value = f"{row['metric'].rpartition('/')[2]} {row['value']:.3g}" if known else ""
        real, seed = row["spent"].get("real"), row["seed"]
        shown = {
            "name": Text(row["name"], style="cyan"),
            "state": Text(str(row["state"]), style=_STATE_STYLE.get(str(row["state"]), "")),
            "last": Text(value),
            "time": Text(duration(row["seconds"] or 0)),
            "real steps": Text("" if real is None else f"{real:,}"),
            "when (UTC)": Text(str(row["created"] or "")[:16].replace("T", " ")),
            "what": Text(row["what"]),
            "seed": Text("" if seed is None else str(seed)),
        }
        for name, text in shown.items():
            texts[name].append(text)
    kept: list[str] = []
    left = width
    for name in _BY_WORTH:  # a narrow terminal shows fewer columns, whole
        wide = max(len(name), *(len(text) for text in texts[name])) + 2
        if not kept or wide <= left or (name == "what" and left >= 14):
            kept.append(name)
            left -= min(wide, left)
    for name in (n for n in _COLUMNS if n in kept):
        justify: Literal["left", "right"] = "right" if name in ("seed", "real steps", "time") else "left"
        table.add_column(name, justify=justify, no_wrap=name not in ("what", "name"), overflow="fold")
    for cells in zip(*(texts[n] for n in _COLUMNS if n in kept), strict=True):
        table.add_row(*cells)
    return table


def _show(run: Any, metrics: Any) -> None:
    from rlready.progress import duration

    console = out()
    header = run.header
    state = Text(str(header.get("state")), style=_STATE_STYLE.get(str(header.get("state")), ""))
    console.print(Text.assemble((run.name, "bold"), "  ", state))
    spent = ", ".join(f"{n:,} {kind} transitions" for kind, n in header.get("spent", {}).items())
    facts = [_what(header), f"seed {header['seed']}", str(header.get("created", ""))[:16].replace("T", " ") + " UTC"]
    facts += [duration(header.get("seconds") or 0), spent]
    console.print(", ".join(f for f in facts if f), markup=False, style="dim")
    if header.get("state") == "failed" and header.get("error"):
        console.print(header["error"], markup=False, style="red")
    for stage in metrics.stages:
        part = metrics.stage(stage)
        table = Table(
            title=stage or "metrics", title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0)
        )
        for column in ("", "first", "last", "least", "greatest"):
            table.add_column(column, justify="left" if not column else "right")
        first, last = math.inf, -math.inf
        for name in part:
            if name != "step":
                steps, values = part.at(name)
                first, last = min(first, steps[0]), max(last, steps[-1])
                cells = (values[0], values[-1], min(values), max(values))
                table.add_row(name, *(f"{v:.4g}" for v in cells))
        console.print()
        console.print(f"{stage or 'metrics'}: steps {first:g} to {last:g}", style="bold", markup=False)
        table.title = None
        console.print(table)
    if signs := header.get("signs"):
        console.print("\nSigns of trouble:", style="bold")
        for sign in signs:
            where = f"{sign['stage']}, " if sign["stage"] else ""
            console.print(f"{where}step {sign['step']}: {sign['said']}", markup=False, soft_wrap=True)
    if run.report:
        from rlready.run_report import Table as ReportTable

        for t in run.report["tables"]:
            console.print()
            console.print(ReportTable(t["title"], t["columns"], t["rows"]).to_rich(console.width))
        for note in run.report["notes"]:
            console.print(note, markup=False)
    console.print(f"\nFiles:      {run.dir}/", markup=False, soft_wrap=True)
    if (run.dir / "trajectories.jsonl").exists() and (run.dir / "trajectories.jsonl").stat().st_size:
        console.print(f"An episode: rlready runs show {run.name} --trajectory worst", markup=False, soft_wrap=True)
