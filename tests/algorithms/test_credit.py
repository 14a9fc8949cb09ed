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

from rlready.algorithms import (
    ALGORITHMS,
    GRPO,
    NGRPO,
    PPO,
    RLOO,
    Magistral,
    MaxRL,
    Mixed,
    PassK,
    PolicyGradient,
    Reinforce,
    algorithm,
)
from rlready.algorithms.credit import CREDITS, cut_off
from rlready.algorithms.kl import costs_to_go, deduct
from rlready.algorithms.ppo import estimate_values, normalize
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.rollout.compile import compile_groups
from rlready.tasks.base import TaskSet
from rlready.types import Group, Row, Task, Trajectory, Turn, Verdict
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
    assert credited(GRPO(advantage="std"), *groups()) == [[1, -1], [1, -1]]
    assert credited(GRPO(advantage="mean"), *groups()) == [[0.5, -0.5], [1, -1]]
    b = math.sqrt(0.625)
    first, second = credited(GRPO(advantage="batch_std"), *groups())
    assert first == pytest.approx([0.5 / b, -0.5 / b]) and second == pytest.approx([1 / b, -1 / b])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("rule", ["mean", "loo", "std", "batch_std", "maxrl", "best", "batch"])
def test_a_group_without_variance_gets_exactly_zero(reward, rule):
    assert credited(PolicyGradient(advantage=rule), group_of(*[reward] * 7)) == [[0.0] * 7]


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


def test_maxrl_by_hand():
    # 1 0 0 0: m = .25, so 3 and -1 each. All wrong: 0. Rewards below 0 have no pass rate.
    assert credited(MaxRL(), group_of(1, 0, 0, 0), group_of(0, 0)) == [[3, -1, -1, -1], [0, 0]]
    with pytest.raises(UserError, match=r"needs rewards of 0 or more; one is -1"):
        credited(MaxRL(), group_of(1, -1))


def test_ngrpo_by_hand():
    # 1 0 with a virtual 1: m = 2/3, s = sqrt(2)/3: (1/3, -2/3) / s. With a best reward of 3: 1 0 3, m = 4/3.
    s = math.sqrt(2) / 3
    assert credited(NGRPO(), group_of(1, 0))[0] == pytest.approx([1 / 3 / s, -2 / 3 / s])
    s = math.sqrt(14) / 3
    assert credited(NGRPO(reward_cap=3.0), group_of(1, 0))[0] == pytest.approx([-1 / 3 / s, -4 / 3 / s])
    with pytest.raises(UserError, match=r"reward of 2 is above reward_cap=1"):
        credited(NGRPO(), group_of(2, 0))


def test_pass_k_by_hand():
    assert credited(PassK(), group_of(0, 3, 1), group_of(1, 1, 0), group_of(5)) == [[0, 2, 0], [0, 0, 0], [0]]


def test_rules_work_on_nothing():
    algo = PolicyGradient(advantage="running")
    for rule in CREDITS.values():
        assert rule([], algo) == []
        assert [len(a) for a in rule([np.zeros(0), np.ones(2)], algo)] == [0, 2]


def stopped(reward, stop, trainable=True):
    turns = [Turn([0], [1, 2], [-1.0, -1.0], stop=stop, trainable=trainable), Turn([0, 3], [1], [-1.0])]
    return Trajectory(Task.of("t"), turns, reward=reward, verdict=Verdict.WRONG)


def test_cut_off_answers():
    """A positive reward of an answer that the cap stopped counts as graded, as at most 0, or not at all."""
    assert cut_off(stopped(0.5, "length")) and not cut_off(stopped(0.5, "end"))
    assert not cut_off(stopped(0.5, "length", trainable=False))  # a probe

    def update(truncated, rewards=(0.5, -1.0)):
        group = Group(Task.of("t"), [stopped(r, "length") for r in rewards] + [stopped(1.0, "end")])
        metrics = asyncio.run(PolicyGradient(truncated=truncated).update(policy_of(Bigram()), [group]))
        return [t.turns[0].advantage for t in group.trajectories], metrics["rows"]

    third = 0.5 / 3
    assert update("keep") == ([pytest.approx(0.5 - third), pytest.approx(-1 - third), pytest.approx(1 - third)], 6)
    assert update("zero") == ([0.0, -1.0, 1.0], 6)
    advantages, rows = update("mask")
    assert advantages == update("keep")[0] and rows == 2  # in the statistics, and not trained on
    assert update("mask", rewards=(0.5,))[1] == 2


def test_right_answers_are_imitated_over_their_own_tokens():
    learner = Bigram()
    group = group_of(1.0, 0.0, 0.0, learner=learner)
    for trajectory in group.trajectories:
        trajectory.verdict = Verdict.RIGHT if trajectory.reward else Verdict.WRONG
    right = group.trajectories[0].turns[0]
    metrics = asyncio.run(PolicyGradient(imitate=0.1).update(policy_of(learner), [group]))
    assert metrics["loss/imitate"] == pytest.approx(-0.1 * np.mean(right.logprobs), rel=1e-5)


def test_costs_go_back_along_the_episode():
    """Each token answers for its own and all later costs; where two turns follow one, for their mean."""
    turns = [
        Turn([0], [1, 2], costs=[1.0, 2.0]),
        Turn([0, 1, 2, 3], [1], parent=0, costs=[4.0]),
        Turn([0, 1, 2, 0], [2, 2], parent=0, costs=[8.0, 16.0]),
        Turn([0, 1, 2], [3], parent=0, trainable=False),
    ]
    trajectory = Trajectory(Task.of("t"), turns, reward=1.0)
    assert costs_to_go(trajectory) == {0: [1 + 2 + 14, 2 + 14], 1: [4], 2: [24, 16]}
    trajectory.assign(0.5)
    turns[1].advantage = [1.0]
    deduct([Group(Task.of("t"), [trajectory])])
    assert [t.advantage for t in turns] == [[-16.5, -15.5], [-3.0], [-23.5, -15.5], None]


def test_a_kl_in_the_reward_is_taken_off_once():
    learner = Bigram()
    learner.reference = learner.table.detach() + 0.3 * torch.eye(4, dtype=torch.float64)
    group = group_of(1.0, 0.0, learner=learner)
    metrics = asyncio.run(PolicyGradient(kl=0.2, kl_in="reward").update(policy_of(learner), [group]))
    for trajectory, advantage in zip(group.trajectories, (0.5, -0.5), strict=True):
        turn = trajectory.turns[0]
        row = [0, *turn.completion_ids]
        logp = torch.log_softmax(learner.reference, -1)
        k1 = [lp - logp[a, b].item() for lp, a, b in zip(turn.logprobs, row, row[1:], strict=False)]
        assert turn.costs == pytest.approx([0.2 * k for k in k1], abs=1e-6)
        assert turn.advantage == pytest.approx([advantage - 0.2 * sum(k1), advantage - 0.2 * k1[1]], abs=1e-6)
    assert "loss/kl" not in metrics and math.isfinite(metrics["kl/reference"])


def test_reinforce_baselines():
    assert credited(Reinforce(), group_of(1, 0), group_of(5)) == [[-1, -2], [3]]  # batch mean 2
    assert credited(Reinforce(advantage="none"), group_of(1, 0)) == [[1, 0]]


def test_running_baseline_by_hand_and_through_a_checkpoint():
    # Batch means 2, 4: the first has nothing before it; the second meets 2; then .9 x 2 + .1 x 4 = 2.2.
    algo = Reinforce(advantage="running")
    assert credited(algo, group_of(3, 1)) == [[1, -1]]
    assert credited(algo, group_of(4)) == [[2]]
    other = Reinforce(advantage="running")
    other.load_state_dict(algo.state_dict())
    for a in (algo, other):
        assert credited(a, group_of(4))[0] == pytest.approx([1.8])
    assert other.state_dict() == algo.state_dict() == {"mean": pytest.approx(2.38)}


def mixed():
    shown = Row.from_segments([([0], 0.0), ([1], 1.0)])
    return Mixed(by="reinforce", options={"advantage": "running"}, rows=[shown])


@pytest.mark.parametrize("make", [lambda: Reinforce(advantage="running"), lambda: PPO(critic_warmup=1), mixed])
def test_a_bound_algorithm_remembers_nothing_of_an_earlier_training(make):
    used = make()
    before = used.state_dict()
    used.load_state_dict(
        {"drawn": 3, "inner": {"mean": 7.0}} if isinstance(used, Mixed) else {"mean": 7.0, "updates": 5.0}
    )
    bound = used.bind(TaskSet([Task.of("t")]), ChatEnv)
    assert bound is not used and bound.state_dict() == before != used.state_dict()


def test_uniform_groups_may_count_in_nothing():
    """Two of three groups are uniform: batch_std's divisor is that of the third, and so is the mean over groups."""
    groups = [group_of(1, 1), group_of(1, 0), group_of(0, 0)]
    gradients = []
    for drop, trained in ((True, groups), (False, groups[1:2]), (False, groups)):
        learner = Bigram()
        for group in trained:
            with_behaviour(learner, group.trajectories)
        algo = PolicyGradient(advantage="batch_std", average="group", drop_uniform=drop)
        before = learner.table.detach().clone()
        metrics = asyncio.run(algo.update(policy_of(learner), trained))
        gradients.append((learner.table.detach() - before, metrics["advantage/std"]))
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert gradients[0][1] == pytest.approx(1.0)
    assert not torch.allclose(gradients[0][0], gradients[2][0], rtol=1e-3)
    assert asyncio.run(Magistral().update(policy_of(Bigram()), [group_of(1, 1)]))["optimizer_steps"] == 0


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


OWN = ["reinforce", "rloo", "grpo", "drgrpo", "dapo", "gspo", "luspo", "gmpo", "reinforce++", "maxrl", "ngrpo", "passk",
       "cispo", "sapo", "dppo", "magistral"]  # fmt: skip


@pytest.mark.parametrize("name", [*OWN, "ppo", "sft"])
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
    for name in (*OWN, "ppo", "sft"):
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


# -- a user's own algorithm: one method, one file ---------------------------------------------------------------------


@dataclass(frozen=True)
class Median(PolicyGradient):
    """Reward less the group's median, which one outlier does not move.

    What the user inherits: trust regions, averaging, KL, entropy bonus, corrections and every metric, all as fields.
    What the user writes: how reward becomes advantage. Groups hold `rewards` and `valid` in the same order; `assign`
    reaches every trainable turn, however the trajectory branches.
    """

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        for group in groups:
            for trajectory, r in zip(group.valid, group.rewards, strict=True):
                trajectory.assign(r - np.median(group.rewards))


def test_ones_own_rule_is_one_method():
    assert credited(Median(), group_of(9, 1, 0), group_of(0, 0)) == [[8, 0, -1], [0, 0]]


def test_ones_own_rule_learns_with_inherited_fields():
    learner = Bigram()
    group = group_of(1, 0, 0, learner=learner)
    algo = Median(trust="clip", clip_high=0.28, average="trajectory", kl=0.01, epochs=2)
    before = torch.softmax(learner.table.detach()[0], 0)[1].item()
    metrics = asyncio.run(algo.update(policy_of(learner), [group]))
    assert torch.softmax(learner.table.detach()[0], 0)[1].item() > before
    assert {"kl/reference", "clip/fraction", "ratio/max", "advantage/std"} <= set(metrics)


# -- the registry ----------------------------------------------------------------------------------------------------


def test_registry_builds_by_name():
    assert algorithm("GRPO", clip_high=0.28) == GRPO(clip_high=0.28)
    assert {*OWN, "ppo", "sft"} <= set(ALGORITHMS)
    for name, kind in ALGORITHMS.items():
        assert name == name.lower() and kind.__doc__ and isinstance(kind().max_lag, int)


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
    first = asyncio.run(RLOO(epochs=1).update(policy_of(clone(learner)), [group]))
    second = asyncio.run(RLOO(epochs=3).update(policy_of(clone(learner)), [group]))
    assert first["ratio/max"] == pytest.approx(1, abs=1e-6) and second["ratio/max"] > 1.1
