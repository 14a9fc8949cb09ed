"""Collecting: seeds, refills, failures, resume, staleness, progress, time."""

import asyncio
import json
from collections import Counter

import pytest

from rlready.curriculum.gates import Gated, ZeroSignal
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import Observation, Step
from rlready.errors import UserError
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import Collector, Staleness, play_many
from rlready.seeds import derive
from rlready.types import Score, Task
from tests.rollout.rollout_fakes import Broken, Lamps, lamps, policy


def collector(tasks, env=Lamps, curriculum=None, acting=None, **kw):
    kw = {"group_size": 4, "max_steps": 6, "seed": 7, "deadline": 5.0} | kw
    return Collector(acting or policy(), env, tasks, curriculum or Uniform(tasks, 1), **kw)


def picture(groups):
    """Everything that must be the same in a repeated run."""
    return [
        [(t.task.id, t.seed, t.reward, [(u.prompt_ids, u.completion_ids, u.logprobs) for u in t.turns]) for t in group]
        for group in groups
    ]


def test_members_of_a_group_share_their_world_and_visits_do_not():
    tasks = lamps(3)
    c = collector(tasks)
    groups = c.collect_sync(3) + c.collect_sync(3)
    seeds = {}
    for group in groups:
        assert len(group) == 4 and len({t.seed for t in group}) == 1
        seeds.setdefault(group.task.id, []).append(group.trajectories[0].seed)
    for name, both in seeds.items():
        assert both == [derive(7, "env", name, 0), derive(7, "env", name, 1)]
    assert len({tuple(u.text for u in t.turns) for t in groups[0]}) > 1  # other noise for each member


def test_episodes_wait_together_and_concurrency_is_kept():
    tasks = lamps(8)
    c = collector(tasks)
    c.collect_sync(8)
    assert max(c.policy.sampler.batches) == 32
    narrow = collector(tasks, concurrency=5)
    narrow.collect_sync(8)
    assert max(narrow.policy.sampler.batches) == 5


def test_counts_and_metrics():
    tasks = lamps(4)
    c = collector(tasks)
    groups = c.collect_sync(4)
    every = [t for g in groups for t in g]
    m = c.metrics()
    assert c.transitions == sum(t.env_steps for t in every) == m["env_steps"] == m["transitions"]
    assert c.episodes == m["episodes"] == 16 and m["groups"] == 4 and m["refused"] == 0 and m["failures"] == 0
    assert m["reward"] == pytest.approx(sum(t.reward for t in every) / 16)
    assert m["success"] == sum(t.success for t in every) / 16
    assert m["length"] == sum(t.length for t in every) / 16
    assert m["uniform"] == sum(len({t.reward for t in g}) == 1 for g in groups) / 4
    shares = [m[f"time/{name}"] for name in ("env", "score", "sample", "wait")]
    assert sum(shares) == pytest.approx(1) and min(shares) >= 0
    assert m["curriculum/epoch"] == 1.0


def test_time_is_booked_where_it_went():
    class Busy(Lamps):
        async def step(self, action):
            sum(range(400_000))
            return await super().step(action)

    class Remote(Lamps):
        async def step(self, action):
            await asyncio.sleep(0.05)
            return await super().step(action)

    def shares(env, delay):
        tasks = lamps(2)
        c = collector(tasks, env, acting=policy(delay))
        c.collect_sync(2)
        return c.metrics()

    assert shares(Busy, 0.0)["time/env"] > 0.7
    assert shares(Remote, 0.0)["time/wait"] > 0.6
    assert shares(Lamps, 0.05)["time/sample"] > 0.7


class Picky(Uniform):
    """Refuses chosen tasks."""

    def __init__(self, tasks, refuse):
        super().__init__(tasks, 1)
        self.refuse = refuse
        self.seen = []

    def observe(self, groups):
        self.seen += [g.task.id for g in groups]

    def admit(self, group):
        return group.task.id not in self.refuse


def test_refused_groups_are_refilled_and_counted():
    tasks = lamps(8)
    bad = {tasks[i].id for i in range(3)}
    curriculum = Picky(tasks, bad)
    c = collector(tasks, curriculum=curriculum)
    groups = c.collect_sync(5)
    assert len(groups) == 5 and not bad & {g.task.id for g in groups}
    assert c.metrics()["refused"] == len(curriculum.seen) - 5 == len([x for x in curriculum.seen if x in bad]) > 0


def test_refills_are_bounded(caplog):
    tasks = lamps(4)
    curriculum = Picky(tasks, {t.id for t in tasks})
    c = collector(tasks, curriculum=curriculum, max_refills=2)
    assert c.collect_sync(3) == []
    assert len(curriculum.seen) == 3 + 6
    assert "0 of 3 groups were admitted after 6 refills" in caplog.text


def test_zero_signal_is_refilled_until_its_own_bound():
    tasks = lamps(6)

    async def always(task, trajectory):
        return Score.right()

    tasks.scorer = always
    c = collector(tasks, curriculum=Gated(Uniform(tasks, 1), ZeroSignal(refill=1)))
    assert len(c.collect_sync(4)) == 4
    m = c.metrics()
    assert (m["curriculum/uniform_refused"], m["curriculum/uniform_passed"], m["uniform"]) == (4, 4, 1.0)


def mostly_fine(bad):
    """An environment in which the episodes with these numbers die."""
    count = iter(range(10**6))

    class Mortal(Lamps):
        def __init__(self):
            super().__init__()
            self.number = next(count)

        async def step(self, action):
            if self.number in bad:
                raise OSError("broken pipe")
            return await super().step(action)

    return Mortal


def test_failures_are_excluded_counted_and_the_rest_goes_on():
    tasks = lamps(8)
    c = collector(tasks, mostly_fine({3, 17}))
    groups = c.collect_sync(8)
    assert sum(len(g.valid) for g in groups) == 30 and c.metrics()["failures"] == 2 / 32
    assert c.failures.total() == 2 and "OSError: broken pipe" in next(iter(c.failures))
    assert sum(len(g.rewards) for g in groups) == 30


def test_too_many_failures_stop_with_the_commonest_reason():
    tasks = lamps(8, fault="step raises")
    c = collector(tasks, Broken)
    with pytest.raises(UserError, match=r"8 of the last 8 episodes failed.*max_failures=0\.05.*8 times.*the fuse blew"):
        c.collect_sync(2)
    assert c.failures.total() == 8


def test_late_failures_are_not_hidden_by_a_long_good_past():
    tasks = lamps(8)
    c = collector(tasks, mostly_fine(set(range(320, 400))))
    for _ in range(10):
        c.collect_sync(8)
    with pytest.raises(UserError, match="of the last 256 episodes failed"):
        c.collect_sync(8)


def test_failing_graders_count_too():
    tasks = lamps(4)

    async def raises(task, trajectory):
        raise LookupError("no gold")

    tasks.scorer = raises
    with pytest.raises(UserError, match=r"the grader failed: LookupError: no gold"):
        collector(tasks).collect_sync(4)


def test_an_error_of_the_policy_ends_all_episodes():
    tasks = lamps(4)
    acting = policy()
    good = acting.sampler.sample

    async def sample(requests):
        if len(acting.sampler.requests) > 20:
            raise MemoryError("cache full")
        return await good(requests)

    acting.sampler.sample = sample
    opened, closed = Lamps.opened, Lamps.closed
    with pytest.raises(MemoryError, match="cache full"):
        collector(tasks, acting=acting).collect_sync(4)
    assert Lamps.opened - opened == Lamps.closed - closed == 16


def test_resumed_equals_uninterrupted():
    def fresh():
        tasks = lamps(5)
        return collector(tasks, curriculum=Gated(Uniform(tasks, 1), ZeroSignal(refill=1)))

    one = fresh()
    whole = [picture(one.collect_sync(3)) for _ in range(4)]
    first = fresh()
    parts = [picture(first.collect_sync(3)) for _ in range(2)]
    saved = json.loads(json.dumps(first.state_dict()))
    second = fresh()
    second.load_state_dict(saved)
    parts += [picture(second.collect_sync(3)) for _ in range(2)]
    assert parts == whole
    assert second.state_dict() == one.state_dict()


def test_progress_is_told_for_every_episode():
    told = []
    tasks = lamps(4)
    c = collector(tasks, on_progress=lambda done, total: told.append((done, total)))
    c.collect_sync(2)
    assert told == [(i, 8) for i in range(1, 9)]


def test_bad_numbers_are_refused():
    with pytest.raises(UserError, match="group_size is 0"):
        collector(lamps(2), group_size=0)
    with pytest.raises(UserError, match="0 groups were asked for"):
        collector(lamps(2)).collect_sync(0)
    with pytest.raises(UserError, match="max_lag needs a running event loop"):
        collector(lamps(2), max_lag=1).collect_sync(1)


# Asynchronous collection


def test_the_staleness_rule():
    rule = Staleness(batch=4, max_lag=1)
    assert rule.capacity == 4  # before the first batch is asked for: max_lag batches
    rule.asked = 1
    assert rule.capacity == 8
    rule.started = 8
    assert rule.capacity == 0
    rule.asked = 2
    assert rule.capacity == 4
    assert Staleness(4, max_lag=0, asked=1).capacity == 4


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_no_group_is_older_than_max_lag_updates(max_lag):
    """Episodes of very different lengths, while the version rises by one after each batch."""

    class Uneven(Lamps):
        async def step(self, action):
            await asyncio.sleep(0.03 if self.hidden == 2 else 0.0)
            return await super().step(action)

    async def main():
        tasks = lamps(9)
        acting = policy()
        c = collector(tasks, Uneven, acting=acting, max_lag=max_lag, group_size=2)
        lags, batches = [], []
        for version in range(1, 9):
            batches.append(await c.collect(3))
            lags.append(c.metrics()["lag"])
            await asyncio.sleep(0.05)  # the update, during which rollouts go on
            acting.sampler.version = version
        await c.aclose()
        return lags, batches

    lags, batches = asyncio.run(main())
    assert all(len(b) == 3 for b in batches)
    assert max(lags) == max_lag  # the bound is kept, and used
    order = [g.task.id for b in batches for g in b]
    expected = Uniform(lamps(9), 1)
    assert order == [expected.next().id for _ in order]  # in the order they were started


def test_lagged_collection_refills_bounds_and_reports_errors():
    async def main():
        tasks = lamps(6)
        refuse = {tasks[0].id, tasks[1].id}
        c = collector(tasks, curriculum=Picky(tasks, refuse), max_lag=1)
        for _ in range(4):
            groups = await c.collect(3)
            assert len(groups) == 3 and not refuse & {g.task.id for g in groups}
        with pytest.raises(UserError, match="all batches have one size; 3 became 2"):
            await c.collect(2)
        await c.aclose()

        nothing = collector(tasks, curriculum=Picky(tasks, {t.id for t in tasks}), max_lag=1, max_refills=1)
        assert await nothing.collect(2) == []
        assert await nothing.collect(2) == []
        await nothing.aclose()

        broken = collector(lamps(4, fault="step raises"), Broken, max_lag=1)
        with pytest.raises(UserError, match="the fuse blew"):
            await broken.collect(4)

    asyncio.run(asyncio.wait_for(main(), 20))


# Many episodes


def test_play_many_goes_round_the_tasks_with_fresh_worlds():
    tasks = lamps(3)
    told = []
    played = asyncio.run(
        play_many(tasks, Lamps, PolicyActor(policy()), 7, 11, max_steps=5, on_progress=lambda *x: told.append(x))
    )
    assert [t.task.id for t in played] == [tasks[i % 3].id for i in range(7)]
    assert [t.seed for t in played] == [derive(11, "env", tasks[i % 3].id, i // 3) for i in range(7)]
    assert told[-1] == (7, 7)
    chosen = [tasks[2], tasks[0], tasks[2]]
    played = asyncio.run(play_many(tasks, Lamps, PolicyActor(policy()), chosen, 11, max_steps=5))
    assert [t.task.id for t in played] == [t.id for t in chosen]
    assert Counter(t.seed for t in played).most_common(1)[0][1] == 1


def test_play_many_needs_tasks():
    with pytest.raises(UserError, match="there are no tasks"):
        asyncio.run(play_many(lamps(0), Lamps, PolicyActor(policy()), 3, 0))


def test_generated_tasks_outside_the_set_are_graded_too():
    tasks = lamps(2)
    other = Task.of("another lamp", name="elsewhere")
    (trajectory,) = asyncio.run(play_many(tasks, Lamps, PolicyActor(policy()), [other], 0, max_steps=5))
    assert trajectory.task is other and not trajectory.excluded


def test_the_environment_sees_the_text_that_was_sampled():
    heard = []

    class Ear(Lamps):
        async def step(self, action):
            heard.append(action)
            return Step(Observation(self.messages), terminated=True)

    (trajectory,) = asyncio.run(play_many(lamps(1), Ear, PolicyActor(policy()), 1, 0))
    assert heard == [trajectory.turns[0].text] and heard[0] in ("press 0", "press 1", "press 2", "done")
