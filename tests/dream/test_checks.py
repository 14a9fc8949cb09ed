"""Agreement, its stop rule, one-step errors and the bound: hand-derived numbers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping

import pytest

from rlready.dream.checks import Agreement, AgreementWatch, agreement, success_by_task
from rlready.dream.fidelity import ModelErrorReport, model_error_report
from rlready.dream.format import DreamFormat
from rlready.dream.memory import DreamMemory
from rlready.dream.model import DreamConfig, ExperienceModel
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import Policy, SampleRequest
from rlready.types import Group, Task, Trajectory, Verdict
from tests.dream.dream_phone import ScriptedSampler, form, logged, phone


def model(write: object = phone, f: DreamFormat | None = None) -> ExperienceModel:
    f = f or form()
    sampler = ScriptedSampler(f, write)  # type: ignore[arg-type]
    return ExperienceModel(f, Policy(sampler, None), DreamMemory(f), DreamConfig())  # type: ignore[arg-type]


def test_agreement_by_hand() -> None:
    a = agreement({"x": 1.0, "y": 0.5, "z": 0.0, "only dream": 1.0}, {"x": 0.5, "y": 0.5, "z": 0.25, "only real": 0.0})
    assert (a.tasks, a.dream, a.real, a.gap) == (3, 0.5, pytest.approx(1.25 / 3), pytest.approx(0.25 / 3))
    assert a.distance == pytest.approx(0.25) and a.score == pytest.approx(0.75)
    assert a.correlation == pytest.approx(0.5 * 0.125 * 2 / math.sqrt(0.5 * (2 * 0.0833333333**2 + 0.1666666667**2)))
    assert math.isnan(agreement({"x": 1.0, "y": 1.0}, {"x": 0.0, "y": 1.0}).correlation)
    with pytest.raises(ValueError, match="No task"):
        agreement({"x": 1.0}, {"y": 1.0})
    assert set(a.metrics()) == {"agreement/dream", "agreement/real", "agreement/gap", "agreement/score"}


def test_success_by_task_leaves_failed_episodes_out() -> None:
    task = Task.of("a")

    def one(verdict: Verdict, failure: str | None = None) -> Trajectory:
        return Trajectory(task, reward=float(verdict is Verdict.RIGHT), verdict=verdict, failure=failure)

    groups = [
        Group(task, [one(Verdict.RIGHT), one(Verdict.WRONG)]),
        Group(task, [one(Verdict.RIGHT), one(Verdict.RIGHT, "died")]),
    ]
    assert success_by_task(groups) == {task.id: pytest.approx(2 / 3)}
    assert success_by_task([Group(Task.of("b"), [one(Verdict.RIGHT, "died")])]) == {}


def seen(dream: float, real: float) -> Agreement:
    return Agreement(50, dream, real, dream - real, 0.1, 0.5)


def test_flattery_stops_a_run_and_nothing_else_does() -> None:
    watch = AgreementWatch(allowed=0.15, margin=2.0)
    assert watch.observe(0, seen(0.16, 0.15), episodes=200) is None
    assert watch.observe(10, seen(0.50, 0.55), episodes=200) is None  # a dream that is too hard
    # Standard error of (.53 - .30) with 200 episodes a side is .0478; limit .01 + .15 + .0957 = .2557.
    assert watch.observe(20, seen(0.53, 0.30), episodes=200) is None
    reason = watch.observe(30, seen(0.53, 0.13), episodes=200)
    assert reason is not None and "53% of its dreams and in 13%" in reason and "the gap was +1% at first" in reason
    assert watch.observe(30, seen(0.53, 0.13), episodes=4) is None  # four episodes prove nothing
    other = AgreementWatch()
    other.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert other.seen == watch.seen


def test_a_dream_that_flatters_from_the_start_may_not_get_worse() -> None:
    watch = AgreementWatch(allowed=0.1, margin=0.0)
    assert watch.observe(0, seen(0.5, 0.2), episodes=100) is None
    assert watch.observe(1, seen(0.6, 0.21), episodes=100) is None
    assert watch.observe(2, seen(0.7, 0.25), episodes=100) is not None


def test_perfect_model_has_no_error() -> None:
    logs = [logged("k1"), logged("k2", success=False)]
    report = asyncio.run(model_error_report(model(), [e for e, _ in logs], [n for _, n in logs]))
    assert (report.transitions, report.verdicts) == (7, 2)
    assert (report.reward_mean, report.reward_max, report.reply_mean, report.reply_max) == (0, 0, 0, 0)
    assert report.improvement(0.1, max_advantage=1, delta=0) == pytest.approx(0.1 / 0.05)


def test_errors_of_a_wrong_judge_and_of_noise_with_known_dynamics() -> None:
    def wrong(prompt: str, request: SampleRequest) -> str:
        said = phone(prompt, request)
        if said.endswith("<right>") and request.seed % 4 == 0:
            return said.replace("<right>", "<wrong>")
        return said.replace("air_on", "air_on" if request.seed % 2 else "air_off")

    def truth(episode: LoggedEpisode, t: int) -> Mapping[str, float]:
        if episode.actions[t] == "look":
            return {"air_on sim_out": 0.5, "air_off sim_out": 0.5}
        return {episode.replies[t]: 1.0}

    episode, notes = logged("k1")
    blind = asyncio.run(model_error_report(model(wrong), [episode], [notes], samples=512))
    assert blind.reward_mean == pytest.approx(0.25, abs=0.06)
    assert blind.reply_max == pytest.approx(0.5, abs=0.07)  # one recorded reply is not the distribution
    knowing = asyncio.run(model_error_report(model(wrong), [episode], [notes], samples=512, dynamics=truth))
    assert knowing.reply_max == pytest.approx(0.0, abs=0.07)


def test_unreadable_answers_count_as_errors() -> None:
    report = asyncio.run(model_error_report(model(lambda p, r: "<so>"), *([x] for x in logged("k1"))))
    assert report.reply_mean == 1.0 and report.reward_mean == 1.0


def test_bound_by_hand() -> None:
    """gamma .5: error = .1/.5 + .5 * 1 * .2/.25 = .6; penalty = 2 * .5 * 2 * .01/.25 = .08; gain 3/.5 = 6."""
    report = ModelErrorReport(10, 2, 0.1, 0.4, 0.2, 1.0, gamma=0.5)
    assert report.error() == pytest.approx(0.6)
    assert report.error(worst=True) == pytest.approx(0.8 + 2.0)
    assert report.improvement(3.0, max_advantage=2.0, delta=0.01) == pytest.approx(6 - 0.08 - 1.2)
