"""Numbers of a collection, by hand."""

from __future__ import annotations

import pytest

from rlready.rollout.tally import tally
from rlready.types import Group, Task, Trajectory, Turn, Verdict

TASK = Task.of("t")


def episode(reward=0.0, stop="end", verdict=Verdict.WRONG, calls=None, **kw):
    info = {} if calls is None else {"env": {"tool_calls": calls}}
    return Trajectory(TASK, [Turn([0], [1, 2], stop=stop)], reward=reward, verdict=verdict, info=info, **kw)


def groups(*rewards):
    return [Group(TASK, [episode(r) for r in each]) for each in rewards]


@pytest.mark.parametrize(
    ("rewards", "right", "wrong"),
    [
        ([(1, 1), (0, 0), (0, 0), (0, 1)], 1 / 4, 2 / 4),
        ([(1, 1), (1, 1)], 1.0, 0.0),
        ([(0, 0), (0, 0)], 0.0, 1.0),  # nobody was right: not the best there is, only the best that was seen
        ([(0, 0), (-1, -1)], 1 / 2, 1 / 2),
        ([(-1, -1)], 0.0, 1.0),
        ([(0.1, 0.1), (0.1, 0.9)], 0.0, 1 / 2),
    ],
)
def test_uniform_groups_by_sign(rewards, right, wrong):
    out = tally(groups(*rewards), 1.0)
    assert (out["uniform_right"], out["uniform_wrong"]) == pytest.approx((right, wrong))
    assert out["uniform"] == pytest.approx(right + wrong)


def test_cut_off_and_missing_answers_are_shares_of_valid_episodes():
    every = [
        episode(stop="length"),
        episode(verdict=Verdict.NO_ANSWER),
        episode(stop="length", verdict=Verdict.NO_ANSWER),
        episode(1.0, verdict=Verdict.RIGHT),
        episode(stop="length", failure="the environment died"),
    ]
    every[3].turns.append(Turn([0], [1], stop="length", trainable=False))  # a probe was cut, not the answer
    out = tally([Group(TASK, every)], 1.0)
    assert (out["cut_off"], out["no_answer"], out["success"]) == (2 / 4, 2 / 4, 1 / 4)
    assert "tool_calls" not in out


def test_tool_calls_are_counted_where_there_are_tools():
    assert tally([Group(TASK, [episode(calls=3), episode(calls=0), episode()])], 1.0)["tool_calls"] == 1.5


def test_a_collection_without_a_valid_episode():
    out = tally([Group(TASK, [episode(failure="died")])], 1.0)
    assert out["failures"] == 1.0 and "cut_off" not in out and "uniform_right" not in out
