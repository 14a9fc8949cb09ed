"""Plain transitions: where episodes begin and end, and what is done and replied in them."""

from __future__ import annotations

from typing import Any

import pytest

from rlready.experience.logs import episode_of


def row(state: Any, action: Any, after: Any, reward: Any = 0.0, done: Any = False, **more: Any) -> dict[str, Any]:
    return {"state": state, "action": action, "next_state": after, "reward": reward, "done": done, **more}


def test_without_ids_an_episode_ends_at_done_or_at_a_jump(reading: Any) -> None:
    rows = [
        row("A", "right", "B"),
        row("B", "right", "C", 1.0, True),
        row("A", "left", "D"),
        row("X", "wait", "X"),
        row("X", "wait", "Y"),
    ]
    got, report = reading(rows)
    episodes = [episode_of(r)[0] for r in got]
    assert [(e.instruction, e.actions, e.replies) for e in episodes] == [
        ("A", ("right", "right"), ("B", "C")),
        ("A", ("left",), ("D",)),
        ("X", ("wait", "wait"), ("X", "Y")),
    ]
    assert [e.rewards for e in episodes] == [(0.0, 1.0), (0.0,), (0.0, 0.0)]
    assert [(e.success, e.judged, e.finished) for e in episodes] == [
        (True, True, True), (False, True, False), (False, True, False),
    ]  # fmt: skip
    assert episodes[0].task_id == episodes[1].task_id != episodes[2].task_id
    assert report.records == 5 and report.recordings == 3 and not report.reasons


def test_ids_gather_rows_that_are_interleaved(reading: Any) -> None:
    rows = [
        row("A", "1", "B", episode_id=7, task_id="t", seed=5),
        row("P", "x", "Q", episode_id=8, task_id="u"),
        row("B", "2", "", 1, 1, episode_id=7, task_id="t", seed=5),
        row("Q", "y", "R", episode_id=8, task_id="u", truncated=True),
        row("A", "1", "B", episode_id=7, task_id="t", done=None),
    ]
    got, report = reading(rows)
    assert [(r.id, r.task_id, r.done, r.seed) for r in got] == [
        ("7", "t", True, 5),
        ("8", "u", False, 0),
        ("7#2", "t", None, 0),
    ]
    assert episode_of(got[0])[0].replies == ("B", "") and not report.reasons


def test_objects(reading: Any) -> None:
    """States are written with sorted keys, so equal ones are equal; an action with a name is a tool call."""
    rows = [
        {
            "obs": {"b": 1, "a": [2]},
            "action": {"name": "go", "arguments": {"to": 3}},
            "next_obs": {"a": 1},
            "reward": 0,
        },
        {"obs": {"a": 1}, "action": 4, "next_obs": "end", "terminated": True, "reward": 0.25},
    ]
    (got,), _ = reading(rows)
    episode, _ = episode_of(got)
    assert episode.instruction == '{"a":[2],"b":1}'
    assert episode.actions == ('<tool_call>{"name": "go", "arguments": {"to": 3}}</tool_call>', "4")
    assert episode.replies == ('{"a":1}', "end") and got.reward == 0.25 and episode.rewards == (0.0, 0.25)


def test_a_record_that_is_a_whole_episode(reading: Any) -> None:
    record = {
        "episode_id": "e",
        "transitions": [row("A", "1", "B", task_id="t"), row("B", "2", "C", 1, True, success=False)],
    }
    (got,), report = reading([record])
    episode, _ = episode_of(got)
    assert (got.id, got.task_id, episode.actions, episode.replies) == ("e", "t", ("1", "2"), ("B", "C"))
    assert not episode.success and episode.judged, "what the log says of success counts more than the rewards"
    assert report.files.popitem()[1] == "transitions"


@pytest.mark.parametrize("reward", [float("nan"), None])
def test_without_rewards_nothing_is_judged(reading: Any, reward: Any) -> None:
    (got,), _ = reading([row("A", "1", "B", reward, True)])
    assert got.reward is None and got.rewards == () and not episode_of(got)[0].judged


def test_rows_that_do_not_fit_are_dropped(reading: Any) -> None:
    rows = [row("A", "1", "B"), {"state": "B", "action": "2"}, row("B", "2", "C", 1, True), 5]
    (got,), report = reading(rows)
    assert len(episode_of(got)[0]) == 2
    assert [(d.line, d.reason) for d in report.dropped] == [
        (2, "no transitions record; the keys are state, action"), (4, "no transitions record; the keys are a number"),
    ]  # fmt: skip
