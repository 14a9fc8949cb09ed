"""Logged episodes, and trajectories read as logs."""

import json
import math

import pytest

from rlready.experience.episode import LoggedEpisode, from_trajectory
from rlready.types import Message, Task, Trajectory, Turn, Verdict


def turn(text, *context, parent=None, **kw):
    return Turn([1], [2], parent=parent, text=text, context=context, **kw)


def tool(text):
    return Message("tool", text)


def trajectory(*turns, **kw):
    kw = {"reward": 1.0, "verdict": Verdict.RIGHT, "info": {"last_reply": ""}, "seed": 11} | kw
    return Trajectory(Task.of("the task", id=3), list(turns), **kw)


def test_replies_belong_to_the_action_before_them():
    log = from_trajectory(
        trajectory(
            turn("look", Message("system", "be good"), Message.user("find it"), version=4),
            turn(" take ", tool("a key"), parent=0, version=4),
            turn("done", Message("assistant", "take"), tool("taken"), parent=1, version=[4, 5]),
        ),
        source="mine",
    )
    assert (log.instruction, log.actions, log.replies) == ("find it", ("look", "take", "done"), ("a key", "taken", ""))
    assert (log.success, log.finished, log.source, log.version, log.seed) == (True, True, "mine", 5, 11)
    assert log.task_id == Task.of("the task", id=3).id and len(log) == 3


def test_last_reply_of_a_truncated_episode_is_in_info():
    t = trajectory(
        turn("a", Message.user("go")),
        turn("b", tool("one"), parent=0),
        info={"last_reply": "two"},
        verdict=Verdict.WRONG,
        reward=0.0,
        truncated=True,
    )
    log = from_trajectory(t)
    assert (log.replies, log.success, log.finished) == (("one", "two"), False, False)
    failed = trajectory(turn("a", Message.user("go")), failure="died", reward=math.nan, verdict=None)
    assert not from_trajectory(failed).finished


def test_probes_are_skipped_and_instruction_falls_back_to_the_task():
    log = from_trajectory(
        trajectory(turn("a"), turn("probe", parent=0, trainable=False), turn("b", tool("x"), parent=0))
    )
    assert (log.actions, log.replies, log.instruction) == (("a", "b"), ("x", ""), "the task")


def test_trees_and_empty_trajectories_are_refused():
    with pytest.raises(ValueError, match="turn 2 continues turn 0, not 1"):
        from_trajectory(trajectory(turn("a"), turn("b", parent=0), turn("c", parent=0)))
    with pytest.raises(ValueError, match="no turns"):
        from_trajectory(trajectory())


def test_json_and_lengths():
    log = LoggedEpisode("t", "go", ("a", "b\u2028"), ("x", ""), True, True, seed=2)
    assert LoggedEpisode.from_json(json.loads(json.dumps(log.to_json()))) == log
    with pytest.raises(ValueError, match="2 actions but 1 replies"):
        LoggedEpisode("t", "go", ("a", "b"), ("x",), True, True)
