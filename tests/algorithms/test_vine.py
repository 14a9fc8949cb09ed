"""VinePPO: step advantages from tried values; they sum to the score less the first value."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlready.algorithms.vine import VinePPO, filled, step_advantages, whiten, write
from rlready.envs.base import Env, Observation, Step
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import play_many
from rlready.rollout.steps import StepRule
from rlready.types import Group, Score, Task, Trajectory, Turn, Verdict
from tests.rollout import coins

torch.set_num_threads(1)
PARAMS = SamplingParams(max_tokens=12)
EVERY = StepRule("every", size=2)
number = st.floats(-2, 2)


def test_advantages_by_hand() -> None:
    # V(S_0), V(S_1), V(S_2) = .5, .8, .2 and the answer is right: A = .3, -.6, .8
    assert step_advantages([0.5, 0.8, 0.2], 1.0) == pytest.approx([0.3, -0.6, 0.8])
    assert step_advantages([0.5], 0.0) == [-0.5]
    # Probed only up to S_1, the rest is worth the score and its steps earn nothing.
    assert filled([0.5, 0.8], 4, 1.0) == [0.5, 0.8, 1.0, 1.0]
    assert step_advantages(filled([0.5, 0.8], 4, 1.0), 1.0) == pytest.approx([0.3, 0.2, 0.0, 0.0])
    # A state that no sample could be judged at takes its successor's value.
    assert filled([0.5, math.nan, 0.2], 3, 1.0) == [0.5, 0.2, 0.2]


@given(st.lists(number, min_size=1, max_size=8), number, st.integers(0, 9), st.sets(st.integers(0, 7)))
def test_the_advantages_of_an_answer_sum_to_its_score_less_the_first_value(
    values: list[float], score: float, cap: int, unjudged: set[int]
) -> None:
    known = [math.nan if t in unjudged else v for t, v in enumerate(values[:cap])]
    every = filled(known, len(values), score)
    advantages = step_advantages(every, score)
    assert sum(advantages) == pytest.approx(score - every[0], abs=1e-9)
    for t in range(len(values)):
        if t >= len(known):
            assert advantages[t] == 0
        if t < len(known) and not math.isnan(known[t]):
            assert every[t] == known[t]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_all_tokens_of_a_step_carry_its_advantage(lengths: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(number, min_size=len(lengths), max_size=len(lengths)))
    starts = [sum(lengths[:t]) for t in range(len(lengths))]
    turn = Turn([0], [1] * sum(lengths))
    write(turn, starts, values, 1.0)
    expected = step_advantages(values, 1.0)
    assert turn.advantage == [a for a, n in zip(expected, lengths, strict=True) for _ in range(n)]
    assert turn.value == [v for v, n in zip(values, lengths, strict=True) for _ in range(n)]


def test_whitening_is_over_all_response_tokens() -> None:
    turns = [Turn([0], [1] * 3, advantage=[1.0, 1.0, 4.0]), Turn([0], [1], advantage=[2.0])]
    whiten(turns)
    every = [a for turn in turns for a in turn.advantage]  # type: ignore[union-attr]
    assert np.mean(every) == pytest.approx(0, abs=1e-9) and np.std(every) == pytest.approx(1)
    flat = [Turn([0], [1] * 2, advantage=[0.3, 0.3])]
    whiten(flat)
    assert flat[0].advantage == [0.0, 0.0]


def played(policy: Policy, tasks: Any, each: int = 4, params: SamplingParams = PARAMS, seed: int = 5) -> list[Group]:
    actor = PolicyActor(policy, params, seed)
    trajectories = asyncio.run(play_many(tasks, ChatEnv, actor, [t for t in tasks for _ in range(each)], seed))
    return [Group(task, trajectories[i * each : (i + 1) * each]) for i, task in enumerate(tasks)]


def credited(algorithm: VinePPO, policy: Policy, groups: list[Group]) -> dict[str, float]:
    asyncio.run(algorithm.credit(groups, policy))
    noted: dict[str, float] = algorithm.__dict__["_noted"]
    return noted


@pytest.mark.parametrize("cap", [None, 2])
def test_credit_finds_what_each_step_was_worth(cap: int | None) -> None:
    """On coins whose values are known: a step of two tosses is worth its heads, less the expected."""
    policy, tasks = coins.policy(), coins.tasks()
    groups = played(policy, tasks)
    algorithm = VinePPO(k=400, max_states=cap, steps=EVERY, whiten=False).bind(tasks, ChatEnv, PARAMS)
    noted = credited(algorithm, policy, groups)
    for trajectory in (t for group in groups for t in group):
        (turn,) = trajectory.turns
        words = turn.text.split()
        tried = 3 if cap is None else cap
        values = [coins.value(" ".join(words[: 2 * t])) for t in range(tried)]
        values += [trajectory.reward] * (3 - tried)
        expected = np.repeat(step_advantages(values, trajectory.reward), [2, 2, 3])  # the end token is the last step's
        assert turn.advantage == pytest.approx(expected, abs=0.05)
        assert sum(turn.advantage[i] for i in (0, 2, 4)) == pytest.approx(trajectory.reward - turn.value[0])
        assert turn.advantage[6] == turn.advantage[4]
    assert noted["vine/states"] == 8 * (3 if cap is None else cap)
    assert noted["vine/distinct"] < noted["vine/states"] and 0 < noted["vine/shared"] < 1
    assert noted["vine/value_first"] == pytest.approx(0.3, abs=0.05)
    assert noted["vine/dropped"] == noted["vine/failed"] == 0
    firsts = {t.task.id: t.turns[0].value[0] for group in groups for t in group}
    assert all(t.turns[0].value[0] == firsts[t.task.id] for group in groups for t in group)  # one estimate of S_0


def test_probes_are_drawn_anew_for_every_version_of_the_policy() -> None:
    policy, tasks = coins.policy(), coins.tasks()
    algorithm = VinePPO(steps=EVERY, whiten=False).bind(tasks, ChatEnv, PARAMS)
    found = []
    for version in (0, 0, 1):
        policy.sampler.version = version
        groups = played(coins.policy(), tasks)
        credited(algorithm, policy, groups)
        found.append([t.turns[0].value for group in groups for t in group])
    assert found[0] == found[1] != found[2]


def test_an_answer_that_cannot_be_cut_is_dropped_and_counted() -> None:
    policy, tasks = coins.policy(), coins.tasks()
    groups = played(policy, tasks)
    groups[0].trajectories[1].turns[0].completion_ids[0] = 999  # no such token: the text cannot be read

    class Picky(type(coins.RENDER)):  # type: ignore[misc]
        def decode(self, ids: Any) -> str:
            return "?" * len(ids) ** 2 if 999 in ids else str(super().decode(ids))

    render = Picky(coins.RENDER.tokenizer, end="<end>")
    algorithm = VinePPO(steps=StepRule("line")).bind(tasks, ChatEnv, PARAMS)
    noted = credited(algorithm, Policy(policy.sampler, render), groups)
    assert noted["vine/dropped"] == 1
    assert groups[0].trajectories[1].excluded and "cut into steps" in str(groups[0].trajectories[1].failure)
    assert len(groups[0].valid) == 3 and all(t.turns[0].advantage is not None for t in groups[0].valid)


def test_answers_of_one_step_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    policy, tasks = coins.policy(), coins.tasks()
    algorithm = VinePPO(steps=StepRule("line")).bind(tasks, ChatEnv, PARAMS)
    for _ in range(2):
        assert credited(algorithm, policy, played(policy, tasks))["vine/steps"] == 1
    assert [r.message for r in caplog.records if "single step" in r.message] and len(caplog.records) == 1
    credited(VinePPO(steps=EVERY).bind(tasks, ChatEnv, PARAMS), policy, played(policy, tasks))
    assert len(caplog.records) == 1


def test_where_no_probe_could_be_judged_the_step_is_not_blamed() -> None:
    policy = coins.policy(p=0.0)
    tasks = coins.tasks(coins.fails_on_tails)
    groups = played(policy, coins.tasks())
    algorithm = VinePPO(steps=EVERY, whiten=False).bind(tasks, ChatEnv, PARAMS)
    noted = credited(algorithm, policy, groups)
    assert noted["vine/failed"] == 9 * noted["vine/distinct"]
    assert all(a == 0 for group in groups for t in group for a in t.turns[0].advantage)


class Walk(Env):
    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation("where to")

    async def step(self, action: str) -> Step:
        return Step(Observation("on"), terminated=False)


def test_what_it_is_not_for_is_said() -> None:
    tasks = coins.tasks()
    with pytest.raises(UserError, match=r"Walk cannot do.*ppo, with"):
        VinePPO().bind(tasks, Walk)
    with pytest.raises(UserError, match="choices"):
        VinePPO().bind(tasks, lambda: ChatEnv(choices=["a", "b"]))
    endless = Policy(coins.Coin(), type(coins.RENDER)(coins.RENDER.tokenizer))
    with pytest.raises(UserError, match="no end token"):
        asyncio.run(VinePPO().bind(tasks, ChatEnv, PARAMS).credit([], endless))
    with pytest.raises(UserError, match="bind"):
        asyncio.run(VinePPO().credit([], coins.policy()))
    trajectory = Trajectory(tasks[0], [Turn([0], [1]), Turn([0, 1, 2], [1], parent=0)], 1.0, verdict=Verdict.RIGHT)
    with pytest.raises(UserError, match="2 turns"):
        credited(VinePPO().bind(tasks, ChatEnv, PARAMS), coins.policy(), [Group(tasks[0], [trajectory])])
    for wrong in ({"k": 0}, {"max_states": 0}, {"ratio_limit": 1.0}, {"kl_in": "reward"}, {"anchor": "interpolated"}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            VinePPO(**wrong)  # type: ignore[arg-type]


def tiny(lr: float = 3e-3) -> TinyPolicy:
    config = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=32)
    policy = TinyPolicy.create(coins.RENDER, config, seed=1, optimizer=OptimizerConfig(lr=lr))
    policy.learner.freeze_reference()
    return policy


def test_an_update_trains_the_answers_and_never_the_probes() -> None:
    policy, tasks = tiny(), coins.tasks()
    groups = played(policy, tasks)
    algorithm = VinePPO(steps=EVERY, minibatches=2).bind(tasks, ChatEnv, PARAMS)
    metrics = asyncio.run(algorithm.update(policy, groups))
    assert metrics["rows"] == 8 and metrics["optimizer_steps"] == 4 and policy.version == 4
    assert metrics["tokens"] == sum(t.length + len(t.turns[0].prompt_ids) for group in groups for t in group)
    assert metrics["vine/tokens"] > 0 and metrics["vine/prompt_reused"] > metrics["vine/prompt_computed"]
    assert abs(metrics["advantage/mean"]) < 1e-6 and metrics["advantage/std"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio/skipped"] == 0


def test_no_step_is_taken_where_the_ratio_has_run_away() -> None:
    policy, tasks = tiny(), coins.tasks()
    groups = played(policy, tasks)
    for trajectory in (t for group in groups for t in group):
        trajectory.turns[0].logprobs = [p - 3.0 for p in trajectory.turns[0].logprobs]  # the ratio is exp(3) = 20
    before = {name: w.clone() for name, w in policy.learner.weights().items()}
    algorithm = VinePPO(steps=EVERY, minibatches=2).bind(tasks, ChatEnv, PARAMS)
    metrics = asyncio.run(algorithm.update(policy, groups))
    assert metrics["ratio/skipped"] == 1 and metrics["optimizer_steps"] == 0 and policy.version == 0
    assert all(torch.equal(w, before[name]) for name, w in policy.learner.weights().items())
    free = replace(algorithm, ratio_limit=None).bind(tasks, ChatEnv, PARAMS)
    assert asyncio.run(free.update(policy, groups))["optimizer_steps"] == 4


def test_it_learns_which_step_matters() -> None:
    """Four tosses, and only the first is paid: its step gets the credit, and the policy learns it."""
    policy = tiny(lr=5e-3)
    short = SamplingParams(max_tokens=4)

    async def first_is_heads(task: Task, trajectory: Trajectory) -> Score:
        return Score.right() if trajectory.turns[0].text.startswith("H") else Score.wrong()

    tasks = coins.tasks(first_is_heads, n=4)
    algorithm = VinePPO(steps=StepRule("every", size=1), epochs=1, minibatches=1, kl=0.0, truncated="keep")
    algorithm = algorithm.bind(tasks, ChatEnv, short)
    shares, late = [], 0.0
    for step in range(25):
        groups = played(policy, tasks, each=8, params=short, seed=step)
        shares.append(float(np.mean([t.reward for group in groups for t in group])))
        asyncio.run(algorithm.update(policy, groups))
        raw = [np.diff([*t.turns[0].value, t.reward]) for group in groups for t in group]
        late = max([late, *(abs(r[1:]).max() for r in raw if len(r) > 2)])  # two tokens may be one step and its end
    assert np.mean(shares[-3:]) > 0.8 > 0.4 > np.mean(shares[:3])
    assert late == 0  # what comes after the first toss is known to earn nothing
