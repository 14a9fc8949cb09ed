"""The advantages each algorithm assigns, by hand; a user's own algorithm; the registry."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlready.algorithms import ALGORITHMS, GRPO, PPO, RLOO, PolicyGradient, Reinforce, algorithm
from rlready.algorithms.ppo import estimate_values, normalize
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.rollout.compile import compile_groups
from rlready.types import Group, Task, Trajectory, Turn, Verdict
from tests.algorithms.toy_bigram import Bigram, clone, group_of, policy_of, with_behaviour


def credited(algo, *groups, learner=None):
    policy = policy_of(learner or Bigram())
    asyncio.run(algo.credit(list(groups), policy))
    return [[t.turns[0].advantage for t in g.trajectories] for g in groups]


def test_grpo_by_hand():
    # Rewards 1 0 0 0: mean .25, population deviation sqrt(3)/4: (.75, -.25 x 3) / .4330 = sqrt(3), -1/sqrt(3) x 3.
    [a] = credited(GRPO(), group_of(1, 0, 0, 0))
    assert a == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3])


def test_grpo_std_options():
    # Centred: (.5, -.5) and (1, -1). Batch deviation: sqrt((.25 + .25 + 1 + 1) / 4) = sqrt(.625).
    groups = lambda: (group_of(1, 0), group_of(3, 1))  # noqa: E731
    assert credited(GRPO(std="group"), *groups()) == [[1, -1], [1, -1]]
    assert credited(GRPO(std="none"), *groups()) == [[0.5, -0.5], [1, -1]]
    b = math.sqrt(0.625)
    first, second = credited(GRPO(std="batch"), *groups())
    assert first == pytest.approx([0.5 / b, -0.5 / b]) and second == pytest.approx([1 / b, -1 / b])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_a_group_without_variance_gets_exactly_zero(reward, std):
    assert credited(GRPO(std=std), group_of(*[reward] * 7)) == [[0.0] * 7]


def test_reward_jitter_is_not_blown_up():
    # Deviation 5e-8, floor 1e-3: advantages of 5e-5, not of 1.
    [a] = credited(GRPO(), group_of(0.5, 0.5 + 1e-7))
    assert max(map(abs, a)) < 1e-4


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_grpo_is_centred_and_bounded(rewards):
    [a] = credited(GRPO(), group_of(*rewards))
    assert sum(a) == pytest.approx(0, abs=1e-6)
    assert max(map(abs, a)) <= math.sqrt(len(rewards) - 1) + 1e-9


def test_excluded_trajectories_are_neither_in_the_mean_nor_credited():
    group = group_of(1, 0, 0)
    group.trajectories[1].failure = "the environment died"
    group.trajectories.append(Trajectory(group.task, [Turn([0], [1], [-1.0])]))  # never scored: reward is nan
    assert credited(GRPO(), group) == [[1.0, None, -1.0, None]]
    assert credited(RLOO(), group) == [[1.0, None, -1.0, None]]
    assert credited(Reinforce(), group) == [[0.5, None, -0.5, None]]


def test_rloo_by_hand():
    # 1 0 2: baselines (0 + 2)/2, (1 + 2)/2, (1 + 0)/2.
    assert credited(RLOO(), group_of(1, 0, 2)) == [[0.0, -1.5, 1.5]]
    assert credited(RLOO(), group_of(1)) == [[0.0]]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_rloo_is_the_scaled_group_mean(rewards):
    n = len(rewards)
    expected = [n / (n - 1) * (r - np.mean(rewards)) for r in rewards]
    assert credited(RLOO(), group_of(*rewards))[0] == pytest.approx(expected, abs=1e-9)


def test_reinforce_baselines():
    assert credited(Reinforce(), group_of(1, 0), group_of(5)) == [[-1, -2], [3]]  # batch mean 2
    assert credited(Reinforce(baseline="none"), group_of(1, 0)) == [[1, 0]]


def test_running_baseline_by_hand_and_through_a_checkpoint():
    # Batch means 2, 4: the first has nothing before it; the second meets 2; then .9 x 2 + .1 x 4 = 2.2.
    algo = Reinforce(baseline="running", decay=0.9)
    assert credited(algo, group_of(3, 1)) == [[1, -1]]
    assert credited(algo, group_of(4)) == [[2]]
    other = Reinforce(baseline="running", decay=0.9)
    other.load_state_dict(algo.state_dict())
    for a in (algo, other):
        assert credited(a, group_of(4))[0] == pytest.approx([1.8])
    assert other.state_dict() == algo.state_dict() == {"mean": pytest.approx(2.38)}


def test_every_trainable_turn_is_credited_and_no_other():
    turns = [Turn([0], [1], [-1.0]), Turn([0, 1, 3], [2], [-1.0], parent=0), Turn([0], [1], [-1.0], trainable=False)]
    group = Group(Task.of("t"), [Trajectory(Task.of("t"), turns, reward=1.0), group_of(0).trajectories[0]])
    credited(GRPO(), group)
    assert [t.advantage for t in turns] == [1.0, 1.0, None]


# -- PPO -------------------------------------------------------------------------------------------------------------


def test_values_reach_the_right_tokens_of_a_forest():
    learner = Bigram()
    turns = [
        Turn([0], [1, 2]),
        Turn([0, 1, 2, 3], [3, 1], parent=0),  # continues: same row
        Turn([0, 1, 2, 0], [2], parent=0),  # a branch: a row of its own, in which turn 0 is context
        Turn([2, 2], [1]),  # a fresh context
    ]
    dead = Trajectory(Task.of("t"), [Turn([0], [1])], failure="died", reward=0.0)
    group = Group(Task.of("t"), [dead, Trajectory(Task.of("t"), turns, reward=1.0)])
    estimate_values(policy_of(learner), [group])
    c = learner.critic.detach()
    wanted = [[c[0], c[1]], [c[3], c[3]], [c[0]], [c[2]]]  # the value of the token before
    for turn, values in zip(turns, wanted, strict=True):
        assert turn.value == pytest.approx([float(v) for v in values], rel=1e-6)
    assert dead.turns[0].value is None


def test_ppo_normalises_once_over_all_tokens():
    group = group_of(1.0, 0.0, 0.5)
    algo = PPO()
    credited(algo, group)
    every = np.concatenate([t.turns[0].advantage for t in group.trajectories])
    assert len(every) == 6 and every.mean() == pytest.approx(0, abs=1e-12) and every.std() == pytest.approx(1)
    rows = compile_groups([group], streams=algo.streams)
    out, _ = algo.prepare(policy_of(Bigram()), rows)
    assert all(a is b for a, b in zip(out, rows, strict=True))  # not a second time
    for row, trajectory in zip(rows, group.trajectories, strict=True):
        assert row.returns is not None and row.returns[1:].tolist() == pytest.approx(trajectory.turns[0].returns)
        assert row.values is not None and row.values[1:].tolist() == pytest.approx(trajectory.turns[0].value)


def test_normalise_leaves_a_flat_batch_at_zero():
    turns = [Turn([0], [1], advantage=[0.3]), Turn([0], [1], advantage=[0.3])]
    normalize(turns)
    assert [t.advantage for t in turns] == [[0.0], [0.0]]


def test_ppo_update_moves_policy_and_critic_the_right_way():
    learner = Bigram(adam=True, lr=0.05)
    before = clone(learner)
    group = group_of(1.0, 0.0, 0.0, learner=learner)
    metrics = asyncio.run(PPO(epochs=4).update(policy_of(learner), [group]))
    p = lambda m: torch.softmax(m.table.detach()[0], 0)[1]  # noqa: E731
    assert p(learner) > p(before)
    assert metrics["loss/value"] >= 0 and math.isfinite(metrics["value/explained"])
    # The critic of context 0 moves towards the mean return of the three, 1/3 (lambda .95 keeps it near).
    target = np.mean([t.turns[0].returns[0] for t in group.trajectories])
    assert abs(learner.critic[0].item() - target) < abs(before.critic[0].item() - target)


# -- a whole update --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grpo", "ppo", "reinforce", "rloo", "sft"])
def test_one_update_makes_the_rewarded_token_likelier(name):
    learner = Bigram()
    group = group_of(1.0, 0.0, 0.0, learner=learner)
    for trajectory in group.trajectories:
        trajectory.verdict = Verdict.RIGHT if trajectory.reward else Verdict.WRONG
    fields = {"only_right": True} if name == "sft" else {}
    policy = policy_of(learner)
    before = torch.softmax(learner.table.detach()[0], 0)[1].item()
    metrics = asyncio.run(algorithm(name, **fields).update(policy, [group]))
    assert torch.softmax(learner.table.detach()[0], 0)[1].item() > before
    assert policy.version == learner.version > 0  # the sampler has the new weights
    assert metrics["rows"] == (1 if name == "sft" else 3) and math.isfinite(metrics["grad_norm"])


def test_an_update_without_anything_to_learn_is_harmless():
    learner = Bigram()
    dead = Group(Task.of("t"), [Trajectory(Task.of("t"), [Turn([0], [1], [-1.0])], failure="died")])
    for name in ALGORITHMS:
        metrics = asyncio.run(algorithm(name).update(policy_of(learner), [dead]))
        assert metrics["rows"] == 0 and learner.version == 0


def test_a_gradient_that_is_not_finite_leaves_the_sampler_alone():
    learner = Bigram()
    group = group_of(1.0, 0.0, learner=learner)
    with torch.no_grad():
        learner.table[0, 1] = float("nan")
    policy = policy_of(learner)
    with pytest.raises(FloatingPointError):
        asyncio.run(GRPO().update(policy, [group]))
    assert policy.version == 0


# -- a user's own algorithm: one method, one file (MaxRL) ------------------------------------------------------------


@dataclass(frozen=True)
class MaxRL(PolicyGradient):
    """Advantage (r - m) / m within a group, zero where the mean m is zero (arXiv 2602.02710).

    What the user inherits: clip, dual clip, averaging, KL, entropy bonus, corrections and every metric, all as fields.
    What the user writes: how reward becomes advantage. Groups hold `rewards` and `valid` in the same order; `assign`
    reaches every trainable turn, however the trajectory branches.
    """

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        for group in groups:
            m = group.rewards.mean()
            for trajectory, r in zip(group.valid, group.rewards, strict=True):
                trajectory.assign((r - m) / m if m > 0 else 0.0)


def test_maxrl_is_one_method():
    # 1 0 0 0: m = .25, so 3 and -1 each. All wrong: 0.
    assert credited(MaxRL(), group_of(1, 0, 0, 0), group_of(0, 0)) == [[3, -1, -1, -1], [0, 0]]


def test_maxrl_learns_with_inherited_fields():
    learner = Bigram()
    group = group_of(1, 0, 0, learner=learner)
    algo = MaxRL(clip_high=0.28, average="trajectory", kl=0.01, epochs=2)
    before = torch.softmax(learner.table.detach()[0], 0)[1].item()
    metrics = asyncio.run(algo.update(policy_of(learner), [group]))
    assert torch.softmax(learner.table.detach()[0], 0)[1].item() > before
    assert {"kl/reference", "clip/fraction", "ratio/max", "advantage/std"} <= set(metrics)


# -- the registry ----------------------------------------------------------------------------------------------------


def test_registry_builds_by_name():
    assert algorithm("GRPO", clip_high=0.28) == GRPO(clip_high=0.28)
    assert set(ALGORITHMS) == {"grpo", "ppo", "reinforce", "rloo", "sft"}


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UserError, match=r'Unknown algorithm "grpoo"\. Did you mean grpo'):
        algorithm("grpoo")
    with pytest.raises(UserError, match=r'Unknown field of grpo "clip_hihg"\. Did you mean clip_high'):
        algorithm("grpo", clip_hihg=0.3)
    with pytest.raises(UserError, match="field of reinforce"):
        algorithm("reinforce", _state={})


def test_a_fixed_policy_cannot_be_trained():
    with pytest.raises(ValueError, match="no learner"):
        asyncio.run(GRPO().update(Policy(None, None), [group_of(1, 0)]))  # type: ignore[arg-type]


def test_old_behaviour_logprobs_raise_the_ratio():
    """The second epoch's ratio is against the policy that sampled, not against the one of the epoch before."""
    learner = Bigram(lr=1.0)
    group = group_of(1.0, 0.0, learner=learner)
    with_behaviour(learner, group.trajectories)
    first = asyncio.run(GRPO(epochs=1, clip_high=None, clip_low=None).update(policy_of(clone(learner)), [group]))
    second = asyncio.run(GRPO(epochs=3, clip_high=None, clip_low=None).update(policy_of(clone(learner)), [group]))
    assert first["ratio/max"] == pytest.approx(1, abs=1e-6) and second["ratio/max"] > 1.1
