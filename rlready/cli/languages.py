"""`rlready languages`: what programs may be written in, and whether a language's YAML does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlready.cli.common import Commands, JsonOption, complain, out, print_json

app = typer.Typer(cls=Commands, invoke_without_command=True)

_SHOWN = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[yellow]not run[/]"}


@app.callback(invoke_without_command=True)
def languages(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the languages that programs may be written in, and whether they run here.

    A language is a few lines of YAML; one of your own is named by its path wherever a language is asked for.

    Try:

    - `rlready languages`
    - `rlready languages check lua`
    - `rlready languages check my_language.yaml --programs my_programs.yaml`
    """
    if ctx.invoked_subcommand is not None:
        return
    from rlready.rewards.code.languages import languages as known

    rows: list[dict[str, Any]] = [
        {"language": each.name, "runs_here": each.runs_here, "missing": list(each.missing), "install": each.install,
         "remedy": each.remedy, "filename": each.filename, "execute": each.execute, "compile": each.compile,
         "file": each.source}
        for each in known().values()
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("language", "runs here", "compiled by", "run by", "to do"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["language"], _SHOWN[row["runs_here"]], row["compile"], row["execute"], row["remedy"])
    out().print(table)


@app.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A language's YAML file, or the name of a known one.")],
    programs: Annotated[
        Path | None,
        typer.Option(help="A YAML file of conformance programs, for another ending of files.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds of one test.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Run small programs in a language and see that each ends as it should.

    Among them are a loop, output, processes and memory without end; the sandbox must contain them. The exit code is 1
    where one came out otherwise or could not be run.

    Programs are known for the usual endings of files (.py, .lua, .ml, .f90, .R, .jl, .pl, .sh, .js, .c, ...). For
    another one, give a YAML file with the keys sum, wrong, error, timeout, output, processes and memory.
    """
    from rlready.rewards.code.conformance import check_language

    found = check_language(file, programs=programs, timeout_s=timeout)
    if as_json:
        print_json(found.to_json())
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", title=None)
        for column in ("check", "wanted", "got", "as wanted", "seconds", "what happened"):
            table.add_column(column, overflow="fold")
        for each in found.checks:
            row = (each.name, each.wanted, each.got, _SHOWN[each.ok], f"{each.seconds:.2f}")
            table.add_row(*row, each.reason)
        out().print(table)
    if not found.ok:
        bad = [each.name for each in found.checks if each.ok is False]
        undone = [each.name for each in found.checks if each.ok is None]
        if bad:
            complain(f"{found.language.source}: not as wanted: {', '.join(bad)}.")
        if undone:
            complain(f"{found.language.source}: not run: {', '.join(undone)}.")
        raise typer.Exit(1)
