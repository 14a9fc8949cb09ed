"""GAE over sampled tokens: a hand example, a naive loop, and what happens along parent chains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.algorithms.gae import assign_gae, followers
from rlready.types import Task, Trajectory, Turn


def turn(values, *, prompt=(0,), parent=None, reward=0.0, trainable=True):
    return Turn(list(prompt), [1] * len(values), parent=parent, reward=reward, value=list(values), trainable=trainable)


def episode(*turns, reward):
    return Trajectory(Task.of("x"), list(turns), reward=reward)


def test_hand_example_across_two_turns():
    """gamma .9, lambda .5, so gamma lambda = .45. The environment's reply between the turns is no step.

    values   turn 0: .1 .2      turn 1: .3 .4        rewards: .5 after turn 0; the episode's 1.5, so 1.0 at the very end
    delta    t0: 0 + .9(.2) - .1 = .08
             t1: .5 + .9(.3) - .2 = .57              next value is that of turn 1's first token
             t2: 0 + .9(.4) - .3 = .06
             t3: 1 + 0 - .4 = .6
    A        t3 = .6
             t2 = .06 + .45(.6) = .33
             t1 = .57 + .45(.33) = .7185
             t0 = .08 + .45(.7185) = .403325
    """
    first = turn([0.1, 0.2], reward=0.5)
    second = turn([0.3, 0.4], prompt=(0, 1, 1, 7, 7, 7), parent=0)
    assign_gae(episode(first, second, reward=1.5), 0.9, 0.5)
    assert first.advantage == pytest.approx([0.403325, 0.7185])
    assert second.advantage == pytest.approx([0.33, 0.6])
    assert first.returns == pytest.approx([0.503325, 0.9185])
    assert second.returns == pytest.approx([0.63, 1.0])


def test_decoupled_lambdas_by_hand():
    """As above, with lambda 1 for the critic: its returns are the plain discounted sums 1, .9, .5 + .81, .9 x 1.31."""
    first = turn([0.1, 0.2], reward=0.5)
    second = turn([0.3, 0.4], prompt=(0, 1, 1, 7, 7, 7), parent=0)
    assign_gae(episode(first, second, reward=1.5), 0.9, 0.5, 1.0)
    assert first.advantage == pytest.approx([0.403325, 0.7185])
    assert second.advantage == pytest.approx([0.33, 0.6])
    assert first.returns == pytest.approx([1.179, 1.31])
    assert second.returns == pytest.approx([0.9, 1.0])


def test_costs_by_hand():
    """gamma = lambda = 1 and values of 0: a token's advantage is what is paid from it on, less the costs from it on."""
    first, second = turn([0.0, 0.0], reward=0.5), turn([0.0, 0.0], prompt=(0, 1, 1, 7), parent=0)
    first.costs, second.costs = [0.1, 0.2], [0.0, 0.4]
    assign_gae(episode(first, second, reward=1.5), 1.0, 1.0)
    assert first.advantage == first.returns == pytest.approx([0.8, 0.9])
    assert second.advantage == second.returns == pytest.approx([0.6, 0.6])
    first.costs = [0.1]
    with pytest.raises(ValueError, match="Turn 0 has 1 costs for 2 tokens"):
        assign_gae(episode(first, second, reward=1.5), 1.0, 1.0)


def test_another_reward_may_be_given():
    only = turn([0.0])
    assign_gae(episode(only, reward=1.0), 1.0, 1.0, reward=0.25)
    assert only.returns == [0.25]


def naive(rewards, values, gamma, lam):
    """The definition: A_t = sum_k (gamma lam)^k delta_{t+k}."""
    n = len(values)
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    lam_value=st.floats(0, 1),
    data=st.data(),
)
def test_against_a_naive_loop(shape, gamma, lam, lam_value, data):
    number = st.floats(-2, 2)
    turns, rewards, values = [], [], []
    prompt: list[int] = [0]
    for i, n in enumerate(shape):
        v = data.draw(st.lists(number, min_size=n, max_size=n))
        r = data.draw(number)
        turns.append(turn(v, prompt=prompt, parent=i - 1 if i else None, reward=r))
        prompt = [*prompt, *[1] * n, 9]
        values += v
        rewards += [0.0] * (n - 1) + [r]
    bonus = data.draw(number)
    rewards[-1] += bonus
    trajectory = episode(*turns, reward=sum(t.reward for t in turns) + bonus)
    costs = data.draw(st.lists(number, min_size=len(values), max_size=len(values)))
    left = list(costs)
    for each in turns:
        each.costs, left = left[: each.length], left[each.length :]
    rewards = list(np.subtract(rewards, costs))
    assign_gae(trajectory, gamma, lam, lam_value)
    expected = naive(rewards, values, gamma, lam)
    target = naive(rewards, values, gamma, lam_value)
    got = [a for t in turns for a in t.advantage]
    assert got == pytest.approx(expected, abs=1e-9)
    assert [r for t in turns for r in t.returns] == pytest.approx(list(np.add(target, values)), abs=1e-9)


@pytest.mark.parametrize("by_env", [0.0, 0.4, 1.0])
def test_the_return_is_the_trajectorys_reward_whoever_paid_it(by_env):
    a, b = turn([0.0], reward=by_env), turn([0.0], prompt=(0, 1, 5), parent=0)
    assign_gae(episode(a, b, reward=1.0), 1.0, 1.0)
    assert a.returns == pytest.approx([1.0]) and b.returns == pytest.approx([1.0 - by_env])


def test_rewritten_context_continues_the_turn_before():
    # MemAgent: three calls, each from a fresh prompt. The last one's success reaches the first memory.
    turns = [turn([0.0], prompt=(0, k)) for k in range(3)]
    assert followers(turns) == {0: [1], 1: [2], 2: []}
    assign_gae(episode(*turns, reward=1.0), 0.5, 1.0)
    assert [t.advantage[0] for t in turns] == pytest.approx([0.25, 0.5, 1.0])


def test_branches_are_averaged():
    #        0 -- 1 (reward 1)           values 0, gamma .5, lambda 1
    #          \- 2 (reward 0)           A_1 = 1, A_2 = 0, A_0 = .5 x mean(1, 0) = .25
    turns = [
        turn([0.0]),
        turn([0.0], prompt=(0, 1, 5), parent=0, reward=1.0),
        turn([0.0], prompt=(0, 1, 6), parent=0, reward=0.0),
    ]
    assert followers(turns) == {0: [1, 2], 1: [], 2: []}
    assign_gae(episode(*turns, reward=1.0), 0.5, 1.0)
    assert [t.advantage[0] for t in turns] == pytest.approx([0.25, 1.0, 0.0])


def test_two_roots_of_one_prompt_are_branches_not_a_chain():
    turns = [turn([0.0]), turn([0.0], parent=0, prompt=(0, 1, 5)), turn([0.0]), turn([0.0], parent=2, prompt=(0, 1, 5))]
    assert followers(turns) == {0: [1], 1: [], 2: [3], 3: []}


def test_rewritten_branches_share_their_predecessor():
    # One memory, then two attempts at the answer from the same fresh prompt: both follow the memory.
    turns = [turn([0.0], prompt=(0, 1)), turn([0.0], prompt=(0, 2)), turn([0.0], prompt=(0, 2))]
    assert followers(turns) == {0: [1, 2], 1: [], 2: []}


def test_untrained_and_empty_turns_are_passed_over():
    # 0 (trained) -> 1 (another agent) -> 2 (trained) -> 3 (no tokens); a probe 4 hangs off 0.
    turns = [
        turn([0.5]),
        turn([9.0], parent=0, trainable=False, reward=5.0),
        turn([0.25], parent=1, prompt=(0, 1, 1, 3)),
        turn([], parent=2),
        turn([9.0], parent=0, trainable=False),
    ]
    assert followers(turns) == {0: [2], 2: []}
    assign_gae(episode(*turns, reward=1.0), 1.0, 1.0)
    assert turns[0].advantage == pytest.approx([0.5]) and turns[2].advantage == pytest.approx([0.75])
    assert turns[1].advantage is None and turns[4].advantage is None


def test_missing_values_are_named():
    bad = Turn([0], [1, 1])
    with pytest.raises(ValueError, match="Turn 0 has 0 values for 2 tokens"):
        assign_gae(episode(bad, reward=1.0), 1.0, 1.0)


def test_nothing_to_train_is_no_error():
    assign_gae(episode(turn([1.0], trainable=False), reward=1.0), 1.0, 1.0)
