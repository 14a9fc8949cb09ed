"""epsilon_R, epsilon_P and the bound on policy improvement, for any simulator; the formulas are `dream.fidelity`'s."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlready.dream.base import Layer, Simulator
from rlready.dream.domain import Domain
from rlready.dream.fidelity import Dynamics, ModelErrorReport, summed_up, total_variation
from rlready.dream.measure import documents
from rlready.dream.measure.open_loop import OpenLoop, ask
from rlready.dream.measure.walk import Asked, walk
from rlready.dream.state import StateRules
from rlready.experience.episode import LoggedEpisode
from rlready.rollout.gather import together
from rlready.seeds import derive


def one_step_errors(loop: OpenLoop, *, gamma: float = 0.95) -> ModelErrorReport:
    """The errors of a simulator that was measured open loop.

    Every reply is taken for certain, on both sides: total variation is 0 where it is the recorded one, else 1. So
    epsilon_P is over-estimated wherever the history leaves the reply open; `model_errors` takes known dynamics.

    Args:
        loop: fresh from `open_loop` (single steps are not kept in JSON).
        gamma: discount; the reciprocal of 1 - gamma is the horizon that the bound speaks of.
    """
    reward = [1.0 if math.isnan(p) else abs(p - float(success)) for _, p, success in loop.verdicts]
    return summed_up(reward, [float(not r.exact) for r in loop.results], gamma=gamma)


async def model_errors(
    episodes: Sequence[LoggedEpisode],
    domain: Domain,
    rules: StateRules,
    layers: Sequence[Layer],
    simulator: Simulator,
    loop: OpenLoop,
    dynamics: Dynamics,
    *,
    samples: int = 8,
    gamma: float = 0.95,
    at_once: int = 64,
    seed: int = 0,
) -> ModelErrorReport:
    """The errors against known probabilities of replies: each step is asked in several worlds.

    Args:
        episodes: held out.
        domain: reads the actions.
        rules: the typed state.
        layers: code to ask first.
        simulator: the backend.
        loop: its open loop on the same episodes, for the verdicts.
        dynamics: probabilities of the replies to a recorded step.
        samples: worlds a step is asked in; the resolution is 1 / samples.
        gamma: discount.
        at_once: moments asked concurrently.
        seed: of the worlds.
    """
    asked = [a for i, e in enumerate(episodes) for a in walk(e, domain, rules, index=i, seed=seed) if not a.silent]
    gate = asyncio.Semaphore(at_once)

    async def draw(each: Asked, sample: int) -> str | None:
        world = derive(each.moment.world, "sample", sample)
        moved = replace(each, moment=replace(each.moment, world=world), blank=replace(each.blank, world=world))
        async with gate:
            said = await ask(moved, layers, simulator)
        return None if said is None else said.text

    drawn = await together([draw(a, s) for a in asked for s in range(samples)])
    reply: list[float] = []
    for i, each in enumerate(asked):
        wanted = dynamics(episodes[each.episode], each.step)
        texts = [t for t in drawn[i * samples : (i + 1) * samples] if t is not None]
        if texts:
            reply.append(total_variation(wanted, Counter(_as_one_of(t, wanted) for t in texts)))
    reward = [1.0 if math.isnan(p) else abs(p - float(success)) for _, p, success in loop.verdicts]
    return summed_up(reward, reply, gamma=gamma)


def _as_one_of(text: str, wanted: Mapping[str, float]) -> str:
    """The reply that a text is the same as, however JSON is laid out; the text itself where it is none of them."""
    return next((w for w in wanted if documents.same(text, w)), text)
