"""`rlready dream report`: a gym measured in full, beside baselines, other simulators and reality, where it is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rlready.aio import run_sync
from rlready.dream.gym import Gym
from rlready.dream.measure.jsonable import from_json
from rlready.dream.measure.verdict import Economics, measure_seconds
from rlready.dream.measure.whole import measure_gym
from rlready.dream.report import DreamReport
from rlready.dream.simulators import load_simulator
from rlready.dreaming.rounds import RealSide
from rlready.dreaming.train import check_gate
from rlready.progress import Bar, ProgressBoard
from rlready.types import Task

_TIMED = 3
"""Real episodes that are played for their times alone, where nobody said what they take (ours)."""


def report(
    folder: str | Path,
    *,
    real: RealSide | None = None,
    simulators: Sequence[str] = (),
    budget: int | None = None,
    replays: int = 25,
    seed: int = 0,
    board: ProgressBoard | None = None,
) -> DreamReport:
    """Measure a gym and write `report.json`, `report.md` and `report.html` into its folder.

    Args:
        folder: what `rlready dream fit` wrote.
        real: the real environment with its tasks.
        simulators: further ones to stand beside the gym's own, by their strings.
        budget: most real transitions for replays; None for no limit.
        replays: of each script, for the same-action variance.
        seed: of the worlds.
        board: where progress is shown.

    Raises:
        UserError: there is no gym, nothing is held out, or a simulator is not there.
    """
    folder = Path(folder)
    gym = Gym.load(folder)
    others = [load_simulator(spec, folder, gym.library, gym.domain) for spec in simulators]
    board = board or ProgressBoard("quiet")
    board.say("The gate: determinism, form, invalid actions.")
    gate, spent = check_gate(gym, real, seed=seed)
    economics = _economics(folder)
    tasks: dict[str, Task] = {}
    if real is not None:
        tasks = {t.id: t for t in (*real.practice, *real.held_out)}
        economics, timed = _timed(gym, real, economics, tasks)
        spent += timed
    left = None if budget is None else max(0, budget - spent)
    with ExitStack() as stack:
        bars: dict[str, Bar] = {}

        def show(part: str, done: int, total: int) -> None:
            if part not in bars:
                stack.close()
                bars[part] = stack.enter_context(board.track(part, total))
            bar = bars[part]
            if done > bar.done:
                bar.done = done - 1
                bar.advance()

        measured = run_sync(
            measure_gym(
                gym, name=folder.name, simulators=others, real=None if real is None else real.env, real_tasks=tasks,
                budget=left, gate=gate, economics=economics, sessions=[Gym.load(folder).env_factory(evaluation=True)],
                random=("random", *gym.about.get("random_sources", ())), replays=replays, seed=seed, on_progress=show,
            )
        )  # fmt: skip
    measured.save(folder)
    return measured


def _economics(folder: Path) -> Economics | None:
    """The seconds on both sides as the fit has measured them; None where it was not `fit` that wrote the gym."""
    path = folder / "verdict.json"
    if not path.exists():
        return None
    return from_json(Economics, json.loads(path.read_text(encoding="utf-8"))["seconds"])


def _timed(gym: Gym, real: RealSide, known: Economics | None, tasks: dict[str, Task]) -> tuple[Economics | None, int]:
    """The real seconds, measured on a few recorded episodes where they are not known; and the real transitions."""
    if known is None or known.real == known.real:
        return known, 0
    factory, count = real.metered()
    episodes = [e for e in gym.library.episodes.values() if e.task_id in tasks][:_TIMED]
    setup, step = run_sync(measure_seconds(factory, [(tasks[e.task_id], e.actions) for e in episodes]))
    return replace(known, real_setup=setup, real_step=step), count["steps"]
