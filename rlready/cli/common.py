"""What all commands share: consoles, JSON output, and errors as one sentence."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from rlready.errors import UserError

if TYPE_CHECKING:
    from rlready.run import Run

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]
RootOption = Annotated[str, typer.Option("--root", help="The folder that holds the runs.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.", show_default=False)]
ResumeOption = Annotated[
    str | None, typer.Option("--resume", help="Go on with this run, by name or path.", show_default=False)
]
ShowConfigOption = Annotated[bool, typer.Option("--show-config", help="Print the settings as TOML, start nothing.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def out() -> Console:
    """The console for results (stdout); 100 columns where it is no terminal and COLUMNS says nothing."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return Console(highlight=False, width=width)


def print_json(value: Any) -> None:
    """JSON on stdout and nothing else."""
    from rlready.run_files import plain

    sys.stdout.write(json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n")


def complain(text: str) -> None:
    """A sentence on stderr, whatever characters it holds."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


class Commands(TyperGroup):
    """Turns a user's mistake into one sentence and exit code 2, Ctrl-C into exit code 130. Defects keep their trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            complain(f"{_path(ctx)}: {error}")
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            complain(
                f"{_path(ctx)}: the disk is full{f': {error.filename}' if error.filename else ''}. Free some space."
            )
            raise typer.Exit(2) from error
        except typer.BadParameter:
            raise
        except Exception as error:
            option = str(getattr(error, "option_name", None) or "").lstrip("-")
            if option and ctx.invoked_subcommand in ("train", "run") and hasattr(error, "message"):
                error.message += f". Settings are written without dashes: {option}=..."
            raise
        except KeyboardInterrupt as error:
            complain(f"{_path(ctx)}: {str(error) or 'interrupted.'}")
            raise typer.Exit(130) from error


def _path(ctx: Any) -> str:
    name = "rlready"
    return f"{name} {ctx.invoked_subcommand}" if ctx.invoked_subcommand else name


def use_threads(run: Run) -> None:
    """Choose the number of torch threads by a short measurement, and say so.

    A resumed run keeps the number it had: another one rounds differently, and resumed would not equal uninterrupted.
    """
    from rlready.policy.threads import choose_threads

    choice = choose_threads(run.noted("threads"))
    run.note(threads=choice.threads)
    run.say(str(choice))
