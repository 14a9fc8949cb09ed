"""`rlready record`: finished runs of a recipe become its results file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from rlready.cli.common import JsonOption, RootOption, out, print_json
from rlready.errors import UserError
from rlready.recipes import registry


def record(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Finished runs of one recipe, one per seed.")],
    root: RootOption = "runs",
    as_json: JsonOption = False,
) -> None:
    """Write a recipe's results file from finished runs, one per seed; their pictures are copied beside it.

    Seeds can run side by side in terminals of their own. The runs must be of one recipe, preset, configuration and
    commit. `rlready claims` reads what is written.

    Try:

    - `rlready run dreamgym --seed 0` and, in another terminal, `rlready run dreamgym --seed 1`
    - `rlready record dreamgym-small-1 dreamgym-small-2`
    """
    from rlready.claims import write_results
    from rlready.run_read import load_run

    runs = [load_run(name, root) for name in names]
    for run in runs:
        if run.header.get("state") != "done" or run.report is None:
            raise UserError(f"Run {run.name} is {run.header.get('state')}. Finish it first: --resume {run.name}.")
    for key in ("recipe", "preset", "commit"):
        found = {str(run.header.get(key)) for run in runs}
        if len(found) > 1:
            raise UserError(f"The runs have more than one {key}: {', '.join(sorted(found))}. Record them apart.")
    if any(run.config != runs[0].config for run in runs):
        raise UserError("The runs were made with different settings. Record runs of one configuration.")
    seeds = [run.header["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"The runs have seeds {', '.join(map(str, seeds))}. Record each seed once.")
    header = runs[0].header
    paper = registry.paper(str(header.get("recipe")))
    reports: list[dict[str, Any]] = [run.report for run in runs if run.report is not None]
    folder = paper.folder / "results"
    result = write_results(
        folder / f"{header['preset']}.json",
        recipe=paper.slug,
        preset=str(header["preset"]),
        seeds=[{"seed": s, **r["metrics"], "minutes": r["seconds"] / 60} for s, r in zip(seeds, reports, strict=True)],
        claims=paper.claims,
        duration_s=sum(r["seconds"] for r in reports),
        commit=str(header.get("commit", "")),
    )
    for plot in reports[0]["plots"]:
        shutil.copyfile(runs[0].dir / plot, folder / f"{header['preset']}-{Path(plot).name}")
    if as_json:
        print_json(result)
        return
    from rlready.cli.papers import claims_table

    out().print(claims_table(result["claims"]))
