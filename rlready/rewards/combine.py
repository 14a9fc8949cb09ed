"""Several rewards as one: a weighted sum or a product, with gates and caps, every part kept by name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from rlready.errors import UserError, did_you_mean
from rlready.scoring import RewardFn, as_scorer, declare
from rlready.types import Score, Task, Trajectory, Verdict


def compose(
    parts: Mapping[str, RewardFn | tuple[float, RewardFn]],
    *,
    gates: Sequence[str] = (),
    stops: Sequence[str] = (),
    verdict: str | None = None,
    how: Literal["sum", "product"] = "sum",
    caps: Mapping[str, float] | None = None,
    cap: float | None = None,
) -> RewardFn:
    """Put rewards together: the value is the sum of weight times part, or the product of the parts.

    Args:
        parts: name to reward, or to (weight, reward); any accepted form, TRL's included. A weight may be 0 (measured,
            not paid) or negative (a penalty).
        gates: parts that must be right: where one is not, the value is at most 0, whatever the others earned.
        stops: gates that are graded first, in this order: where one is not right, nothing else is graded and the value
            is 0 (Magistral's format gate, arXiv 2506.10910). The score's parts then hold what was graded.
        verdict: the part whose verdict is that of the whole; default the first that applies. A gate that is not right
            overrules a right verdict.
        how: "sum", or "product": every part is needed, and one that is 0 or less makes the whole 0. A weight is then 1
            or 0 (measured, no factor).
        caps: the most that a part's term (weight times part; in a product the part) may be, by name.
        cap: the most that the whole may be.

    Returns:
        A reward. Its score's parts hold each part's unweighted value under its name, and a part's own parts under
        "name/part". A part that returns None does not apply and is left out. Where a part's grader fails, the whole
        fails: a sum with a hole in it would be read as a low score.

    Raises:
        UserError: no part, a weight or cap that is not finite, or a gate, stop, cap or verdict that is no part.
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
    _check(weights, how, caps or {}, cap)
    for name in [*gates, *stops, *(caps or {}), *([] if verdict is None else [verdict])]:
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
        total = _total({name: score.value for name, score in scores.items()}, weights, how, caps or {})
        main = scores[verdict] if verdict in scores else next(iter(scores.values()))
        overall = main.verdict
        for gate in gates:
            if gate in scores and scores[gate].verdict is not Verdict.RIGHT:
                total = min(total, 0.0)
                overall = scores[gate].verdict if overall is Verdict.RIGHT else overall
        total = total if cap is None else min(total, cap)
        note = "; ".join(f"{name}: {score.note}" for name, score in scores.items() if score.note)
        return Score(total, overall, named, note)

    columns = dict.fromkeys(column for scorer in scorers.values() for column in scorer.columns)
    return declare(compose, name="compose", columns=list(columns))


def _check(weights: Mapping[str, float], how: str, caps: Mapping[str, float], cap: float | None) -> None:
    if how not in ("sum", "product"):
        raise did_you_mean("value of how", str(how), ("sum", "product"))
    for name, most in [*caps.items(), *([] if cap is None else [("the whole", cap)])]:
        if not isinstance(most, (int, float)) or not math.isfinite(most):
            raise UserError(f'rewards.compose: the cap of "{name}" is {most!r}; it must be a finite number.')
    odd = next((name for name, weight in weights.items() if weight not in (0.0, 1.0)), None)
    if how == "product" and odd is not None:
        raise UserError(f'rewards.compose: in a product the weight of "{odd}" must be 1 or 0, not {weights[odd]:g}.')


def _total(
    values: Mapping[str, float], weights: Mapping[str, float], how: str, caps: Mapping[str, float]
) -> float:  # fmt: skip
    """The sum or product of the parts that apply."""
    if how == "sum":
        return sum(min(weights[name] * value, caps.get(name, math.inf)) for name, value in values.items())
    factors = [min(value, caps.get(name, math.inf)) for name, value in values.items() if weights[name]]
    # two parts below 0 are not to make a good whole
    return math.prod(factors) if factors and min(factors) > 0 else 0.0


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
