"""The evaluator: intervals derived by hand, exclusion, pairs, temperature, and what its JSON carries."""

import asyncio
import json
import math

import numpy as np
import pytest

from rlready.errors import UserError
from rlready.evaluate import (
    Evaluation,
    bootstrap,
    evaluate,
    evaluate_sync,
    interval,
    paired,
    sweep_temperature,
    tune_temperature,
    wilson,
)
from rlready.policy.base import SamplingParams
from rlready.rollout.actors import PolicyActor, ScriptActor
from rlready.types import Task, Trajectory, Verdict
from tests.rollout.rollout_fakes import Broken, Lamps, lamps, policy


def solver(task, chance):
    for lamp in range(3):
        if (yield f"press {lamp}") == "light":
            return


def blind(task, chance):
    yield "press 1"


def script(which):
    return ScriptActor(which, policy().renderer, closing="done")


def test_wilson_by_hand():
    # p = 8/10, z^2 = 3.841459: centre (.8 + .192073) / 1.384146, half 1.959964 / 1.384146 * sqrt(.016 + .009604)
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.490162, abs=1e-5) and high == pytest.approx(0.943318, abs=1e-5)
    assert wilson(0, 10)[0] == 0.0 and wilson(0, 10)[1] == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert all(math.isnan(x) for x in wilson(0, 0))


def test_samples_of_one_task_do_not_count_as_independent():
    """20 tasks that are always or never solved: 8 samples each tell no more than one."""
    one = {str(i): [i % 2] for i in range(20)}
    eight = {str(i): [i % 2] * 8 for i in range(20)}
    naive = wilson(80, 160)
    low, high = interval(eight)
    assert high - low > 2 * (naive[1] - naive[0])
    assert high - low == pytest.approx(interval(one)[1] - interval(one)[0], abs=0.06)
    assert interval({str(i): [1] * 8 for i in range(20)}) == wilson(20, 20)  # no bootstrap of width 0
    assert interval({"only": [1, 1, 0, 0]}) == wilson(2, 4)


def test_bootstrap_has_the_width_of_the_normal_approximation():
    random = np.random.default_rng(0)
    x = random.normal(0.3, 1.0, 400)
    low, high = bootstrap(x, np.ones(400), 1)
    se = x.std() / 20
    assert low == pytest.approx(x.mean() - 1.96 * se, abs=0.02) and high == pytest.approx(
        x.mean() + 1.96 * se, abs=0.02
    )
    assert bootstrap(x, np.ones(400), 1) == (low, high) != bootstrap(x, np.ones(400), 2)


def test_an_actor_is_evaluated_on_every_task():
    tasks = lamps(12)
    result = evaluate_sync(script(solver), tasks, Lamps, samples=2, max_steps=8, seed=4)
    assert result.success == 1.0 and result.n == 24 and result.excluded == 0 and result.version == -1
    assert set(result.outcomes) == {t.id for t in tasks} and all(v == [1, 1] for v in result.outcomes.values())
    assert result.env_steps >= 24 * 2
    assert result.interval == wilson(12, 12)
    assert str(result) == "100.0% [75.8%, 100.0%] of 24 episodes"


def test_two_actors_meet_the_same_worlds_and_pairs_are_counted():
    tasks = lamps(30)
    a = evaluate_sync(script(solver), tasks, Lamps, max_steps=8, seed=4)
    b = evaluate_sync(script(blind), tasks, Lamps, max_steps=8, seed=4)
    again = evaluate_sync(script(blind), tasks, Lamps, max_steps=8, seed=4)
    assert b.outcomes == again.outcomes and 0 < b.success < 0.7
    gap = paired(a, b)
    lost = sum(v == [0] for v in b.outcomes.values())
    assert (gap.wins, gap.losses, gap.ties, gap.tasks, gap.only_one) == (lost, 0, 30 - lost, 30, 0)
    assert gap.difference == pytest.approx(lost / 30) and gap.interval[0] < gap.difference < gap.interval[1]
    assert gap.interval[0] > 0
    mirrored = paired(b, a)
    assert mirrored.difference == -gap.difference and (mirrored.wins, mirrored.losses) == (0, lost)
    assert paired(a, a).difference == 0 and paired(a, a).interval == (0, 0)
    json.dumps(gap.to_json())


def test_pairs_beat_separate_intervals_where_outcomes_agree():
    """Two actors that differ on 8 of 100 tasks, always the same way: clear in pairs, not apart."""
    base = {str(i): [int(i % 2 == 0)] for i in range(100)}
    better = {k: [1] if int(k) < 16 else v for k, v in base.items()}

    def of(outcomes):
        n = sum(v[0] for v in outcomes.values())
        return Evaluation(n / 100, interval(outcomes), n / 100, 100, 0, outcomes=outcomes)

    a, b = of(better), of(base)
    assert a.interval[0] < b.interval[1]  # apart, they overlap
    gap = paired(a, b)
    assert gap.difference == pytest.approx(0.08) and gap.interval[0] > 0.02 and gap.wins == 8
    with pytest.raises(UserError, match="no task in common"):
        paired(a, of({"other": [1]}))


def test_failures_are_excluded_never_wrong():
    task = Task.of("x")
    played = [
        Trajectory(task, reward=1.0, verdict=Verdict.RIGHT, env_steps=3),
        Trajectory(task, reward=0.0, verdict=Verdict.WRONG, env_steps=3),
        Trajectory(task, failure="died", env_steps=2),
        Trajectory(task, verdict=Verdict.GRADER_FAILED, info={"note": "no gold"}),
    ]
    result = Evaluation.of(played)
    assert (result.success, result.reward, result.n, result.excluded, result.env_steps) == (0.5, 0.5, 2, 2, 8)
    assert result.reasons == {"died": 1, "the grader failed: no gold": 1}
    nothing = evaluate_sync(script(blind), lamps(2, fault="step raises"), Broken, max_steps=3)
    assert math.isnan(nothing.success) and nothing.n == 0 and nothing.excluded == 2
    assert Evaluation.from_json(json.loads(json.dumps(nothing.to_json(), allow_nan=False))).excluded == 2


def test_a_policy_is_greedy_by_default_and_its_version_is_stamped():
    acting = policy()
    acting.sampler.version = 17
    result = evaluate_sync(acting, lamps(3), Lamps, max_steps=4)
    assert result.version == 17 and result.settings["temperature"] == 0.0
    assert {r.params.temperature for r in acting.sampler.requests} == {0.0}
    sampled = evaluate_sync(PolicyActor(acting, SamplingParams(temperature=0.7)), lamps(3), Lamps, max_steps=4)
    assert sampled.version == 17 and sampled.settings["temperature"] == 0.7
    back = Evaluation.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert back == result


def test_nothing_to_evaluate_and_params_with_an_actor_are_refused():
    with pytest.raises(UserError, match="leave nothing to evaluate"):
        evaluate_sync(policy(), lamps(0), Lamps)
    with pytest.raises(UserError, match="an actor decodes by its own"):
        evaluate_sync(script(blind), lamps(1), Lamps, params=SamplingParams())


def test_temperature_is_tuned_on_dev():
    """Greedy always presses lamp 0; chance finds the others, so sampling must win, and the lower of equals."""
    tasks = lamps(60)

    async def main():
        sweep = await sweep_temperature(policy(), tasks, Lamps, (0.0, 1.0), max_steps=30, seed=2)
        best = await tune_temperature(policy(), tasks, Lamps, (1.0, 0.5, 0.0), max_steps=30, seed=2)
        return sweep, best

    sweep, best = asyncio.run(main())
    assert sweep[1.0].success > sweep[0.0].success
    assert best == 0.5  # the fake sampler knows only greedy and not greedy, so 0.5 equals 1
    with pytest.raises(UserError, match="grid is empty"):
        asyncio.run(tune_temperature(policy(), tasks, Lamps, ()))


def test_evaluation_is_the_same_twice():
    async def twice():
        return [
            await evaluate(policy(), lamps(5), Lamps, samples=3, params=SamplingParams(), max_steps=6, seed=9)
            for _ in range(2)
        ]

    one, two = asyncio.run(twice())
    assert one.outcomes == two.outcomes and one.env_steps == two.env_steps
