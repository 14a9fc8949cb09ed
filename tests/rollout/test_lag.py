"""How far rollouts run ahead: the bound, the order, and that nobody is left behind, by a simulated clock."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.curriculum.gates import Gated, ZeroSignal
from rlready.curriculum.samplers import Mixed, Pool, Uniform
from rlready.rollout.collect import Collector
from rlready.rollout.lag import Draw, Staleness, lags
from rlready.seeds import hashed_uniform
from rlready.types import Group, Score, Task, Trajectory, Turn
from tests.rollout.rollout_fakes import Lamps, lamps, policy
from tests.rollout.simulated import simulate


class Slow(Lamps):
    """A step takes a time that is the task's own: most are quick, one in five is 50 times slower."""

    async def reset(self, task: Task, seed: int) -> Any:
        self.pace = pace(task)
        return await super().reset(task, seed)

    async def step(self, action: str) -> Any:
        await asyncio.sleep(self.pace)
        return await super().step(action)


def pace(task: Task) -> float:
    return (5.0 if is_slow(task) else 0.1) * (0.5 + hashed_uniform(task.id, "pace"))


def is_slow(task: Task) -> bool:
    return hashed_uniform(task.id, "slow") < 0.2


@dataclass
class Noting(Uniform):
    """Notes which version every task was drawn under, and refuses a share of the groups."""

    refuse: float = 0.0
    acting: Any = None
    drawn: list[tuple[str, int]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __init__(self, tasks: Any, acting: Any, refuse: float = 0.0, seed: int = 1) -> None:
        super().__init__(tasks, seed)
        self.acting, self.refuse = acting, refuse
        self.drawn, self.begun, self.refused = [], [], []

    def begin(self, groups: int) -> None:
        self.begun.append(len(self.drawn))

    def next(self) -> Task:
        task = super().next()
        self.drawn.append((task.id, self.acting.sampler.version))
        return task

    def admit(self, group: Group) -> bool:
        good = hashed_uniform(group.task.id, group.trajectories[0].seed, "refuse") >= self.refuse
        if not good:
            self.refused.append(group.task.id)
        return good


def collector(acting: Any, curriculum: Any, tasks: Any, **kw: Any) -> Collector:
    kw = {"group_size": 2, "max_steps": 4, "seed": 3, "deadline": None, "watchdog": 60} | kw
    return Collector(acting, Slow, tasks, curriculum, **kw)


async def learn(
    c: Collector, batch: int, updates: int, seconds: float, first: int = 0
) -> list[tuple[int, list[Group], dict[str, float]]]:
    """Batches with the version at which each is used; an update takes some seconds, in which rollouts go on."""
    out = []
    for step in range(updates):
        groups = await c.collect(batch)
        out.append((c.policy.version, groups, c.metrics()))
        await asyncio.sleep(seconds * (0.5 + hashed_uniform(step, "update")))
        c.policy.sampler.version = first + step + 1  # type: ignore[misc]
    return out


# -- the rule --------------------------------------------------------------------------------------------------------


def test_a_small_batch_has_used_up_its_places() -> None:
    """Without that, places that stayed empty would let more and more run ahead."""
    rule = Staleness(batch=4, max_lag=1)
    rule.asked, rule.started = 1, 8
    rule.started -= 3  # three refused, and no refills left
    rule.short(3)
    assert rule.capacity == 0
    rule.asked = 2
    assert rule.capacity == 4


def test_lag_is_counted_in_updates_and_by_token() -> None:
    """Versions are optimizer steps: five per update here."""
    turns = [
        Turn([1], [1, 2, 3], [0.0] * 3, version=10),
        Turn([1], [1, 2, 3, 4], [0.0] * 4, version=[0, 5, 5, 10]),
        Turn([1], [9, 9], version=0),  # a script's: it has no version
    ]
    task = Task.of("x")
    groups = [Group(task, [Trajectory(task, turns)])]
    assert lags(groups, [0, 5, 10]).tolist() == [0, 0, 0, 2, 1, 1, 0]
    assert lags(groups, [10]).tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert lags([], [10]).tolist() == []


@settings(max_examples=60, deadline=None)
@given(
    max_lag=st.integers(1, 4),
    batch=st.integers(1, 6),
    refuse=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    refills=st.sampled_from([0.0, 0.5, 4.0]),
    concurrency=st.sampled_from([1, 3, 256]),
    update=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_the_bound_and_the_order_hold_whatever_happens(
    max_lag: int, batch: int, refuse: float, refills: float, concurrency: int, update: float, seed: int
) -> None:
    acting, tasks = policy(), lamps(23)
    curriculum = Noting(tasks, acting, refuse, seed)
    c = collector(acting, curriculum, tasks, max_lag=max_lag, max_refills=refills, concurrency=concurrency)

    async def main() -> tuple[list[Any], list[str]]:
        steps = await learn(c, batch, 8, update)
        left = [draw.task.id for draw in c._in_flight()]
        await c.aclose()
        return steps, left

    steps, left = simulate(main())
    used = [(group.task.id, version) for version, groups, _ in steps for group in groups]
    # In the order they were started, each once; what is missing was refused or is still in the line.
    place = 0
    position: list[int] = []
    drawn = [task for task, _ in curriculum.drawn]
    passed: Counter[str] = Counter()
    for task, _ in used:
        while drawn[place] != task:
            passed[drawn[place]] += 1
            place += 1
        position.append(place)
        place += 1
    ahead = Counter(drawn[place:])
    assert passed + ahead == Counter(curriculum.refused) + Counter(left)
    # No group is older than max_lag updates when it is used, and no token is.
    for (_, version), start in zip(used, position, strict=True):
        assert 0 <= version - curriculum.drawn[start][1] <= max_lag
    for _, groups, metrics in steps:
        assert metrics["lag/mean"] <= metrics["lag"] <= max_lag
        assert metrics["groups"] == len(groups) <= batch and metrics["refused"] >= 0
    # Nothing runs further ahead than the rule lets it.
    assert len(left) <= max_lag * batch
    if refuse == 0:
        assert all(len(groups) == batch for _, groups, _ in steps)
        assert len(left) == max_lag * batch and not passed


@pytest.mark.parametrize("max_lag", [1, 3])
def test_slow_tasks_come_as_often_as_they_are_drawn(max_lag: int) -> None:
    """Where the quickest were used first, slow ones would come late or never."""
    acting, tasks = policy(), lamps(40)
    slow = {task.id for task in tasks if is_slow(task)}
    assert 4 <= len(slow) <= 12
    c = collector(acting, Noting(tasks, acting), tasks, max_lag=max_lag)

    async def main() -> list[Any]:
        steps = await learn(c, 8, 20, 1.0)
        await c.aclose()
        return steps

    used = Counter(group.task.id for _, groups, _ in simulate(main()) for group in groups)
    assert sum(used.values()) == 160 and set(used.values()) == {4}  # four epochs of 40, slow ones and all


def test_rollouts_run_while_the_policy_learns() -> None:
    """By the simulated clock: with lag an update hides behind the rollouts, without it they take turns."""

    def seconds(max_lag: int) -> float:
        acting, tasks = policy(), lamps(12)
        c = collector(acting, Uniform(tasks, 1), tasks, max_lag=max_lag)

        async def main() -> float:
            await learn(c, 4, 12, 10.0)
            await c.aclose()
            return asyncio.get_running_loop().time()

        return simulate(main())

    in_turns, at_once = seconds(0), seconds(2)
    assert at_once < 0.7 * in_turns


# -- the curriculum --------------------------------------------------------------------------------------------------


def test_a_batch_begins_for_the_curriculum_with_each_batch_of_places() -> None:
    acting, tasks = policy(), lamps(20)
    curriculum = Noting(tasks, acting)
    c = collector(acting, curriculum, tasks, max_lag=2)

    async def main() -> None:
        await learn(c, 4, 5, 1.0)
        await c.aclose()

    simulate(main())
    assert curriculum.begun == [0, 4, 8, 12, 16, 20, 24]  # 3 batches at once, then one by one


def test_gates_bound_their_refusals_with_lag_too() -> None:
    """Nothing has signal here: `ZeroSignal` lets the rest of a batch pass once its refills are used up."""
    acting, tasks = policy(), lamps(6)

    async def same(task: Task, trajectory: Trajectory) -> Score:
        return Score.right()

    tasks.scorer = same
    curriculum = Gated(Uniform(tasks, 1), ZeroSignal(refill=1))
    c = collector(acting, curriculum, tasks, max_lag=1, max_refills=10)

    async def main() -> list[Any]:
        steps = await learn(c, 3, 4, 1.0)
        await c.aclose()
        return steps

    steps = simulate(main())
    assert all(len(groups) == 3 for _, groups, _ in steps)
    assert 0 < sum(metrics["refused"] for _, _, metrics in steps) <= 3 * 6  # a batch of refills for each batch begun


def test_a_mixture_keeps_its_share_of_generated_tasks() -> None:
    acting, tasks = policy(), lamps(8)
    pool = Pool()
    pool.add([Task.of(f"new lamp {i}", name=f"room{i}") for i in range(30)])
    mixed = Mixed(Noting(tasks, acting), pool, cap=0.5)
    c = collector(acting, mixed, tasks, max_lag=2)

    async def main() -> list[Any]:
        steps = await learn(c, 4, 6, 1.0)
        await c.aclose()
        return steps

    for _, groups, _ in simulate(main()):
        assert sum(group.task.prompt[0].text.startswith("new") for group in groups) == 2


# -- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_lag", "refuse"), [(1, 0.0), (2, 0.0), (2, 0.4)])
def test_what_was_in_flight_is_played_again_and_the_bound_is_not_inflated(max_lag: int, refuse: float) -> None:
    """Three updates, a checkpoint, more groups played and thrown away, a resume, three more updates."""

    def fresh() -> tuple[Collector, Noting]:
        acting, tasks = policy(), lamps(50)
        curriculum = Noting(tasks, acting, refuse)
        return collector(acting, curriculum, tasks, max_lag=max_lag), curriculum

    def draws(steps: list[Any]) -> list[tuple[str, int]]:
        return [(g.task.id, g.trajectories[0].seed) for _, groups, _ in steps for g in groups]

    whole, _ = fresh()

    async def uninterrupted() -> list[Any]:
        steps = await learn(whole, 4, 6, 1.0)
        await whole.aclose()
        return steps

    first, _ = fresh()

    async def killed() -> tuple[list[Any], str]:
        steps = await learn(first, 4, 3, 1.0)
        await asyncio.sleep(0.3)
        state = json.dumps(first.state_dict())
        await learn(first, 4, 1, 1.0, 3)  # after the checkpoint, lost
        return steps, state

    second, curriculum = fresh()

    async def resumed(state: str) -> list[Any]:
        second.load_state_dict(json.loads(state))
        second.policy.sampler.version = 3  # type: ignore[misc]
        steps = await learn(second, 4, 3, 1.0, 3)
        left = second._in_flight()
        await second.aclose()
        assert list(second._in_flight()) == list(left)  # a closed collector goes on where it was
        return steps

    expected = draws(simulate(uninterrupted()))
    before, state = simulate(killed())
    in_flight = [Draw.from_json(r, {}) for r in json.loads(state)["in_flight"]]
    assert 0 < len(in_flight) <= max_lag * 4
    after = simulate(resumed(state))
    got = draws(before) + draws(after)
    assert (
        len(set(got)) == len(got) and got == expected
        if refuse == 0
        else set(draws(before)) & set(draws(after)) == set()
    )
    again = [(d.task.id, d.seed) for d in in_flight]
    kept = [d for d in again if d in draws(after)]
    assert draws(after)[: len(kept)] == kept  # the oldest first, as they were
    if refuse == 0:
        assert kept == again
    assert all(metrics["lag"] <= max_lag for _, _, metrics in after)
    assert len(curriculum.drawn) <= (3 + max_lag) * 4 + len(curriculum.refused)


def test_a_synchronous_collector_has_nothing_in_flight_and_old_states_are_read() -> None:
    acting, tasks = policy(), lamps(5)
    c = collector(acting, Uniform(tasks, 1), tasks)
    c.collect_sync(3)
    state = json.loads(json.dumps(c.state_dict()))
    assert state["in_flight"] == []
    del state["in_flight"]
    c.load_state_dict(state)
    assert c.metrics()["lag"] == c.metrics()["lag/mean"] == 0


def test_an_error_leaves_what_was_in_flight_to_the_next_call() -> None:
    acting, tasks = policy(), lamps(9)
    c = collector(acting, Uniform(tasks, 1), tasks, max_lag=1)
    good = acting.sampler.sample
    calls = 0

    async def sample(requests: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise MemoryError("cache full")
        return await good(requests)

    acting.sampler.sample = sample

    async def main() -> list[str]:
        with pytest.raises(MemoryError, match="cache full"):
            await learn(c, 3, 5, 1.0)
        await c.aclose()
        expected = Uniform(tasks, 1)
        order = [expected.next().id for _ in range(9)]
        rest = await c.collect(3)
        await c.aclose()
        first = order.index(rest[0].task.id)
        assert [g.task.id for g in rest] == order[first : first + 3]
        return order

    simulate(main())
