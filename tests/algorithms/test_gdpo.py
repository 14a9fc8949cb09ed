"""GDPO: several rewards, each normalised on its own; by hand, as identities, and learning."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.algorithms import ALGORITHMS, PolicyGradient, algorithm
from rlready.algorithms.gdpo import GDPO
from rlready.errors import UserError
from rlready.types import Group, Task, Trajectory, Turn
from tests.algorithms.say_digit import learn
from tests.algorithms.toy_bigram import Bigram, group_of, policy_of


def scored(*scores, rewards=None):
    made = [Trajectory(Task.of("t"), [Turn([0], [1], [-1.0])], reward=0.0, scores=dict(each)) for each in scores]
    for trajectory, reward in zip(made, rewards or (), strict=False):
        trajectory.reward = reward
    return Group(made[0].task, made)


def credited(algo, *groups):
    asyncio.run(algo.credit(list(groups), policy_of(Bigram())))
    return [[t.turns[0].advantage for t in g.trajectories] for g in groups]


AB = [{"a": 1, "b": 0}, {"a": 0, "b": 10}, {"a": 0, "b": 0}, {"a": 1, "b": 10}]


def test_by_hand():
    """a: mean .5, deviation .5: 1 -1 -1 1.  b: mean 5, deviation 5: -1 1 -1 1.  Sum: 0 0 -2 2, of deviation sqrt(2)."""
    [got] = credited(GDPO(rewards={"a": 1.0, "b": 1.0}), scored(*AB))
    assert got == pytest.approx([0, 0, -math.sqrt(2), math.sqrt(2)])
    # With b at half weight: .5 -.5 -1.5 1.5, of variance (.25 + .25 + 2.25 + 2.25) / 4.
    [got] = credited(GDPO(rewards={"a": 1.0, "b": 0.5}), scored(*AB))
    assert got == pytest.approx(np.array([0.5, -0.5, -1.5, 1.5]) / math.sqrt(1.25))


def test_the_batch_norm_is_over_the_trajectories_of_all_groups():
    # Group sums: +-1 and +-2 (two rewards that agree), of variance (1 + 1 + 4 + 4) / 4 = 2.5 around 0.
    one = scored({"a": 1, "b": 3}, {"a": 0, "b": 3})
    two = scored({"a": 1, "b": 9}, {"a": 0, "b": 0})
    got = credited(GDPO(rewards={"a": 1.0, "b": 1.0}), one, two)
    s = math.sqrt(2.5)
    assert got[0] == pytest.approx([1 / s, -1 / s]) and got[1] == pytest.approx([2 / s, -2 / s])


def test_a_trajectory_of_many_turns_counts_once():
    group = scored(*AB)
    group.trajectories[3].turns += [Turn([0], [2], [-1.0]) for _ in range(20)]
    [got] = credited(GDPO(rewards={"a": 1.0, "b": 1.0}), group)
    assert got == pytest.approx([0, 0, -math.sqrt(2), math.sqrt(2)])
    assert {turn.advantage for turn in group.trajectories[3].turns} == {group.trajectories[3].turns[0].advantage}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8),
    st.floats(0.1, 1000),
    st.floats(-5, 5),
)
def test_scale_and_offset_of_a_reward_do_not_matter(pairs, scale, offset):
    algo = GDPO(rewards={"a": 1.0, "b": 1.0}, std_floor=1e-6)
    [plain] = credited(algo, scored(*[{"a": a, "b": b} for a, b in pairs]))
    [moved] = credited(algo, scored(*[{"a": a, "b": scale * b + offset} for a, b in pairs]))
    assert moved == pytest.approx(plain, abs=1e-6)


def test_one_reward_of_one_group_is_grpo():
    rewards = [1.0, 0.0, 0.25, 0.25]
    [mine] = credited(GDPO(), group_of(*rewards))
    [theirs] = credited(PolicyGradient(advantage="std"), group_of(*rewards))
    assert mine == pytest.approx(theirs)


def test_uniform_rewards_give_exactly_zero_and_jitter_is_not_blown_up():
    assert credited(GDPO(rewards={"a": 1.0}), scored(*[{"a": 0.1}] * 7)) == [[0.0] * 7]
    [got] = credited(GDPO(rewards={"a": 1.0}), scored({"a": 0.5}, {"a": 0.5 + 1e-9}))
    assert max(map(abs, got)) < 1e-2


def test_reward_is_a_name_of_its_own_and_failures_are_left_out():
    group = scored({"a": 1}, {"a": 0}, {"a": 0}, rewards=[0.0, 1.0, 0.0])
    group.trajectories[2].failure = "the environment died"
    [got] = credited(GDPO(rewards={"reward": 3.0, "a": 1.0}), group)
    assert got[:2] == pytest.approx([-1, 1]) and got[2] is None


def test_a_score_that_is_missing_is_named_or_filled():
    group = lambda: scored({"a": 1, "b": 1}, {"a": 0})  # noqa: E731
    with pytest.raises(UserError, match=r'no score "b", only reward, a'):
        credited(GDPO(rewards={"a": 1.0, "b": 1.0}), group())
    [got] = credited(GDPO(rewards={"a": 1.0, "b": 1.0}, missing=0.0), group())
    assert got == pytest.approx([1, -1])


@pytest.mark.parametrize(("truncated", "expected"), [("keep", [1, -1]), ("zero", [-1, 1])])
def test_a_cut_off_answer_earns_nothing_where_asked(truncated, expected):
    group = scored({"a": 1.0}, {"a": 0.5})
    group.trajectories[0].turns[0].stop = "length"
    [got] = credited(GDPO(rewards={"a": 1.0}, truncated=truncated), group)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("fields", "word"), [({"rewards": {}}, "rewards"), ({"advantage": "std"}, "advantage")])
def test_fields_that_cannot_work_are_refused(fields, word):
    with pytest.raises(UserError, match=word):
        GDPO(**fields)


def test_it_learns():
    assert ALGORITHMS["gdpo"] is GDPO
    first, last, _ = learn(algorithm("gdpo", minibatches=2), 0, steps=25)
    assert first < 0.4 and last >= 0.7, (first, last)
