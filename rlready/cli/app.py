"""The commands, put together."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rlready import __version__
from rlready.cli import (
    algorithms,
    doctor,
    dream,
    grade,
    languages,
    papers,
    recipes,
    record,
    rewrite,
    runs,
    train,
    values,
)
from rlready.cli.common import Commands

app = typer.Typer(
    name="rlready",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"rlready {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make tasks, rewards, environments and models ready for RL, train on them, and prove what is claimed.

    Start here:

    - `rlready papers`: what there is, `rlready papers memory`: what there is about memory
    - `rlready run dreamgym --preset smoke`: see a whole recipe run in under a minute
    - `rlready train my_task.py:tasks`: train a model on a task of your own
    - `rlready dream fit logs/`: turn an agent's logs into a gym
    """


_FIRST, _OWN, _LOOK = "Reproduce a paper", "Train on your own task", "See what happened"
_LOGS = "Turn logs into a gym"
app.command("papers", rich_help_panel=_FIRST)(papers.papers)
app.command("run", rich_help_panel=_FIRST)(recipes.run)
app.command("record", rich_help_panel=_FIRST)(record.record)
app.command("claims", rich_help_panel=_FIRST)(papers.claims)
app.command("doctor", rich_help_panel=_OWN)(doctor.doctor)
app.command("grade", rich_help_panel=_OWN)(grade.grade)
app.command("train", rich_help_panel=_OWN)(train.train)
app.command("eval", rich_help_panel=_OWN)(train.evaluate)
app.command("algorithms", rich_help_panel=_OWN)(algorithms.algorithms)
app.command("rewrite", rich_help_panel=_OWN)(rewrite.rewrite)
app.add_typer(languages.app, name="languages", rich_help_panel=_OWN)
app.add_typer(dream.app, name="dream", rich_help_panel=_LOGS)
app.add_typer(runs.app, name="runs", rich_help_panel=_LOOK)
app.command("values", rich_help_panel=_LOOK)(values.values)


def main() -> None:
    """Entry point. Leaves without waiting for threads after Ctrl-C, since what matters is saved by then."""
    try:
        app()
    except SystemExit as end:
        if end.code == 130:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise
