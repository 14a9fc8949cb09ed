"""What a fit measures of its gym: calibration on dev, figures beside baselines and the curve on test, the verdict.

Everything that a clock decides comes back apart from the figures, so that these are the same whenever they are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlready.aio import run_sync
from rlready.dream.base import Simulator
from rlready.dream.domain import Domain
from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dream.measure.curve import Curve, learning_curve, some
from rlready.dream.measure.jsonable import to_json
from rlready.dream.measure.numbers import Probabilities
from rlready.dream.measure.open_loop import OpenLoop, StepResult, compare, open_loop
from rlready.dream.measure.verdict import Economics, Supply, Verdict, decide, measure_seconds
from rlready.dream.simulators.baselines import NearestTransition, NoChange
from rlready.dream.simulators.confidence import Calibration
from rlready.dreaming.understand import Understanding
from rlready.experience.episode import LoggedEpisode

Count = Callable[[int, int], None]
"""Called with (done, total)."""

MOST_STEPS = 1000
"""So many held-out steps are measured on at most; whole episodes, task by task in turn (ours)."""
_FEWEST = 20
"""Outcomes that a calibration needs (ours)."""
_TIMED = 6
"""Episodes that are played to find what the dream takes (ours)."""
_GUESSED = ("nearest", "model")
"""Origins whose confidence is a guess; code and recordings are sure."""


def calibrate(gym: Gym, count: Count | None = None) -> Calibration | None:
    """What the simulator's confidences are worth: how often a reply of such a confidence equals the recorded one.

    Only replies that the simulator itself gives are asked about, on the tasks of "dev". None where there are fewer than
    20 of them.
    """
    dev = some(gym.episodes("dev"), MOST_STEPS, 0)
    if not dev:
        return None
    found = run_sync(
        open_loop(
            dev, gym.domain, gym.state, (gym.checks, *gym.layers), gym.simulator, judge=False, examples=0,
            on_progress=count,
        )
    )  # fmt: skip
    guesses = [r for r in found.results if _guessed(r)]
    if len(guesses) < _FEWEST:
        return None
    return Calibration.fit([r.said.confidence for r in guesses], [r.exact for r in guesses])


def backends(gym: Gym, seed: int, count: Count | None = None) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The gym with code, its simulator alone, and both baselines, on the same steps of the tasks of "test".

    Returns:
        One record a row, those of `OpenLoop` with the seconds left out; and seconds for a step, by row.
    """
    test = some(gym.episodes("test"), MOST_STEPS, seed)
    if not test:
        return [], {}
    rows = run_sync(
        compare(
            test, gym.domain, gym.state, (gym.checks, *gym.layers), [gym.simulator],
            baselines=[NearestTransition(gym.library), NoChange(gym.library)], seed=seed, on_progress=count,
        )
    )  # fmt: skip
    out, seconds = [], {}
    for row in rows:
        record = row.to_json()
        seconds[f"{row.name} with code" if row.with_code else row.name] = record.pop("seconds_per_step")
        out.append(record)
    guesses = [r for r in rows[0].results if _guessed(r)]
    said = [gym.calibrated(r.said.confidence) for r in guesses]
    out[0]["calibrated"] = to_json(Probabilities.of(said, [r.exact for r in guesses]))
    return out, seconds


def curve(gym: Gym, seed: int, count: Count | None = None) -> dict[str, Any] | None:
    """Next-state accuracy of code and retrieval over 0, 1, 4, 16 ... all recordings; None where nothing is held out."""
    test = gym.episodes("test")
    if not test:
        return None
    return run_sync(learning_curve(gym.library, test, gym.domain, seed=seed, on_progress=count)).to_json()


def seconds(gym: Gym, understood: Understanding, setup: float | None, step: float | None) -> Economics:
    """What an episode takes in the dream, measured now, and in reality: as was said, else as the log has it.

    Where a set-up's time is unknown and the steps alone take longer than the dream, it counts as nothing.

    Args:
        gym: is played a few recorded episodes of, of tasks that it does not know where there are any.
        understood: has the log's times.
        setup: seconds of the real environment's; None where the user did not say.
        step: likewise, for a step.
    """
    found = {e.task_id: e for e in (*gym.episodes("test"), *gym.episodes("dev"), *gym.episodes("train"))}
    scripts = [(gym.task(e.task_id, e.instruction), e.actions) for e in list(found.values())[:_TIMED] if e.instruction]
    dream_setup, dream_step = run_sync(measure_seconds(lambda: gym.env(evaluation=True), scripts))
    steps = understood.lengths.mean or math.nan
    real_step = _known(step, understood.step_seconds.mean)
    real_setup = _known(setup, understood.setup_seconds.mean)
    if math.isnan(real_setup) and steps * real_step > dream_setup + steps * dream_step:
        real_setup = 0.0
    return Economics(real_setup, real_step, dream_setup, dream_step, steps)


def verdict(
    gym: Gym, rows: Sequence[dict[str, Any]], points: dict[str, Any] | None, economics: Economics, random: Sequence[str]
) -> Verdict:
    """Fit to train in, needs more of something, or do not dream.

    Args:
        gym: what was fitted.
        rows: of `backends`.
        points: of `curve`.
        economics: of `seconds`.
        random: sources that are random play.
    """
    if not rows:
        said = "Nothing was held out, so nothing is known of how the dream does on tasks that it has not seen."
        return Verdict("needs more", (said,), ("more tasks: at least three, so that some can be held out.",))
    loops = [OpenLoop.from_json({**row, "seconds_per_step": None}) for row in rows]
    return decide(
        loops[0],
        Supply.of(gym.episodes("train"), gym.domain, random=random),
        baselines=loops[2:],
        curve=None if points is None else Curve.from_json(points),
        economics=economics,
        judge_matters=gym.reward_source in ("model", "both"),
    )


def token_f1(library: Library, domain: Domain, simulator: Simulator, dev: Sequence[LoggedEpisode]) -> float:
    """Token F1 of a simulator's own replies to held-out episodes, mean over kinds of action."""
    few = some(dev, MOST_STEPS, 0)
    return run_sync(
        open_loop(few, domain, library.state, (), simulator, with_code=False, judge=False, examples=0)
    ).f1.macro


def _guessed(result: StepResult) -> bool:
    return result.said.origin in _GUESSED and result.said.confidence < 1.0


def _known(*values: float | None) -> float:
    return next((float(v) for v in values if v is not None), math.nan)
