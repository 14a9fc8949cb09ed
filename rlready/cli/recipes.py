"""`rlready run`: a paper's recipe."""

from __future__ import annotations

import inspect
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlready.cli.common import (
    ConfigOption,
    JsonOption,
    QuietOption,
    ResumeOption,
    RootOption,
    ShowConfigOption,
    out,
    print_json,
    use_threads,
)
from rlready.errors import UserError
from rlready.recipes import registry

if TYPE_CHECKING:
    from rlready.run import Report, Run


def run(
    slug: Annotated[str, typer.Argument(help="The recipe: a paper's slug, number or arXiv id; see `rlready papers`.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, such as lr=1e-4; see --show-config.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="smoke (under a minute), small (minutes on 2 cores), full (the paper's own, on GPUs).")
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, one run each.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    config: ConfigOption = None,
    resume: ResumeOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --preset full: print models, memory and steps, start nothing.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write the recipe's results file, which `rlready claims` reads.")
    ] = False,
    show_config: ShowConfigOption = False,
    root: RootOption = "runs",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a paper's recipe and print what it shows.

    Every seed is a run of its own, in a folder below `runs/`. Ctrl-C once finishes the step and saves; `--resume`
    goes on.

    Try:

    - `rlready run dreamgym --preset smoke`
    - `rlready run dreamgym --seeds 3 --record`
    - `rlready run dreamgym --resume dreamgym-small-1`
    - `rlready run dreamgym --preset full --plan`
    """
    paper = registry.paper(slug)
    if resume is not None:
        header = _header(resume, root)
        preset = str(header.get("preset", preset))
        if header.get("recipe") != paper.slug:
            raise UserError(
                f"Run {resume} is not a run of {paper.slug}, but of {header.get('recipe', 'something else')}."
            )
    function = registry.preset(paper, preset)
    settings = _settings(paper, function, config, overrides or [], resume, root)
    given = {"config": settings} if "config" in inspect.signature(function).parameters else {}
    if show_config:
        from rlready.config import to_dict, to_toml

        print_json(to_dict(settings or {})) if as_json else typer.echo(to_toml(settings or {}), nl=False)
        return
    if plan:
        _plan(paper, preset, function, given, as_json)
        return
    from rlready.claims import source_commit
    from rlready.run import Run

    reports: list[tuple[Run, Report]] = []
    began = time.monotonic()
    for s in [seed] if resume is not None else range(seed, seed + seeds):
        with Run.create(
            f"{paper.slug}-{preset}", settings, s, root=root, resume=resume,
            progress="quiet" if quiet else "auto", recipe=paper.slug, preset=preset, commit=source_commit(),
        ) as opened:  # fmt: skip
            opened.say(f"{paper.name}, preset {preset}, seed {opened.seed}: {opened.dir}")
            use_threads(opened)
            report = function(opened, **given)
            reports.append((opened, report))
        if not as_json:
            _print(report, opened)
    result = _judge(paper, preset, reports, time.monotonic() - began, record)
    if as_json:
        runs = [{"run": str(r.dir), "seed": r.seed, "report": report.to_json()} for r, report in reports]
        print_json({"recipe": paper.slug, "preset": preset, "runs": runs, "claims": result["claims"]})
    elif result["claims"]:
        from rlready.cli.papers import claims_table

        out().print(claims_table(result["claims"]))
        if not record:
            out().print("Not recorded; --record writes the results file that rlready claims reads.", style="dim")


def _settings(
    paper: registry.Paper, function: Any, file: Path | None, overrides: list[str], resume: str | None, root: str
) -> Any:
    """The recipe's configuration: the preset's own, or the module's CONFIG, changed by what was given.

    On resume it starts from what the run was made with, so that giving nothing changes nothing.
    """
    from rlready.config import load, read_toml
    from rlready.run_folder import find_run

    parameter = inspect.signature(function).parameters.get("config")
    base = parameter.default if parameter is not None else None
    if base is None or base is inspect.Parameter.empty:
        base = getattr(registry.recipe(paper), "CONFIG", None)
    if base is None:
        if overrides or file:
            raise UserError(f"{paper.slug} has no settings to change.")
        return None
    kind, start = (base, None) if isinstance(base, type) else (type(base), base)
    stored = None if resume is None else read_toml(find_run(resume, root) / "config.toml").get("config", {})
    return load(kind, file, overrides, base=start, table=stored)


def _header(run: str, root: str) -> dict[str, Any]:
    from rlready.run_folder import find_run, read_header

    return read_header(find_run(run, root))


def _plan(paper: registry.Paper, preset: str, function: Any, given: dict[str, Any], as_json: bool) -> None:
    if "plan" not in inspect.signature(function).parameters:
        raise UserError(f"--plan goes with --preset full; preset {preset} of {paper.slug} starts at once.")
    from rlready.run import Run

    with (
        tempfile.TemporaryDirectory() as root,
        Run.create(paper.slug, given.get("config"), root=root, progress="quiet") as scratch,
    ):
        plan = function(scratch, plan=True, **given)
    if as_json:
        print_json(plan.to_json() if hasattr(plan, "to_json") else plan)
    elif hasattr(plan, "tables"):
        _print(plan, None)
    elif plan is not None:
        out().print(str(plan), markup=False)


def _print(report: Report, run: Run | None) -> None:
    console = out()
    console.print()
    console.print(report.title, style="bold", markup=False)
    for table in report.tables:
        console.print(table.to_rich(console.width))
    for note in report.notes:
        console.print(note, markup=False)
    if run is not None:
        console.print(report.footer(), markup=False, style="dim")
        console.print(
            f"Everything is in {run.dir}; look at it with: rlready runs show {run.name}", markup=False, style="dim"
        )


def _judge(
    paper: registry.Paper, preset: str, reports: list[tuple[Run, Report]], seconds: float, record: bool
) -> dict[str, Any]:
    from rlready.claims import write_results

    seeds = [{"seed": r.seed, **report.metrics} for r, report in reports]
    if preset == "smoke":  # its numbers mean nothing, so nothing is judged by them
        return {"claims": []}
    if not record:
        return {"claims": [claim.judge(seeds) for claim in paper.claims]}
    path = paper.folder / "results" / f"{preset}.json"
    return write_results(path, recipe=paper.slug, preset=preset, seeds=seeds, claims=paper.claims, duration_s=seconds)
