"""Trajectory lines, progress, reading a run, and ATIF out and in."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import atif
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.export import export_atif, from_atif, to_atif
from rlready.progress import ProgressBoard, duration
from rlready.run_log import read_trajectory, trajectory_record
from rlready.run_read import load_run
from rlready.types import Group, Message, Part, Task, ToolCall, Trajectory, Turn, Verdict
from tests.small_run import group, make, play

# -- trajectories and progress --

ids = st.lists(st.integers(0, 5), max_size=6)


@given(st.lists(st.tuples(ids, ids, st.booleans()), max_size=6))
@settings(max_examples=60, deadline=None)
def test_trajectory_lines_are_lossless(parts: list[tuple[list[int], list[int], bool]]) -> None:
    turns, context = [], []
    for prompt, completion, fresh in parts:
        context = prompt if fresh else context + prompt
        turns.append(Turn(list(context), completion, [-1.0] * len(completion)))
        context = context + completion
    trajectory = Trajectory(Task.of("x"), turns, reward=1.0)
    line = json.loads(json.dumps(trajectory_record(trajectory) | {"step": 1, "stage": "", "group": 0, "index": 0}))
    assert read_trajectory(line).to_json() == trajectory.to_json()


class Terminal:
    """A console that keeps what was printed; time moves by hand."""

    def __init__(self) -> None:
        from rich.console import Console

        self.now = 0.0

        self.console = Console(file=io.StringIO(), width=100)
        self.board = ProgressBoard("lines", console=self.console, clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self.console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_lines_come_at_sensible_intervals() -> None:
    terminal = Terminal()
    with terminal.board.track("train", 100) as bar:
        for _ in range(100):
            terminal.now += 10.0
            bar.show({"reward": 0.4242, "kl": 1.0})
            bar.advance()
    lines = terminal.lines()
    assert lines[0] == "train 1/100, reward 0.424, 10 s elapsed, 16 min left"
    assert lines[-1] == "train 100/100, reward 0.424, 17 min elapsed"
    assert 15 <= len(lines) <= 25


def test_a_short_loop_prints_nothing() -> None:
    terminal = Terminal()
    with terminal.board.track("train", 40) as bar:
        for _ in range(40):
            terminal.now += 0.1
            bar.advance()
    assert terminal.lines() == []


def test_duration() -> None:
    assert [duration(s) for s in (3.4, 59.6, 200, 3700, 900)] == ["3 s", "1 min", "3 min 20 s", "1 h 1 min", "15 min"]


# -- reading and export --


def test_load_run_reads_metrics_and_finds_trajectories(tmp_path: Path) -> None:
    from rich.console import Console

    with make(tmp_path) as run:
        with run.stage("a"):
            play(run, 3)
        with run.stage("b"):
            run.log(1, {"reward": float("nan"), "kl": 0.5})
            wrong = group(9)
            wrong.trajectories[0].verdict, wrong.trajectories[0].reward = Verdict.WRONG, 0.0
            wrong.trajectories[0].turns[1].advantage = [-0.5]
            short = Trajectory(wrong.task, [Turn([1], [2], [-0.1])], reward=0.0, verdict=Verdict.WRONG)
            run.trajectories(1, [wrong, Group(wrong.task, [short])])
    loaded = load_run(run.dir)
    rewards = loaded.metrics["reward"]
    assert rewards.shape == (4,) and rewards[2] > rewards[0] and np.isnan(rewards[3])
    assert loaded.metrics.at("kl")[0].tolist() == [1] and loaded.metrics.stages == ["a", "b"]
    assert loaded.metrics.stage("a")["real"].tolist() == [10, 20, 30]
    with pytest.raises(UserError, match=r'Unknown metric "rewrd"\. Did you mean reward'):
        loaded.metrics["rewrd"]
    assert loaded.config == {"lr": 0.1}
    found = loaded.trajectories.where(verdict="wrong").sort("length")
    assert [t.trajectory.length for t in found] == [1, 3] and found[0].trajectory.to_json() == short.to_json()
    worst = loaded.trajectories.pick("worst")
    assert worst.trajectory.to_json() == wrong.trajectories[0].to_json() and (worst.step, worst.stage) == (1, "b")
    with pytest.raises(UserError, match='Unknown field "verdcit"'):
        loaded.trajectories.where(verdcit="wrong")
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    worst.show(console)
    text = console.export_text()
    for part in (
        "verdict wrong",
        "hello",
        "turn 1, 1 tokens, reward 1",
        "advantage by token: 6 -0.50",
        "log-prob -0.30",
    ):
        assert part in text


def full_trajectory() -> Trajectory:
    """A tree with a tool reply, a rewritten context, a probe and everything a turn can carry."""
    call = ToolCall("look", '{"where": "sky"}', "c1")
    context = (
        Message("system", "Rules."),
        Message("assistant", "Let me look.", (call, ToolCall("bad", "{not json", ""))),
        Message("tool", "blue", tool_call_id="c1"),
        Message("user", (Part("text", "What is this?"), Part("image", image="sky.jpg"))),
    )
    turns = [
        Turn([1, 2], [3], [-0.5], context=context, text="sky", tag="plan", version=[4], entropy=[0.7], value=[0.1]),
        Turn(
            [1, 2, 3, 9], [4, 5], [-0.1, -0.25], 0, 1.0, context=(Message("tool", "ok"),), stop="tool", text="x\u2028y"
        ),
        Turn([1, 2, 3, 8], [6], [-0.125], 0, trainable=False, context=(Message.user("no"),), temperature=0.5),
        Turn([7], [8], [], None, context=(Message.user("memory"),), advantage=[0.5], support=[np.array([8, 9])]),
    ]
    return Trajectory(Task.of("q", answer="a"), turns, 0.5, {"f": 1.0}, Verdict.NO_ANSWER, None, 7, True, 3, {"k": [1]})


def test_atif_round_trip_through_its_models() -> None:
    trajectory = full_trajectory()
    document = to_atif(trajectory, model="tiny", session="t-1", step=4)
    again = atif.Trajectory.model_validate_json(json.dumps(document.to_json_dict()))
    assert from_atif(again).to_json() == trajectory.to_json()
    agents = [s for s in again.steps if s.source == "agent" and not s.is_copied_context]
    assert [s.metrics.completion_token_ids for s in agents if s.metrics] == [[3], [4, 5], [6], [8]]
    assert agents[1].metrics is not None and agents[1].metrics.logprobs == [-0.1, -0.25]
    assert agents[0].observation is not None and agents[0].observation.results[0].content == "ok"
    assert agents[1].observation is None, "a sibling branch is no reply to the turn written before it"
    examples = [s for s in again.steps if s.is_copied_context]
    assert [c.arguments for c in examples[0].tool_calls or []] == [{"where": "sky"}, {"_text": "{not json"}]
    assert again.schema_version == "ATIF-v1.8" and again.final_metrics is not None
    assert again.final_metrics.total_completion_tokens == 5


def test_atif_files_and_a_failed_episode(tmp_path: Path) -> None:
    failed = Trajectory(Task((Message.user("hello"),)), [], failure="the environment died")
    with make(tmp_path) as run:
        run.trajectories(1, [Group(failed.task, [failed, full_trajectory()])])
    files = export_atif(load_run(run.dir).trajectories, tmp_path / "out", run=run.name)
    assert [f.name for f in files] == ["step000001-g0-0.json", "step000001-g0-1.json"]
    back = atif.Trajectory.model_validate_json(files[0].read_text())
    assert from_atif(back).to_json() == failed.to_json() and back.steps[0].message == "hello"
    with pytest.raises(UserError, match="not exported by rlready"):
        from_atif(back.model_copy(update={"extra": None}))
