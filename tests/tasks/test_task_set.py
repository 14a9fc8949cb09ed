"""Task sets: splits that cannot overlap, identity by content, failures of scorers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import Message, Task, TaskSet, Trajectory, Turn, Verdict
from rlready.errors import UserError

SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}


def numbers(n: int, family: int = 1) -> TaskSet:
    return TaskSet([Task.of(str(i), family=i // family) for i in range(n)], name="numbers")


@given(st.integers(1, 200), st.integers(0, 2**40))
def test_splits_are_a_partition(n: int, seed: int) -> None:
    tasks = numbers(n)
    parts = tasks.split(SHARES, seed=seed)
    ids = [t.id for part in parts.values() for t in part]
    assert sorted(ids) == sorted(t.id for t in tasks)


@given(st.integers(1, 100), st.integers(1, 100))
def test_a_task_stays_in_its_split_whatever_else_is_there(n: int, more: int) -> None:
    small, large = numbers(n).split(SHARES), numbers(n + more).split(SHARES)
    for name in SHARES:
        assert {t.id for t in small[name]} <= {t.id for t in large[name]}


def test_split_shares_and_keys() -> None:
    parts = numbers(5000).split(SHARES)
    assert [len(parts[name]) / 5000 for name in SHARES] == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    assert [p.name for p in parts.values()] == ["numbers/train", "numbers/dev", "numbers/test"]
    families = numbers(1000, family=10).split(SHARES, key=lambda task: str(task.data["family"]))
    homes = [{t.data["family"] for t in part} for part in families.values()]
    assert not (homes[0] & homes[1] or homes[0] & homes[2] or homes[1] & homes[2])
    other = numbers(1000).split(SHARES, seed=1)["train"]
    assert {t.id for t in other} != {t.id for t in numbers(1000).split(SHARES)["train"]}
    for shares in ({"a": 0.5}, {"a": 1.5, "b": -0.5}):
        with pytest.raises(UserError, match="must be positive and sum to 1"):
            numbers(3).split(shares)


def test_views_keep_the_score() -> None:
    tasks = TaskSet(list(numbers(10)), lambda task, trajectory: 1.0)
    for view in (
        tasks.head(3),
        tasks.shuffle(1),
        tasks[2:5],
        tasks.filter(lambda t: True),
        tasks.split(SHARES)["train"],
    ):
        assert view.scorer is tasks.scorer
    assert [t.id for t in tasks.shuffle(1)] == [t.id for t in tasks.shuffle(1)] != [t.id for t in tasks]
    assert len(tasks.head(3)) == 3 and tasks[4] is tasks.tasks[4]


def test_identity_is_content() -> None:
    assert Task.of("a", x=1, y=2) == Task.of("a", y=2, x=1)
    assert Task.of("a", x=1) != Task.of("a", x=2)
    assert Task((Message.user("a"),), meta={"source": "b"}) == Task.of("a")
    with pytest.raises(UserError, match="tasks 0 and 2 are the same"):
        TaskSet([Task.of("a"), Task.of("b"), Task.of("a")])


def test_the_environments_rewards_are_the_default_score() -> None:
    tasks = numbers(1)
    turns = [Turn([], [], reward=0.25), Turn([], [], reward=0.5)]
    score = asyncio.run(tasks.score(tasks[0], Trajectory(tasks[0], turns)))
    assert (score.value, score.verdict) == (0.75, Verdict.RIGHT)
    assert asyncio.run(tasks.score(tasks[0], Trajectory(tasks[0]))).verdict is Verdict.WRONG
