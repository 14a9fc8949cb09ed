"""`check_taskset`: sound sets pass, hackable rewards are told what trivial answers earn."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from rlready import Score, Task, TaskSet, Trajectory, check_taskset, rewards
from rlready.errors import UserError


def sums(n: int = 50, score: Any = None) -> TaskSet:
    return TaskSet([Task.of(f"{i}+{i + 9}=", answer=2 * i + 9) for i in range(1, n + 1)], score or rewards.math())


def said(trajectory: Trajectory) -> str:
    return trajectory.turns[-1].text


def test_a_sound_set_passes_and_says_the_floor() -> None:
    found = check_taskset(sums())
    assert found.ok and not found.warnings, str(found)
    assert "The best of 8 is" in found.of("trivial answers")[0].text


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda task, trajectory: 0.1, "An empty answer is paid in 50 of 50 tasks (mean reward 0.1)"),
        (lambda task, trajectory: "A" in said(trajectory), "Answering 'A' is right in 100%"),
        (
            lambda task, trajectory: str(task.data["answer"] % 10) in said(trajectory),
            "every choice at once is right in 100%",
        ),
        (lambda task, trajectory: "=" in said(trajectory), "Answering the prompt repeated is right in 100%"),
    ],
)
def test_what_trivial_answers_earn(score: Any, words: str) -> None:
    texts = [f.text for f in check_taskset(sums(score=score)).errors]
    assert any(words in text for text in texts), texts


def test_a_constant_that_is_often_right_is_a_warning() -> None:
    tasks = TaskSet([Task.of(f"{i}?", answer="yes" if i % 5 < 2 else f"no {i}") for i in range(50)], rewards.exact())
    (warning,) = check_taskset(tasks).of("trivial answers")[:1]
    assert warning.level == "warning" and "'yes' is right in 40%" in warning.text


def test_a_gold_that_is_not_graded_right() -> None:
    def strict(task: Task, trajectory: Trajectory) -> bool:
        return said(trajectory) == f"<{task.data['answer']}>"

    strict.columns = ("answer",)  # type: ignore[attr-defined]
    texts = [f.text for f in check_taskset(sums(score=strict))]
    assert any('text of "answer" itself is not graded right in 50 of 50' in t for t in texts)
    assert any("Every answer tried earned 0" in t for t in texts)


def test_a_gold_the_grader_cannot_read_is_counted() -> None:
    tasks = TaskSet([Task.of("x?", answer="a square, surely"), Task.of("y?", answer="4")], rewards.math())
    (error,) = check_taskset(tasks).errors
    assert "The score failed on" in error.text and "'a square, surely' cannot be read as mathematics" in error.text


def test_scores_that_raise() -> None:
    def broken(task: Task, trajectory: Trajectory) -> float:
        return 1 / (task.data["answer"] * 0)

    (error,) = check_taskset(sums(score=broken)).errors
    assert "raised ZeroDivisionError" in error.text and "failed on 400 of the answers" in error.text


@pytest.mark.parametrize("kind", ["blocks", "awaits"])
def test_scores_that_never_return(kind: str) -> None:
    def blocks(task: Task, trajectory: Trajectory) -> float:
        time.sleep(30)
        return 1.0

    async def awaits(task: Task, trajectory: Trajectory) -> float:
        await asyncio.sleep(30)
        return 1.0

    began = time.monotonic()
    found = check_taskset(sums(2, score={"blocks": blocks, "awaits": awaits}[kind]), deadline=0.2)
    assert time.monotonic() - began < 3
    assert f'"{kind}" has not returned after 0.2 seconds for task' in found.of("hang")[0].text and not found.ok


def test_impure_scores() -> None:
    count = iter(range(10**6))
    drifting = check_taskset(sums(score=lambda task, trajectory: float(next(count))))
    assert any("scored" in f.text and "then" in f.text for f in drifting.of("purity"))

    def scribble(task: Task, trajectory: Trajectory) -> float:
        trajectory.info["seen"] = True
        return float(said(trajectory) == "7")

    assert "changes the trajectory" in check_taskset(sums(score=scribble)).of("purity")[0].text

    def lucky(task: Task, trajectory: Trajectory) -> float:
        random.random()
        return float(said(trajectory) == "7")

    assert "global random generator" in check_taskset(sums(score=lucky)).of("purity")[0].text


def test_slow_scores_are_told_about_threads() -> None:
    def slow(task: Task, trajectory: Trajectory) -> float:
        time.sleep(0.06)
        return float(said(trajectory) == "7")

    assert "thread=True" in check_taskset(sums(2, slow)).of("time")[0].text
    assert not check_taskset(sums(2, rewards.as_scorer(slow, thread=True))).of("time")


def test_prompts_ids_and_data() -> None:
    mixed = TaskSet([Task.of("a", n=1), Task(data={"n": 2})], rewards.exact("n"))
    assert "1 of 2 tasks have an empty prompt" in check_taskset(mixed).of("prompts")[0].text
    bare = TaskSet([Task(data={"n": 1}), Task(data={"n": 2})])
    assert check_taskset(bare).ok and "No task has a prompt" in check_taskset(bare).of("prompts")[0].text
    twins = TaskSet([Task.of("a", n=1), Task.of("a", n=2)], rewards.exact("n"))
    assert not check_taskset(TaskSet(list(twins))).warnings  # an environment may hide what differs
    assert "1 of 2 tasks repeat the prompt" in check_taskset(twins).warnings[0].text
    odd = TaskSet([Task.of("a", n=float("nan"))])
    assert "is not JSON" in check_taskset(odd).errors[0].text
    doubled = sums(3)
    doubled.tasks.append(doubled.tasks[0])
    assert "1 ids stand more than once" in check_taskset(doubled).of("ids")[0].text
    empty = sums(1).filter(lambda task: False)
    assert check_taskset(empty).errors[0].text == "The set is empty."
    with pytest.raises(UserError, match="n of at least 1"):
        check_taskset(sums(), n=0)


def test_scores_of_its_own_kind_pass_through() -> None:
    def graded(task: Task, trajectory: Trajectory) -> Score:
        if not said(trajectory):
            return Score.no_answer()
        return Score.right() if said(trajectory) == str(task.data["answer"]) else Score.wrong(-1.0)

    found = check_taskset(sums(score=graded))
    assert found.ok and "mean reward" in found.of("trivial answers")[0].text
