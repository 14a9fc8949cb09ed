"""A run with a part that only counts: for tests of the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.types import Group, Message, Task, Trajectory, Turn, Verdict


class Adder:
    """A learner small enough to follow by hand: weight += step * its own noise."""

    def __init__(self, size: int = 3) -> None:
        self.weight = torch.zeros(size)
        self.cursor = 0

    def weights(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"weight": self.weight.clone()}, "cursor": self.cursor}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["model"]["weight"].clone()
        self.cursor = state["cursor"]


class Crash(Exception):
    pass


def play(run: Run, n: int, crash_after: int | None = None, every: int = 2) -> Adder:
    """A loop with all that a run offers; draws from the global generator on purpose."""
    learner = Adder()
    parts = {"learner": learner}
    run.restore(parts)
    for step in run.steps(n):
        learner.weight = learner.weight * 0.9 + torch.rand(3) * step
        learner.cursor += 1
        run.spend(real=10)
        run.log(step, {"reward": float(learner.weight.sum())})
        run.trajectories(step, [group(step)])
        if step % every == 0:
            run.save(step, parts)
        if step == crash_after:
            raise Crash
    return learner


def group(step: int) -> Group:
    task = Task.of(f"say {step}", answer=str(step))
    turns = [
        Turn([1, 2], [3, 4], [-0.1, -0.2], text="a b", context=(Message.user("hello"),)),
        Turn([1, 2, 3, 4, 5], [6], [-0.3], parent=0, advantage=0.5, reward=1.0, text="c"),
    ]
    return Group(task, [Trajectory(task, turns, reward=float(step), verdict=Verdict.RIGHT, seed=step)])


def logged(run: Run | Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = read_jsonl((run if isinstance(run, Path) else run.dir) / name)
    return [{k: v for k, v in line.items() if k not in ("run_seconds", "timings")} for line in lines]


def make(tmp_path: Path, **kw: Any) -> Run:
    return Run.create("t", kw.pop("config", {"lr": 0.1}), kw.pop("seed", 3), root=tmp_path, progress="quiet", **kw)
