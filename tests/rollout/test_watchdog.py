"""A hang is never silent: it is named in the log and ends the run."""

import asyncio
import contextlib
import logging
import threading
import time

import pytest

from rlready.curriculum.samplers import Uniform
from rlready.errors import UserError
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import Collector, play_many
from rlready.rollout.gather import settle
from rlready.rollout.watchdog import Board, Stuck, Watchdog
from tests.rollout.rollout_fakes import Broken, Lamps, lamps, policy


class Sleepy(Lamps):
    """One of its episodes sleeps without awaiting."""

    async def step(self, action):
        if self.messages[0].text.endswith("room1") and len(self.messages) == 3:
            time.sleep(20)
        return await super().step(action)


def test_a_blocking_environment_is_named_and_interrupted(caplog):
    tasks = lamps(4)
    c = Collector(policy(), Sleepy, tasks, Uniform(tasks), group_size=2, max_steps=6, deadline=60, watchdog=0.6)
    began = time.perf_counter()
    with caplog.at_level(logging.INFO), pytest.raises(Stuck) as caught:
        c.collect_sync(4)
    assert time.perf_counter() - began < 5  # the sleep of 20 s itself was interrupted
    assert isinstance(caught.value, UserError)
    text = str(caught.value)
    assert f"Sleepy, task {tasks[1].id}, phase env" in text and "Sleepy.step (test_watchdog.py, line" in text
    levels = [r.levelname for r in caplog.records if r.name == "rlready.rollout.watchdog"]
    assert levels == ["WARNING", "ERROR", "INFO"]
    assert "time.sleep(20)" in caplog.text  # the stack of the loop's thread


def test_of_many_episodes_that_would_block_only_the_first_does():
    class Sleeper(Lamps):
        async def step(self, action):
            time.sleep(20)

    tasks = lamps(2)
    c = Collector(policy(), Sleeper, tasks, Uniform(tasks), group_size=8, max_steps=6, deadline=60, watchdog=0.6)
    began = time.perf_counter()
    with pytest.raises(Stuck, match="Sleeper"):
        c.collect_sync(2)
    assert time.perf_counter() - began < 3  # 16 episodes of 0.6 s each would be 10


def test_one_that_never_yields_to_cancellation_is_abandoned_also_at_the_end_of_the_loop(monkeypatch):
    async def quick(tasks, seconds=15.0):
        await settle(tasks, 0.3)

    monkeypatch.setattr("rlready.rollout.gather.settle", quick)

    class Mule(Lamps):
        async def step(self, action):
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)

    tasks = lamps(1)
    c = Collector(policy(), Mule, tasks, Uniform(tasks), group_size=2, max_steps=6, deadline=0.3, watchdog=0.8)
    failed = []

    def main():
        try:
            c.collect_sync(1)
        except Stuck as error:
            failed.append(str(error))

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(timeout=8)
    assert failed and "ignores its deadline" in failed[0]


def test_a_blocking_reward_is_named_although_scorers_swallow_exceptions():
    tasks = lamps(2)

    async def scorer(task, trajectory):
        time.sleep(20)

    tasks.scorer = scorer
    c = Collector(policy(), Lamps, tasks, Uniform(tasks), group_size=1, max_steps=2, deadline=60, watchdog=0.5)
    began = time.perf_counter()
    with pytest.raises(Stuck, match="phase score"):
        c.collect_sync(1)
    assert time.perf_counter() - began < 5


def test_an_environment_that_awaits_for_ever_misses_its_deadline():
    tasks = lamps(1, fault="step hangs")
    (trajectory,) = asyncio.run(play_many(tasks, Broken, PolicyActor(policy()), 1, 0, deadline=0.2))
    assert "missed the deadline of 0.2 s in phase env" in trajectory.failure


def test_one_that_ignores_its_deadline_is_named_and_ends_the_run(caplog):
    tasks = lamps(1, fault="stubborn")
    Broken.free = False

    async def main():
        asyncio.get_running_loop().call_later(1.5, setattr, Broken, "free", True)  # so that the test itself can end
        await play_many(tasks, Broken, PolicyActor(policy()), 1, 0, deadline=0.2, watchdog=0.6)

    with caplog.at_level(logging.ERROR), pytest.raises(Stuck, match=r"none has moved for .*Broken, task .* phase env"):
        asyncio.run(main())
    assert "ignores its deadline" in caplog.text


def test_it_interrupts_a_loop_in_another_thread():
    """No signal reaches a thread; the error is raised between two steps of the interpreter."""
    found = []

    async def spin():
        board = Board()
        activity = board.open("Spinner", "t")
        with Watchdog(board, 0.4):
            activity.enter("env")
            end = time.perf_counter() + 20
            while time.perf_counter() < end:
                pass

    def main():
        try:
            asyncio.run(spin())
        except Stuck as error:
            found.append(str(error))

    thread = threading.Thread(target=main)
    began = time.perf_counter()
    thread.start()
    thread.join(timeout=10)
    assert time.perf_counter() - began < 5 and "Spinner, task t, phase env" in found[0]


def test_it_stays_quiet_while_things_move_and_when_nothing_plays(caplog):
    async def main():
        board = Board()
        with Watchdog(board, 0.3):
            await asyncio.sleep(0.5)  # nothing plays
            activity = board.open("Env", "t")
            for _ in range(12):
                await asyncio.sleep(0.05)
                activity.enter("env")
            board.close(activity)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert not caplog.records
    assert not [t for t in threading.enumerate() if t.name == "rlready-watchdog"]


def test_another_error_passes_through():
    async def main():
        with Watchdog(Board(), 5):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
