"""Closed loop and sameness: hand-derived figures over a desk that is known, and budgets that hold."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any

import pytest

from rlready.dream.base import Action
from rlready.dream.measure.closed_loop import ClosedLoop, Dreamt, replay_dreams, sameness
from rlready.envs.base import Step
from rlready.errors import EnvError
from rlready.types import Task
from tests.dream.measure.desk import Desk, cancel, episode, get, task


def truth(n: int) -> Desk:
    world = Desk()
    asyncio.run(world.reset(task(n), 0))
    return world


OPEN = [n for n in range(40) if truth(n).was_open]
SENT = [n for n in range(40) if not truth(n).was_open]


def dreamt(n: int, *, says: str = "", success: bool, actor: str = "a", cancels: bool = True) -> Dreamt:
    """A dream that looks, cancels if asked to, and closes; `says` stands in for the true first reply."""
    world = truth(n)
    look = world.reply(Action(get(f"W{n}"), "get_order", {"order_id": f"W{n}"}))
    done = world.reply(Action(cancel(f"W{n}"), "cancel_order", {"order_id": f"W{n}"}))
    steps = [(get(f"W{n}"), says or look), *([(cancel(f"W{n}"), done)] if cancels else []), ("Bye", "")]
    return Dreamt(actor, task(n), episode(*steps, task_id=f"t{n}", success=success))


def run(*dreams: Dreamt, real: Any = Desk, **options: Any) -> ClosedLoop:
    return asyncio.run(replay_dreams(real, dreams, **options))


def test_a_faithful_dream() -> None:
    found = run(dreamt(OPEN[0], success=True), dreamt(OPEN[1], success=False, cancels=False))
    assert (found.episodes, found.outcome, found.flattered, found.missed, found.optimism) == (2, 1, 0, 0, 0)
    assert (found.replies, found.f1, found.clean, found.first_wrong) == (1, 1, 1, 2.5)
    assert found.real_transitions == 5 and found.examples == () and found.void == 0
    assert found.tasks is not None and found.tasks.score == 1


def test_flattery_first_wrong_steps_and_optimism_by_hand() -> None:
    found = run(
        dreamt(OPEN[0], success=True),
        dreamt(OPEN[1], success=True, cancels=False, says="all is well"),  # in truth it failed: it was open
        dreamt(OPEN[2], success=False),  # in truth it succeeded
        dreamt(SENT[0], success=True, cancels=False),
    )
    assert (found.outcome, found.flattered, found.missed) == (0.5, 0.25, 0.25)
    assert found.optimism == pytest.approx(0.75 - 0.75)
    assert found.replies == pytest.approx(9 / 10) and found.clean == 0.75
    assert found.first_wrong == pytest.approx((3 + 0 + 3 + 2) / 4)
    (example,) = found.examples
    assert example.said == "all is well" and '"status": "open"' in example.recorded and example.f1 == 0
    assert found.tasks is not None and found.tasks.gap == 0 and found.tasks.distance == 0.5


def test_ranks_over_actors_by_hand() -> None:
    def actor(name: str, in_dream: int, in_truth: int) -> list[Dreamt]:
        return [dreamt(n, success=i < in_dream, actor=name, cancels=i < in_truth) for i, n in enumerate(OPEN[:4])]

    agents = [*actor("weak", 0, 0), *actor("middle", 3, 2), *actor("strong", 2, 4)]
    found = run(*agents)
    assert found.actors["middle"].dream == 0.75 and found.actors["middle"].replayed == 0.5
    assert found.actor_rank == pytest.approx(0.5)  # ranks 1 3 2 against 1 2 3
    assert found.order == pytest.approx(2 / 3)
    by_play = run(*agents, played={"weak": 0.1, "middle": 0.9, "strong": 0.5})
    assert by_play.actor_rank == 1 and by_play.order == 1 and by_play.actors["middle"].real == 0.9
    assert math.isnan(run(*agents[:8]).actor_rank)


def test_the_budget_holds_and_the_choice_is_fixed() -> None:
    dreams = [dreamt(n, success=True) for n in OPEN[:6]]
    found = run(*dreams, budget=10)
    assert (found.episodes, found.skipped, found.real_transitions) == (3, 3, 9)
    assert run(*dreams, budget=10).to_json() == found.to_json()
    nothing = run(*dreams, budget=0)
    assert nothing.real_transitions == 0 and math.isnan(nothing.outcome) and nothing.tasks is None
    json.dumps(nothing.to_json(), allow_nan=False)


class Dying(Desk):
    async def step(self, action: str) -> Step:
        if self.order == f"W{OPEN[0]}" and self.turns == 1:
            raise EnvError("the shop has closed")
        return await super().step(action)


def test_a_real_environment_that_dies_is_counted_and_paid_for_but_not_wrong() -> None:
    found = run(dreamt(OPEN[0], success=True), dreamt(OPEN[1], success=True), real=Dying)
    assert (found.episodes, found.void, found.outcome, found.real_transitions) == (1, 1, 1, 4)
    again = ClosedLoop.from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json()


SCRIPTS = [(task(n), [get(f"W{n}"), cancel(f"W{n}"), "Bye"]) for n in range(5)]


def test_a_thousand_replays_of_one_world() -> None:
    found = asyncio.run(sameness(Desk, SCRIPTS[:1], replays=1000, sessions=[Desk]))
    assert (found.different, found.reward_variance, found.other_worlds, found.void) == (0, 0.0, 0, 0) and found.passed


def test_rare_noise_and_other_sessions_are_found() -> None:
    count = itertools.count()

    class Rare(Desk):
        """The outcome of one episode in 200 is turned."""

        async def step(self, action: str) -> Step:
            step = await super().step(action)
            if step.terminated and next(count) == 150:
                step.reward = 1 - step.reward
            return step

    found = asyncio.run(sameness(Rare, SCRIPTS[:2], replays=100))
    assert found.different == 1 and not found.passed
    assert found.reward_variance == pytest.approx(0.01 * 0.99 / 2) and "rewards" in found.example
    other = asyncio.run(sameness(Desk, SCRIPTS, replays=2, sessions=[Desk, lambda: Desk(salt=1)]))
    assert other.different == 0 and other.other_worlds == 5 and not other.passed and "price" in other.example


def test_progress_is_counted() -> None:
    seen = list[tuple[int, int]]()
    asyncio.run(sameness(Desk, SCRIPTS, replays=3, sessions=[Desk], on_progress=lambda d, n: seen.append((d, n))))
    assert seen == [(i + 1, 20) for i in range(20)]
    tasks: list[Task] = [t for t, _ in SCRIPTS]
    assert len(tasks) == 5
