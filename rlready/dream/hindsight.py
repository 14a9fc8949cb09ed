"""What a world must be like, given what is known of it: imagined facts that explain the recorded verdicts.

A recording shows that an act succeeded, but not what would have been seen by looking. When an agent then looks, the
answer must be imagined, and an answer drawn at random makes a world in which the recorded verdicts make no sense: the
agent is paid for what its look spoke against. So the simulator offers several answers, and each is weighed by how well
it explains what is known: the product over the world's judged recordings of the judge's probability of the recorded
verdict. (DreamGym's hidden start is inferred in the same way from a finished log; here it is one question at a time.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from rlready.dream.base import Action, Moment, Reply, Simulator
from rlready.dream.library import Library
from rlready.seeds import hashed_uniform

_FLOOR = 0.05
"""A judge is never taken to be surer than this (ours): one bad verdict must not rule an answer out."""
_MOST_RUNS = 8


@runtime_checkable
class Imagines(Protocol):
    """A simulator that can offer several answers to a question about the world."""

    async def candidates(self, moment: Moment, action: Action, n: int) -> list[tuple[float, Reply]]:
        """At most `n` different answers with their weights, which need not sum to 1; the likeliest first."""
        ...


async def explained(
    simulator: Simulator, library: Library, moment: Moment, action: Action, *, n: int = 6
) -> Reply | None:
    """An answer that explains what is known of the world; None where nothing is known, or nothing can be chosen.

    Args:
        simulator: offers the answers, and judges.
        library: holds the recordings of the world (`moment.anchor` and those of the same world).
        moment: of the untouched world: an empty past; `facts` are what is known of it.
        action: the question.
        n: answers to choose from.

    Returns:
        The answer, drawn by the product of its weight and the likelihood of the recorded verdicts, with noise hashed
        from the world and the question. Its confidence is its share.
    """
    if not isinstance(simulator, Imagines) or moment.anchor not in library.episodes:
        return None
    runs = [id for id in (moment.anchor, *library.same_world(moment.anchor)) if library.judged(id)][:_MOST_RUNS]
    if not runs:
        return None
    offered = await simulator.candidates(moment, action, n)
    if len(offered) < 2:
        return None
    scores = []
    for weight, reply in offered:
        known = replace(moment, facts=(*moment.facts, (action, reply)))
        score = math.log(max(weight, 1e-9))
        for id in runs:
            p = await simulator.judge(replace(known, past=library.steps(id)))
            p = min(max(p, _FLOOR), 1 - _FLOOR)
            score += math.log(p if library.episodes[id].success else 1 - p)
        scores.append(score)
    return _drawn([reply for _, reply in offered], scores, moment.world, action)


def _drawn(replies: Sequence[Reply], scores: Sequence[float], world: int, action: Action) -> Reply:
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total, u = sum(weights), hashed_uniform(world, "explained", action.text)
    chosen = len(replies) - 1
    for i, weight in enumerate(weights):
        u -= weight / total
        if u < 0:
            chosen = i
            break
    share = weights[chosen] / total
    return replace(replies[chosen], confidence=share, note=f"explains what is known: {share:.2f}")
