"""Every accepted form of reward, and every way in which one can be wrong."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from rlready import Message, Score, Task, TaskSet, Trajectory, Turn, Verdict
from rlready.errors import GraderError, UserError
from rlready.scoring import as_scorer, columns_of

TASK = Task.of("What is 2 + 2?", answer="4", level=3)
CHAT = Task((Message("system", "Be brief."), Message.user("2 + 2?")), {"answer": "4"})


def said(text: str, task: Task = TASK) -> Trajectory:
    return Trajectory(task, [Turn([1], list(text.encode()), text=text)])


def score(fn: Any, text: str = "4", task: Task = TASK, **options: Any) -> Score:
    return asyncio.run(as_scorer(fn, **options)(task, said(text, task)))


@pytest.mark.parametrize(
    ("result", "value", "verdict"),
    [
        (1.0, 1.0, Verdict.RIGHT),
        (0.4, 0.4, Verdict.WRONG),
        (-1, -1.0, Verdict.WRONG),
        (2, 2.0, Verdict.RIGHT),
        (True, 1.0, Verdict.RIGHT),
        (False, 0.0, Verdict.WRONG),
        (np.float32(1), 1.0, Verdict.RIGHT),
        (np.bool_(True), 1.0, Verdict.RIGHT),
        (np.asarray([0.25]), 0.25, Verdict.WRONG),
        (Score.no_answer(), 0.0, Verdict.NO_ANSWER),
        (Score.right(0.2, style=0.5), 0.2, Verdict.RIGHT),
    ],
)
def test_plain_results(result: Any, value: float, verdict: Verdict) -> None:
    def sync(task: Task, trajectory: Trajectory) -> Any:
        return result

    async def later(task: Task, trajectory: Trajectory) -> Any:
        await asyncio.sleep(0)
        return result

    for fn in (sync, later):
        got = score(fn)
        assert got.value == pytest.approx(value)
        assert got.verdict is verdict


def test_torch_scalars_are_numbers() -> None:
    torch = pytest.importorskip("torch")
    assert score(lambda task, trajectory: torch.tensor(0.5)).value == 0.5
    assert score(lambda task, trajectory: torch.zeros(2)).verdict is Verdict.GRADER_FAILED


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (math.nan, "returned nan for task"),
        (math.inf, "returned inf for task"),
        (np.float64("-inf"), "returned -inf"),
        ("1.0", "'1.0' (a str) instead of a number"),
        ([1.0], "(a list) instead of a number"),
        (None, "no reward applies"),
        (Score(math.nan), "returned nan"),
        (Score("high"), "whose value is 'high'"),  # type: ignore[arg-type]
        (Score(1.0, parts={"style": math.nan}), 'part "style"'),
    ],
)
def test_bad_results_are_failures_with_a_sentence(result: Any, words: str) -> None:
    def judge(task: Task, trajectory: Trajectory) -> Any:
        return result

    got = score(judge)
    assert got.verdict is Verdict.GRADER_FAILED
    assert math.isnan(got.value)
    assert words in got.note
    assert '"judge"' in got.note and TASK.id in got.note


def test_a_reward_that_raises_names_the_place() -> None:
    def judge(task: Task, trajectory: Trajectory) -> float:
        return 1 / int(task.data["level"] - 3)

    got = score(judge)
    assert got.verdict is Verdict.GRADER_FAILED
    assert "raised ZeroDivisionError" in got.note and "test_scoring.py line" in got.note


def test_a_grader_error_is_a_failure() -> None:
    def judge(task: Task, trajectory: Trajectory) -> float:
        raise GraderError("the judge is away")

    assert "the judge is away" in score(judge).note


def test_trl_form_gets_one_element_lists_of_text() -> None:
    seen: dict[str, Any] = {}

    def judge(prompts: Any, completions: Any, answer: Any, level: Any, **kwargs: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions, answer=answer, level=level, **kwargs)
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    assert score(judge).verdict is Verdict.RIGHT
    assert seen["prompts"] == ["What is 2 + 2?"] and seen["completions"] == ["4"]
    assert seen["answer"] == ["4"] and seen["level"] == [3]
    assert seen["completion_ids"] == [[ord("4")]]
    assert columns_of(judge) == ("answer", "level")


def test_trl_conversational_form_for_chat_prompts() -> None:
    def judge(completions: Any, **kwargs: Any) -> list[float]:
        return [float(c[0]["content"] == "4" and c[0]["role"] == "assistant") for c in completions]

    assert score(judge, task=CHAT).value == 1.0
    assert score(judge, conversational=True).value == 1.0
    wrong_form = score(judge)
    assert wrong_form.verdict is Verdict.GRADER_FAILED and "conversational" in wrong_form.note


def test_trl_dialogue_holds_the_tools_replies_and_no_probe() -> None:
    def judge(completions: Any, **kwargs: Any) -> list[float]:
        assert [m["role"] for m in completions[0]] == ["assistant", "tool", "assistant"]
        return [float(completions[0][1]["content"] == "12")]

    turns = [
        Turn([1], [2], text="call"),
        Turn([1], [2], text="guess", tag="probe"),
        Turn([1], [2], text="12", context=(Message("assistant", "call"), Message("tool", "12"))),
    ]
    assert asyncio.run(as_scorer(judge)(CHAT, Trajectory(CHAT, turns))).value == 1.0


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([], "0 rewards for 1 completion"),
        ([1.0, 2.0], "2 rewards for 1 completion"),
        (1.0, "instead of a list"),
        ([None], "no reward applies"),
        ([math.nan], "returned nan"),
        (["x"], "instead of a number"),
    ],
)
def test_trl_bad_returns(returned: Any, words: str) -> None:
    def judge(completions: Any, **kwargs: Any) -> Any:
        return returned

    got = score(judge)
    assert got.verdict is Verdict.GRADER_FAILED and words in got.note


def test_trl_async_tensor_and_metric() -> None:
    async def judge(completions: Any, log_metric: Any, **kwargs: Any) -> Any:
        log_metric("length", len(completions[0]))
        return np.asarray([1.0])

    got = score(judge, "four")
    assert got.verdict is Verdict.RIGHT and got.parts == {"length": 4.0}


def test_trl_missing_column_is_named() -> None:
    def judge(completions: Any, gold: Any) -> list[float]:
        return [1.0]

    note = score(judge).note
    assert '"gold"' in note and "answer, level" in note


def test_what_cannot_be_a_reward_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"takes \(task\)"):
        as_scorer(lambda task: 1.0)
    with pytest.raises(UserError, match="must be a function"):
        as_scorer(3)  # type: ignore[arg-type]

    def schedule(completions: Any, trainer_state: Any) -> list[float]:
        return [trainer_state.global_step]

    with pytest.raises(UserError, match="trainer_state"):
        as_scorer(schedule)


def test_a_callable_object_and_a_scorer_are_taken() -> None:
    class Judge:
        async def __call__(self, task: Task, trajectory: Trajectory) -> float:
            return 1.0

    scorer = as_scorer(Judge())
    assert as_scorer(scorer) is scorer
    assert asyncio.run(scorer(TASK, said("4"))).value == 1.0
    assert scorer.name == "Judge"


def test_right_at_moves_the_threshold() -> None:
    assert score(lambda task, trajectory: 0.6, right_at=0.5).verdict is Verdict.RIGHT
    assert score(lambda task, trajectory: 0.6).verdict is Verdict.WRONG


def test_a_slow_reward_in_a_thread_does_not_hold_up_others() -> None:
    def slow(task: Task, trajectory: Trajectory) -> float:
        time.sleep(0.3)
        return 1.0

    async def run() -> tuple[float, list[Score]]:
        scorer = as_scorer(slow, thread=True)
        start = time.perf_counter()
        waiting = [asyncio.ensure_future(scorer(TASK, said("4"))) for _ in range(20)]
        await asyncio.sleep(0.01)
        held_up = time.perf_counter() - start
        scores = await asyncio.gather(*waiting)
        assert time.perf_counter() - start < 2.0  # 20 in turn would take 6 seconds
        return held_up, list(scores)

    held_up, scores = asyncio.run(run())
    assert held_up < 0.25
    assert all(s.value == 1.0 for s in scores)


def test_a_reward_past_its_deadline_is_left_behind() -> None:
    def hang(task: Task, trajectory: Trajectory) -> float:
        time.sleep(5)
        return 1.0

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(as_scorer(hang, thread=True)(TASK, said("4")), 0.05)

    start = time.perf_counter()
    asyncio.run(run())
    assert time.perf_counter() - start < 1.0


def test_task_set_scores_through_the_adapter() -> None:
    tasks = TaskSet([TASK], lambda task, trajectory: trajectory.turns[-1].text == task.data["answer"])
    assert asyncio.run(tasks.score(TASK, said("4"))).verdict is Verdict.RIGHT
    assert asyncio.run(tasks.score(TASK, said("5"))).verdict is Verdict.WRONG
    empty = asyncio.run(tasks.score(TASK, Trajectory(TASK)))
    assert empty.verdict is Verdict.GRADER_FAILED and "IndexError" in empty.note
