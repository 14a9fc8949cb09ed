"""The difficulty filter: what each pass drops and why, on policies whose skill is known."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import rewards
from rlready.curriculum.difficulty import REASONS, Filtered, Graded, first_pass, grade, second_pass
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.seeds import hashed_uniform
from rlready.tasks.base import TaskSet
from rlready.types import Task, Trajectory, Turn, Verdict


def sample(text: str, verdict: Verdict | None) -> Trajectory:
    reward = math.nan if verdict in (None, Verdict.GRADER_FAILED) else float(verdict is Verdict.RIGHT)
    return Trajectory(Task.of("q"), [Turn([1], [2], text=text)], reward=reward, verdict=verdict)


def text_of(trajectory: Trajectory) -> str:
    return trajectory.turns[-1].text


def graded(right: int, wrong: int, common_wrong: int = 0, name: str = "t") -> Graded:
    """So many right answers, so many wrong ones of which some agree."""
    samples = [sample("gold", Verdict.RIGHT)] * right + [sample("other", Verdict.WRONG)] * common_wrong
    samples += [sample(f"odd {i}", Verdict.WRONG) for i in range(wrong - common_wrong)]
    return Graded.of(name, samples, text_of)


@pytest.mark.parametrize(
    ("each", "first", "second"),
    [
        (graded(0, 16), "never solved", "never solved"),
        (graded(1, 15), "kept", "kept"),
        (graded(14, 2), "kept", "kept"),
        (graded(15, 1), "nearly always solved", "nearly always solved"),
        (graded(16, 0), "nearly always solved", "nearly always solved"),
        (graded(0, 16, 9), "never solved", "wrong reference"),
        (graded(0, 16, 8), "never solved", "never solved"),
        (graded(3, 13, 9), "kept", "wrong reference"),
        (graded(7, 9, 8), "kept", "kept"),
        (graded(0, 0), "not judged", "not judged"),
    ],
)
def test_reasons_by_hand(each: Graded, first: str, second: str) -> None:
    assert first_pass([each]).reasons["t"] == first
    assert second_pass([each]).reasons["t"] == second


def test_failed_samples_and_missing_answers_count_as_they_should() -> None:
    samples = [sample("a", Verdict.WRONG)] * 3 + [sample("", Verdict.NO_ANSWER)] * 4
    samples += [sample("a", Verdict.GRADER_FAILED), sample("a", None)]
    each = Graded.of("t", samples, text_of)
    assert each == Graded("t", samples=7, right=0, common="a", agreeing=3, common_right=False)
    assert second_pass([each]).reasons["t"] == "never solved"  # 3 of 7 agree
    assert second_pass([each], majority=0.4).reasons["t"] == "wrong reference"


def test_one_answer_judged_both_ways_is_no_wrong_reference() -> None:
    """A grader that looks at more than the answer (units, form) may call the same answer right and wrong."""
    samples = [sample("a", Verdict.WRONG)] * 9 + [sample("a", Verdict.RIGHT)]
    assert second_pass([Graded.of("t", samples, text_of)]).reasons["t"] == "kept"


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16), st.integers(0, 16)), max_size=20))
def test_every_task_has_one_reason_and_json_gives_it_back(counts: list[tuple[int, int, int]]) -> None:
    many = [graded(r, w, min(c, w), name=str(i)) for i, (r, w, c) in enumerate(counts)]
    for result in (first_pass(many), second_pass(many, majority=0.75)):
        assert list(result.reasons) == [each.task for each in many]
        assert sum(result.counts().values()) == len(many) and set(result.counts()) == set(REASONS)
        again = Filtered.from_json(json.loads(json.dumps(result.to_json())))
        assert (again.reasons, again.graded, again.settings) == (result.reasons, result.graded, result.settings)
        assert again.kept == result.kept == set(result.dropped_for("kept"))


@pytest.mark.parametrize("settings", [{"easy": 0.0}, {"easy": 1.5}, {"majority": 0.0}, {"majority": -1.0}])
def test_bounds_that_are_no_shares(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must be a share"):
        second_pass([], **settings)


class Skilled:
    """An actor that knows the true answer of each task and gives it with a skill of its own per task."""

    def __init__(self, truth: dict[str, str], skill: dict[str, float]) -> None:
        self.truth, self.skill = truth, skill

    def start(self, task: Task, seed: int, sample: int = 0) -> Skilled.Player:
        return Skilled.Player(self, task, seed)

    class Player:
        def __init__(self, of: Skilled, task: Task, seed: int) -> None:
            self.of, self.task, self.seed = of, task, seed

        async def act(self, observation: object, trajectory: Trajectory) -> Turn:
            question = self.task.prompt[0].text
            u = hashed_uniform("skilled", question, self.seed)
            said = self.of.truth[question] if u < self.of.skill[question] else str(1000 + int(1e6 * u))
            return Turn([1], [2], text=said)

        def close(self) -> None:
            pass


def test_two_passes_find_what_was_planted() -> None:
    """Skills spread evenly; the second policy is better everywhere; a tenth of the references is wrong."""
    questions = [f"q{i}" for i in range(100)]
    truth = {q: str(i) for i, q in enumerate(questions)}
    weak = {q: i / 100 for i, q in enumerate(questions)}
    strong = {q: min(1.0, 0.6 + skill) for q, skill in weak.items()}
    planted = {q for i, q in enumerate(questions) if i % 10 == 5}
    tasks = TaskSet(
        [Task.of(q, answer=str(int(truth[q]) + 500 * (q in planted))) for q in questions], rewards.exact("answer")
    )
    wrong = {t.id for t in tasks if t.prompt[0].text in planted}

    first = first_pass(asyncio.run(grade(Skilled(truth, weak), tasks, ChatEnv, answer=text_of, seed=1)))
    assert wrong <= set(first.dropped_for("never solved"))
    assert first.counts()["nearly always solved"] >= 5
    assert all(0 < first.graded[name].rate < 0.9 for name in first.kept)

    second = second_pass(asyncio.run(grade(Skilled(truth, strong), tasks, ChatEnv, answer=text_of, seed=2)))
    assert all(each.samples == 16 for each in second.graded.values())
    found = set(second.dropped_for("wrong reference"))
    assert len(found & wrong) >= 9
    assert not found - wrong


def test_grading_is_repeatable_and_needs_samples() -> None:
    tasks = TaskSet([Task.of("q0", answer="0")], rewards.exact("answer"))
    actor = Skilled({"q0": "0"}, {"q0": 0.5})
    once, again, other = (
        asyncio.run(grade(actor, tasks, ChatEnv, answer=text_of, samples=64, seed=seed)) for seed in (1, 1, 2)
    )
    assert once == again
    assert once[0].right != other[0].right or once[0].common != other[0].common
    assert 20 <= once[0].right <= 44
    for bad, samples in ((tasks, 1), (TaskSet([]), 16)):
        with pytest.raises(UserError, match="2 samples each"):
            asyncio.run(grade(actor, bad, ChatEnv, answer=text_of, samples=samples))
