"""`rlready doctor`."""

from __future__ import annotations

import importlib.util
import inspect
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rlready.cli.common import ConfigOption, JsonOption, out, print_json
from rlready.errors import UserError

if TYPE_CHECKING:
    from rlready.doctor import Setup
    from rlready.doctor.show import Piece
    from rlready.findings import Finding, Findings

_PATIENCE = 5.0  # seconds of silence before it says what it does
_STYLE = {"error": "bold red", "warning": "bold yellow", "note": "dim"}


def doctor(
    setup: Annotated[
        str,
        typer.Argument(
            metavar="SETUP", help="my_task.py:tasks, my_setup.py:setup, a recipe, or a file of trajectories (.jsonl)."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as those of rlready train.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="See `rlready algorithms`; grpo if not given.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="As for rlready train.")] = "tiny",
    env: Annotated[
        str | None, typer.Option("--env", help="An environment, such as my_env.py:Thermostat.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Look for silent wrong training before the first step.

    A small first batch is rolled out and the first update is recorded, but no step is taken. Each finding says what,
    where, why it matters and what to do. The exit code is 1 where something must be mended; warnings alone, which
    deserve a look, leave it 0.

    Try:

    - `rlready doctor my_task.py:tasks`
    - `rlready doctor my_task.py:tasks --env my_env.py:Thermostat --algorithm ppo temperature=0.7`
    - `rlready doctor my_setup.py:setup`, where setup is an `rl.Setup` or a function that makes one
    - `rlready doctor dreamgym`
    - `rlready doctor rollouts.jsonl`, trajectories of rlready, ATIF, or another trainer's dump
    """
    if Path(setup).suffix in (".jsonl", ".json"):
        from rlready.doctor.foreign import audit_file

        findings, understood = audit_file(Path(setup))
        _report(findings, as_json, {"setup": setup, "understood": understood}, None)
        return
    from rlready.doctor.audit import examine
    from rlready.doctor.show import mask_of

    with tempfile.TemporaryDirectory() as folder, _Progress() as say:
        made = _setup(setup, overrides or [], algorithm, model, env, config, seed, Path(folder))
        findings, evidence = examine(made, on_progress=say)
        shown = mask_of(evidence)
    _report(findings, as_json, {"setup": setup}, shown)


def _setup(
    target: str,
    overrides: list[str],
    algorithm: str | None,
    model: str,
    env: str | None,
    config: Path | None,
    seed: int,
    folder: Path,
) -> Setup:
    """What the command line names.

    Raises:
        UserError: it names nothing that could be trained.
    """
    from rlready.cli import build
    from rlready.doctor import Setup
    from rlready.recipes.registry import paper, papers

    slug = re.fullmatch(r"[\w-]+|\d{4}\.\d{5}", target) is not None
    if target in {p.slug for p in papers()} or (slug and ("." in target or importlib.util.find_spec(target) is None)):
        return _recipe(paper(target).slug, seed, folder)
    found = _object(target)
    if callable(found) and not isinstance(found, type):
        with build.blamed(target.partition(":")[0]):
            try:
                inspect.signature(found).bind()
            except TypeError as error:
                raise UserError(f"{target} cannot be called without arguments ({error}), as a set-up is.") from error
            found = found()
        if inspect.iscoroutine(found):
            found.close()
            raise UserError(f"{target} is async; a set-up is made by a plain function.")
    if isinstance(found, Setup):
        if overrides or algorithm or env or config:
            raise UserError(f"{target} is a whole set-up: change its fields there, not on the command line.")
        return found

    from rlready.policy.base import SamplingParams

    build.check_model(model)
    name = (algorithm or "grpo").lower()
    build.check_algorithm(name)
    settings = build.settings_of(name, config, overrides)
    subject = build.subject(target, env)
    policy = build.policy_of(subject, settings, seed, folder)
    return Setup(
        policy,
        subject.splits["train"],
        subject.env,
        build.algorithm_of(settings, name),
        SamplingParams(
            temperature=settings.temperature, max_tokens=settings.max_tokens, stop_ids=policy.renderer.stop_ids
        ),
        group_size=settings.group_size,
        groups=min(4, settings.groups),
        max_steps=settings.max_steps,
        deadline=min(30.0, settings.deadline),
        seed=seed,
        splits={k: v for k, v in subject.splits.items() if k != "train"} if subject.cut else {},
        name=target,
    )


def _object(target: str) -> Any:
    """`file.py:name`; without a name, the file's `setup`, else its `tasks`."""
    from rlready.cli import build

    if ":" in target or Path(target).suffix != ".py" or not Path(target).is_file():
        return build.load_object(target, default="tasks")
    module = build.load_object(f"{target}:__dict__", default="")
    return module["setup"] if "setup" in module else build.load_object(target, default="tasks")


def _recipe(slug: str, seed: int, folder: Path) -> Setup:
    """A recipe's own set-up, in a run folder that is thrown away.

    Raises:
        UserError: the recipe has none.
    """
    from rlready.recipes.registry import paper, recipe
    from rlready.run import Run

    module = recipe(paper(slug))
    if not hasattr(module, "setup"):
        raise UserError(f"The recipe {slug} offers no set-up to examine: its recipe.py needs setup(run) -> Setup.")
    with Run.create(slug, seed=seed, root=folder, progress="quiet") as run:
        made: Setup = module.setup(run)
    return made


class _Progress:
    """Says on stderr what is being done, once it has taken longer than a moment."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.doing = "reading the set-up"
        self.console = Console(stderr=True, highlight=False)
        self.timer = threading.Timer(_PATIENCE, self.say)
        self.timer.daemon = True

    def __enter__(self) -> _Progress:
        self.timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def __call__(self, what: str) -> None:
        self.doing = what
        if time.monotonic() - self.began > _PATIENCE:
            self.say()

    def say(self) -> None:
        """What is being done, and since when all this began."""
        self.console.print(f"{time.monotonic() - self.began:4.0f} s: {self.doing} ...", style="dim")


def _report(
    findings: Findings, as_json: bool, about: dict[str, Any], shown: tuple[int, list[list[Piece]]] | None
) -> None:
    if as_json:
        mask = None
        if shown is not None:
            mask = {"trajectory": shown[0], "rows": [[p.to_json() for p in row] for row in shown[1]]}
        print_json(about | {"ok": findings.ok, "findings": findings.to_json()["findings"], "mask": mask})
    else:
        _print(findings, about, shown)
    if not findings.ok:
        raise typer.Exit(1)


def _print(findings: Findings, about: dict[str, Any], shown: tuple[int, list[list[Piece]]] | None) -> None:
    console = out()
    for key, value in about.get("understood", {}).items():
        console.print(f"{key}: {value}", markup=False, soft_wrap=True)
    for finding in findings:
        if finding.level != "note":
            _print_finding(console, finding)
    if shown is not None:
        _print_mask(console, shown)
    notes = [f for f in findings if f.level == "note"]
    if notes:
        console.print("Measured", style="bold")
        for note in notes:
            console.print(f"  {note.text}", markup=False)
    errors, warnings = len(findings.errors), len(findings.warnings)
    look = f" {warnings} warning{'s' * (warnings != 1)} deserve{'s' * (warnings == 1)} a look." if warnings else ""
    if errors:
        console.print(f"{errors} fault{'s' * (errors != 1)} to mend before training.{look}", style="bold red")
    else:
        console.print(f"Ready to train.{look}", style="bold green")


def _print_finding(console: Console, finding: Finding) -> None:
    console.print(Text.assemble((f"{finding.level}: ", _STYLE[finding.level]), (finding.check, "bold")))
    lines = [("what", finding.text), ("where", str(finding.where or "")), ("why", finding.why), ("mend", finding.mend)]
    for name, text in lines:
        if text:
            console.print(Text.assemble((f"  {name:6}", "dim"), text))


def _print_mask(console: Console, shown: tuple[int, list[list[Piece]]]) -> None:
    from rlready.doctor.show import shortened

    index, rows = shown
    trained = sum(p.tokens for row in rows for p in row if p.kind == "trained")
    every = sum(p.tokens for row in rows for p in row)
    plain = not console.is_terminal
    console.print(Text.assemble(("Mask", "bold"), f" of trajectory {index}: {trained} of {every} tokens are trained"
                                f"{', in [[ ]]' if plain else ', in green'}"))  # fmt: skip
    styles = {"trained": "bold green", "sampled": "yellow", "context": "dim"}
    for row in rows:
        text = Text("  ")
        for piece in row:
            words = shortened(piece.text).replace("\n", "\u23ce")
            text.append(f"[[{words}]]" if plain and piece.kind == "trained" else words, styles[piece.kind])
            text.append(" ")
        console.print(text)
