"""Step advantages at states that several rollouts meet, by hand and as properties; learning."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.algorithms import ALGORITHMS, algorithm
from rlready.algorithms.turns import GiGPO, moments, turn_returns
from rlready.errors import UserError
from rlready.types import Group, Message, Task, Trajectory, Turn
from tests.algorithms.say_digit import learn
from tests.algorithms.toy_bigram import Bigram, policy_of


def rollout(*steps, reward=0.0):
    """Turns given as (what the environment says, the token answered) or (..., reward of the turn)."""
    turns: list[Turn] = []
    prompt: list[int] = [0]
    for says, token, *paid in steps:
        new = (Message.user(says),) if turns else (Message("system", "Play."), Message.user(says))
        turns.append(
            Turn(
                prompt,
                [token],
                [-1.0],
                parent=len(turns) - 1 if turns else None,
                context=new,
                reward=sum(paid),
            )
        )
        prompt = [*prompt, token, 3]
    return Trajectory(Task.of("t"), turns, reward=reward)


def circle():
    """gamma .5. What each turn's return is:

    A   s1 .5    s2 1                  reward 1 at the end
    B   s1 .25   s2 .5   s2 1          likewise, after a turn in a circle
    C   s1 0     s3 0                  reward 0
    """
    a = rollout(("s1", 1), ("s2", 1), reward=1.0)
    b = rollout(("s1", 1), ("s2", 2), ("s2", 1), reward=1.0)
    c = rollout(("s1", 2), ("s3", 1), reward=0.0)
    return Group(a.task, [a, b, c])


def test_returns_by_hand():
    returns = [turn_returns(t, 0.5, t.reward) for t in circle().trajectories]
    assert returns == [{0: 0.5, 1: 1.0}, {0: 0.25, 1: 0.5, 2: 1.0}, {0: 0.0, 1: 0.0}]
    # Rewards of turns: .2 at once, .4 one step on, and what the episode's 1.0 has beyond them, .4, at the very end.
    paid = rollout(("s", 1, 0.2), ("s", 1, 0.4), reward=1.0)
    assert turn_returns(paid, 0.5, paid.reward) == pytest.approx({0: 0.2 + 0.5 * 0.8, 1: 0.8})


def test_step_advantages_by_hand():
    """s1: the mean of .5, .25, 0 is .25.  s2: A's 1 and B's mean .75 make .875, not the turns' .833.  s3: alone."""
    steps = GiGPO(gamma=0.5).steps(circle())
    assert [list(each) for each in steps] == [[0, 1], [0, 1, 2], [0]]
    assert [list(each.values()) for each in steps] == [
        pytest.approx([0.25, 0.125]),
        pytest.approx([0.0, -0.375, 0.125]),
        pytest.approx([-0.25]),
    ]


def test_the_deviation_counts_rollouts():
    # s2: weights 1/2 for A's visit, 1/4 for each of B's: .5 x .125^2 + .25 x .375^2 + .25 x .125^2 = .046875.
    steps = GiGPO(gamma=0.5, step_std=True).steps(circle())
    assert steps[1][1] == pytest.approx(-0.375 / math.sqrt(0.046875))
    # s1: deviation of .5, .25, 0 is sqrt(.125 / 3).
    assert steps[0][0] == pytest.approx(0.25 / math.sqrt(0.125 / 3))


def test_by_action():
    """s1: token 1 is worth (.5 + .25) / 2 = .375 and token 2 nothing, the state .25.

    s2: token 1 is worth 1 (A 1, B 1) and token 2 .5, the state .875.
    """
    steps = GiGPO(gamma=0.5, step="action").steps(circle())
    assert steps[0] == pytest.approx({0: 0.125, 1: 0.125})
    assert steps[1] == pytest.approx({0: 0.125, 1: -0.375, 2: 0.125})
    assert steps[2] == pytest.approx({0: -0.25})


@pytest.mark.parametrize("omega", [0.0, 1.0, 0.3])
def test_both_advantages_are_added(omega):
    group = circle()
    asyncio.run(GiGPO(gamma=0.5, omega=omega, advantage="mean").credit([group], policy_of(Bigram())))
    got = [[turn.advantage for turn in t.turns] for t in group.trajectories]
    episode = [1 / 3, 1 / 3, -2 / 3]
    step = [[0.25, 0.125], [0.0, -0.375, 0.125], [-0.25, 0.0]]
    for mine, e, s in zip(got, episode, step, strict=True):
        assert mine == pytest.approx([e + omega * x for x in s])


def test_the_whole_context_as_state():
    """By context, B's second visit of s2 differs from its first; s1 is met by all, the first s2 by A and B."""
    group = circle()
    steps = GiGPO(gamma=0.5, state="prompt").steps(group)
    assert [list(each) for each in steps] == [[0, 1], [0, 1], [0]]
    assert steps[0][1] == pytest.approx(0.25) and steps[1][1] == pytest.approx(-0.25)  # 1 and .5, mean .75


def test_what_the_newest_words_are():
    algo = GiGPO()
    first = rollout(("room", 1)).turns[0]
    again = Turn([0], [1], context=(Message.user("old"), Message("assistant", "go"), Message.user("room")))
    other = Turn([0], [1], context=(Message("tool", "room"),))
    nothing = Turn([0], [1])
    t = Trajectory(Task.of("t"), [first, again, other, nothing])
    keys = [algo.key(t, i) for i in range(4)]
    assert keys[0] == keys[1] != keys[2] and keys[3] is None  # a system message and what was said before do not count


def test_a_rollout_alone_in_circles_is_not_compared_with_itself():
    a = rollout(("s", 1), ("s", 2), ("s", 1), reward=1.0)
    b = rollout(("z", 1), reward=0.0)
    assert GiGPO().steps(Group(a.task, [a, b])) == [{}, {}]


def test_excluded_rollouts_and_turns_that_are_not_trained_are_left_out():
    group = circle()
    group.trajectories[0].failure = "the environment died"
    group.trajectories[1].turns[1].trainable = False
    steps = GiGPO(gamma=0.5).steps(group)
    assert len(steps) == 2 and list(steps[0]) == list(steps[1]) == [0]


def test_an_answer_in_one_turn_is_credited_as_by_its_group():
    group = Group(Task.of("t"), [rollout(("q", k), reward=r) for k, r in enumerate([1.0, 0.0, 0.5])])
    asyncio.run(GiGPO(advantage="mean").credit([group], policy_of(Bigram())))
    assert [t.turns[0].advantage for t in group.trajectories] == pytest.approx([1.0, -1.0, 0.0])


def test_equal_returns_give_exactly_zero():
    group = Group(Task.of("t"), [rollout(("q", 1), reward=0.1) for _ in range(7)])
    asyncio.run(GiGPO().credit([group], policy_of(Bigram())))
    assert [t.turns[0].advantage for t in group.trajectories] == [0.0] * 7


worlds = st.lists(
    st.tuples(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2)), min_size=1, max_size=6), st.floats(-2, 2)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(world=worlds, step=st.sampled_from(["return", "action"]), gamma=st.floats(0, 1))
def test_rollouts_balance_at_every_state(world, step, gamma):
    """Over the rollouts that met a state, the mean of each one's mean step advantage is 0; none is met by one alone."""
    group = Group(Task.of("t"), [rollout(*steps, reward=r) for steps, r in world])
    algo = GiGPO(gamma=gamma, step=step)
    met = defaultdict(lambda: defaultdict(list))
    for k, (trajectory, each) in enumerate(zip(group.valid, algo.steps(group), strict=True)):
        for i, value in each.items():
            met[algo.key(trajectory, i)][k].append(value)
    for rollouts in met.values():
        assert len(rollouts) > 1
        if step == "return":
            assert np.mean([np.mean(values) for values in rollouts.values()]) == pytest.approx(0, abs=1e-9)
    for state in "abc":  # and nothing that could be compared was left out
        visitors = [k for k, (steps, _) in enumerate(world) if any(s == state for s, _ in steps)]
        key = next((k for k in met if k and f'"{state}"' in k), None)
        assert (len(visitors) > 1) == (key is not None)
        if key is not None:
            assert sorted(met[key]) == visitors


@given(st.dictionaries(st.integers(0, 5), st.lists(st.floats(-3, 3), min_size=1, max_size=4), min_size=1))
def test_moments_are_those_of_the_mean_over_rollouts(values):
    mean, std = moments({k: [(0, v) for v in each] for k, each in values.items()})
    assert mean == pytest.approx(np.mean([np.mean(v) for v in values.values()]), abs=1e-9)
    square = np.mean([np.mean(np.square(v)) for v in values.values()])
    assert std == pytest.approx(math.sqrt(max(0.0, square - mean**2)), abs=1e-6)


@pytest.mark.parametrize(
    "fields",
    [{"state": "memory"}, {"step": "token"}, {"omega": -1.0}, {"gamma": 1.5}, {"std_floor": 1.0}],
    ids=lambda f: next(iter(f)),
)
def test_fields_that_cannot_work_are_refused(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        GiGPO(**fields)


@pytest.mark.parametrize("step", ["return", "action"])
def test_it_learns_over_two_turns(step):
    assert ALGORITHMS["gigpo"] is GiGPO
    first, last, metrics = learn(algorithm("gigpo", step=step, minibatches=2), 0, steps=25, turns=2)
    assert first < 0.4 and last >= 0.7, (first, last)
    assert 0 < metrics["states/shared"] <= 1
