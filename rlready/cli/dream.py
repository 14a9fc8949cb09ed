"""`rlready dream`: from logs to a gym, and what can be done with one.

Each command is one function here; `train` stands in `cli.dream_train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlready.cli.common import JsonOption, QuietOption, out, print_json
from rlready.cli.dream_train import train
from rlready.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rlready.dream.gym import Gym
    from rlready.dreaming.understand import Understanding

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

GymArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A gym, made by `rlready dream fit`.")]


@app.callback()
def dream() -> None:
    """Turn any agent's logs into a gym: a dream of its environment to train in, measured and gated.

    - `rlready dream fit logs/`: read logs, learn the dream, say how good it is and whether to use it
    - `rlready dream report gym`: measure it in full, beside baselines and, if there is one, the real environment
    - `rlready dream train gym`: train an agent in it, and check the gain in reality
    - `rlready dream serve gym --port 8000`: offer it to other tools
    """


def fit(
    logs: Annotated[list[Path], typer.Argument(help="Log files, or folders of them: JSON or JSONL.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="The gym's folder.")] = Path("gym"),
    simulator: Annotated[
        str, typer.Option("--simulator", "-s", help="retrieval, tiny, hf:NAME, http://HOST/v1#MODEL, or auto.")
    ] = "retrieval",
    rewards: Annotated[
        Path | None, typer.Option(help="A file of `id, reward`: CSV or JSONL.", show_default=False)
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="A function that scores runs and dreams: my.py:score.", show_default=False)
    ] = None,
    reward_source: Annotated[
        str | None,
        typer.Option(
            help="Who judges a dream: verifier, criteria, model or both. Chosen if not given.", show_default=False
        ),
    ] = None,
    random_source: Annotated[
        list[str] | None,
        typer.Option("--random-source", help="A source in the log that is random play.", show_default=False),
    ] = None,
    perturb: Annotated[
        list[str] | None,
        typer.Option(help="Trouble on purpose while training: error=0.05, slow=, partial=, page=.", show_default=False),
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(help="Prompt templates of your own, for language models.", show_default=False)
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the tasks that nothing is learned from.")] = 0.2,
    min_confidence: Annotated[float, typer.Option(help="Replies below mask the episode; 0 never.")] = 0.0,
    setup_seconds: Annotated[
        float | None, typer.Option(help="What the real environment takes to set up.", show_default=False)
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(help="What it takes for a step; read from the log if not given.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Training steps of a simulator that learns; 0 chooses.")] = 0,
    curve: Annotated[bool, typer.Option(help="Measure the curve over numbers of runs.")] = True,
    seed: Annotated[int, typer.Option(help="Of the split and of training.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished gym, or drop an unfinished fit.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a gym from logs, and say what it is good for.

    Reads ATIF, OpenAI chat messages, OTLP and OpenTelemetry GenAI spans, Langfuse, LangSmith, Phoenix, Braintrust,
    Mastra and PostHog exports, and plain transitions; the form is found out. It says what was understood and what is
    missing, holds out a fifth of the tasks, learns the rest, measures the dream on the held-out ones beside two
    baselines and over growing numbers of traces, and gives a verdict in words. Nothing is asked.

    Ctrl-C saves; the same command goes on, also after a kill. A finished gym is replaced only with `--force`.

    Try:

    - `rlready dream fit runs.jsonl`
    - `rlready dream fit logs/ --out gyms/airline --simulator tiny`
    - `rlready dream fit spans.json --rewards rewards.csv --setup-seconds 40 --step-seconds 2`
    - `rlready dream fit runs.jsonl --verifier my_task.py:score --perturb error=0.05`
    """
    from rlready.cli import dream_tables as tables
    from rlready.dreaming.fit import Fitted
    from rlready.dreaming.fit import fit as fit_gym
    from rlready.dreaming.options import FitOptions

    score = None
    if verifier is not None:
        from rlready.cli.build import load_object

        score = load_object(verifier, default="score")
    options = FitOptions(
        simulator=simulator,
        rewards=str(rewards or ""),
        verifier=verifier or "",
        reward_source=reward_source or "",
        random_sources=tuple(random_source or ()),
        perturb=tuple(perturb or ()),
        templates=str(templates or ""),
        held_out=held_out,
        min_confidence=min_confidence,
        setup_seconds=setup_seconds,
        step_seconds=step_seconds,
        steps=steps,
        curve=curve,
    )
    console = out()

    def understood(found: Understanding, dropped: Any) -> None:
        if not as_json:
            told = setup_seconds is not None and step_seconds is not None
            tables.print_understanding(console, found, dropped, to, hidden=("times",) if told else ())

    fit_gym(
        logs, to, options, verifier=score, seed=seed, force=force, progress="quiet" if quiet else "auto",
        on_understood=understood,
    )  # fmt: skip
    fitted = Fitted.load(to)
    if as_json:
        print_json(fitted.to_json())
        return
    tables.print_measured(console, fitted)
    tables.print_next(console, fitted)


def show(folder: GymArgument, as_json: JsonOption = False) -> None:
    """Show what a gym holds and what was measured when it was fitted.

    Try:

    - `rlready dream show gym`
    """
    from rlready.cli import dream_tables as tables
    from rlready.dreaming.fit import Fitted

    fitted = Fitted.load(folder)
    if as_json:
        print_json(fitted.to_json())
        return
    console = out()
    tables.print_understanding(console, fitted.understanding, fitted.dropped, folder)
    tables.print_measured(console, fitted)


def report(
    folder: GymArgument,
    real: Annotated[
        str | None, typer.Option("--real", help="The real environment: my_env.py:Shop.", show_default=False)
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Real tasks, such as my_env.py:tasks; the logged ones if not given.", show_default=False),
    ] = None,
    real_budget: Annotated[
        int | None, typer.Option("--real-budget", min=0, help="Most real transitions.", show_default=False)
    ] = None,
    simulator: Annotated[
        list[str] | None,
        typer.Option(
            "--simulator", "-s", help="Another simulator to measure beside the gym's own.", show_default=False
        ),
    ] = None,
    replays: Annotated[int, typer.Option(min=2, help="Replays of each script, for the same-action variance.")] = 25,
    seed: Annotated[int, typer.Option(help="Of the worlds.")] = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a gym in full: step by step, episode by episode, and against reality if it is there.

    Open loop: exact match, token F1, fields by number of changes, verdicts and confidence as probabilities, recall of
    invalid actions. Same-action variance, contradictions, inventions, and the gate. With `--real`, dream actions are
    replayed in the real environment: outcome and rank agreement, and the bound on what can be gained. Every backend
    stands beside the nearest recorded transition and no change. Writes report.html, report.md and report.json into the
    gym.

    Try:

    - `rlready dream report gym`
    - `rlready dream report gym --simulator nearest --simulator http://localhost:8000/v1#my-model`
    - `rlready dream report gym --real my_env.py:Shop --tasks my_env.py:tasks --real-budget 500`
    """
    from rlready.cli import dream_tables as tables
    from rlready.cli.dream_train import real_side
    from rlready.dream.gym import Gym
    from rlready.dreaming.reporting import report as measure
    from rlready.progress import ProgressBoard

    side = real_side(Gym.load(folder), real, tasks or [])
    board = ProgressBoard("quiet" if quiet else "auto")
    try:
        measured = measure(
            folder, real=side, simulators=simulator or [], budget=real_budget, replays=replays, seed=seed, board=board
        )
    finally:
        board.close()
    if as_json:
        print_json(measured.to_json())
        return
    tables.print_report(out(), measured, folder)


def serve(
    folder: GymArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a host that others can reach. There is no password.")
    ] = False,
    mcp: Annotated[
        str | None, typer.Option(help="Offer the simulated tools as an MCP server: stdio or http.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="Whose tasks: train, dev or test.")] = "train",
    simulator: Annotated[
        str | None, typer.Option("--simulator", "-s", help="Another one than the gym's own.", show_default=False)
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="The score, where one is needed; the gym's own if not given.", show_default=False),
    ] = None,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="No trouble on purpose, no masking.")] = False,
    max_sessions: Annotated[int, typer.Option(min=1, help="Episodes at once; more are told to come back.")] = 256,
    idle: Annotated[float, typer.Option(min=0.001, help="Seconds after which an idle session is closed.")] = 300.0,
    deadline: Annotated[float, typer.Option(min=0.001, help="Most seconds for one request.")] = 50.0,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more are told that it is busy.")] = 256,
    seed: Annotated[int, typer.Option(help="Of episodes that name none.")] = 0,
) -> None:
    """Offer a gym to other tools: over HTTP and WebSocket as openenv-core's client speaks it, or as an MCP server.

    Every session has its own episode; idle ones are closed, each request has one deadline, and where the queue is full
    the answer says so. Ctrl-C closes everything.

    Try:

    - `rlready dream serve gym --port 8000`
    - `rlready dream serve gym --mcp http`: the tools as well, at /mcp
    - `rlready dream serve gym --mcp stdio`: as a local MCP server, for a client's settings
    """
    from rlready.cli.common import complain
    from rlready.dream.gym import Gym
    from rlready.dream.serve import serve as run
    from rlready.dream.serve import serve_stdio

    if mcp not in (None, "stdio", "http"):
        raise did_you_mean("MCP transport", mcp, ("stdio", "http"))
    gym = Gym.load(folder, simulator=simulator)
    name = folder.resolve().name
    if mcp is not None and not gym.domain.tools:
        raise UserError(f"{folder} has no tools to offer over MCP: its agents wrote plain words. Leave out --mcp.")
    chosen = gym.tasks(split, verifier=_score(verifier, gym))
    make = gym.env_factory(evaluation=evaluation)
    if mcp == "stdio":
        serve_stdio(make, chosen, gym.domain, seed=seed, name=name)
        return
    run(
        make, chosen, host=host, port=port, expose=expose, max_sessions=max_sessions, idle_seconds=idle,
        deadline=deadline, queue=queue, seed=seed, domain=gym.domain if mcp else None, name=name,
        ready=lambda url: complain(
            f"{len(chosen)} {split} tasks of {folder} at {url}{f', tools at {url}/mcp' if mcp else ''}. Ctrl-C stops."
        ),
    )  # fmt: skip


def _score(given: str | None, gym: Gym) -> Any:
    """The verifier: as given, else the one that the gym was fitted with, where its reward source needs it."""
    target = given or (gym.about.get("verifier") if gym.reward_source in ("verifier", "both") else None)
    if not target:
        return None
    from rlready.cli.build import load_object

    return load_object(target, default="score")


for _name, _command in (("fit", fit), ("report", report), ("train", train), ("serve", serve), ("show", show)):
    app.command(_name)(_command)
