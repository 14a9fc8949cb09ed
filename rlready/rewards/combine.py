"""Several rewards as one: a weighted sum with gates, every part kept by name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from rlready.errors import UserError, did_you_mean
from rlready.scoring import RewardFn, as_scorer, declare
from rlready.types import Score, Task, Trajectory, Verdict


def compose(
    parts: Mapping[str, RewardFn | tuple[float, RewardFn]],
    *,
    gates: Sequence[str] = (),
    stops: Sequence[str] = (),
    verdict: str | None = None,
) -> RewardFn:
    """Put rewards together: the value is the sum of weight times part.

    Args:
        parts: name to reward, or to (weight, reward); any accepted form, TRL's included. A weight may be 0 (measured,
            not paid) or negative (a penalty).
        gates: parts that must be right: where one is not, the value is at most 0, whatever the others earned.
        stops: gates that are graded first, in this order: where one is not right, nothing else is graded and the value
            is 0 (Magistral's format gate, arXiv 2506.10910). The score's parts then hold what was graded.
        verdict: the part whose verdict is that of the whole; default the first that applies. A gate that is not right
            overrules a right verdict.

    Returns:
        A reward. Its score's parts hold each part's unweighted value under its name, and a part's own parts under
        "name/part". A part that returns None does not apply and is left out. Where a part's grader fails, the whole
        fails: a sum with a hole in it would be read as a low score.

    Raises:
        UserError: no part, a weight that is not finite, or a gate, stop or verdict that is no part.
    """
    if not parts:
        raise UserError("rewards.compose needs at least one part.")
    weights: dict[str, float] = {}
    scorers = {}
    for name, part in parts.items():
        weight, fn = part if isinstance(part, tuple) else (1.0, part)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise UserError(f'rewards.compose: the weight of "{name}" is {weight!r}; it must be a finite number.')
        weights[name], scorers[name] = float(weight), as_scorer(fn)
    for name in [*gates, *stops, *([] if verdict is None else [verdict])]:
        if name not in parts:
            raise did_you_mean("part of rewards.compose", name, list(parts))

    rest = {name: scorer for name, scorer in scorers.items() if name not in stops}

    async def compose(task: Task, trajectory: Trajectory) -> Score | None:
        found: dict[str, Score | None] = {}
        for name in stops:
            score = found[name] = await scorers[name].optional(task, trajectory)
            if score is not None and score.verdict is not Verdict.RIGHT:
                return _stopped(name, score, found)
        if sum(scorer.waits for scorer in rest.values()) > 1:  # what waits, waits at the same time
            results = await asyncio.gather(*(s.optional(task, trajectory) for s in rest.values()))
        else:
            results = [await scorer.optional(task, trajectory) for scorer in rest.values()]
        found |= zip(rest, results, strict=True)
        scores = {name: score for name in scorers if (score := found[name]) is not None}
        if not scores:
            return None
        for name, score in scores.items():
            if score.verdict is Verdict.GRADER_FAILED:
                return Score.failed(f'part "{name}": {score.note}')
        named = _named(scores)
        total = sum(weights[name] * score.value for name, score in scores.items())
        main = scores[verdict] if verdict in scores else next(iter(scores.values()))
        overall = main.verdict
        for gate in gates:
            if gate in scores and scores[gate].verdict is not Verdict.RIGHT:
                total = min(total, 0.0)
                overall = scores[gate].verdict if overall is Verdict.RIGHT else overall
        return Score(total, overall, named)

    columns = dict.fromkeys(column for scorer in scorers.values() for column in scorer.columns)
    return declare(compose, name="compose", columns=list(columns))


def _stopped(name: str, score: Score, found: Mapping[str, Score | None]) -> Score:
    """What is left where the gate `name` stopped all further grading."""
    if score.verdict is Verdict.GRADER_FAILED:
        return Score.failed(f'part "{name}": {score.note}')
    return Score(0.0, score.verdict, _named(found), score.note)


def _named(scores: Mapping[str, Score | None]) -> dict[str, float]:
    """Values under their parts' names, and parts' own parts under "name/part"."""
    named: dict[str, float] = {}
    for name, score in scores.items():
        if score is not None:
            named[name] = float(score.value)
            named.update({f"{name}/{key}": value for key, value in score.parts.items()})
    return named
