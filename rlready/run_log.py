"""What a run counts and logs: counters, TensorBoard events, trajectories as lines."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlready.types import Trajectory

_FRAME = ("step", "stage")


@dataclass
class Counters:
    """Everything a resumed run must not count twice.

    Attributes:
        sequence: grows with every commit; the greatest is the latest.
        offsets: bytes of each JSONL file at the last commit.
        spent: amounts by stage and kind.
        clock: seconds by stage.
    """

    sequence: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    spent: dict[str, dict[str, int]] = field(default_factory=dict)
    clock: dict[str, float] = field(default_factory=dict)

    def spend(self, stage: str, kind: str, n: int) -> None:
        """Add an amount."""
        kinds = self.spent.setdefault(stage, {})
        kinds[kind] = kinds.get(kind, 0) + int(n)

    def pass_time(self, stage: str, seconds: float) -> None:
        """Add seconds."""
        self.clock[stage] = self.clock.get(stage, 0.0) + seconds

    def spent_in(self, kind: str, stage: str | None) -> int:
        """An amount in a stage, its inner stages included, or in all (None)."""
        return sum(kinds.get(kind, 0) for name, kinds in self.spent.items() if _inside(name, stage))

    def seconds_in(self, stage: str | None) -> float:
        """Seconds in a stage, its inner stages included, or in all (None)."""
        return sum(s for name, s in self.clock.items() if _inside(name, stage))

    def totals(self) -> dict[str, int]:
        """All amounts by kind."""
        kinds = sorted({kind for amounts in self.spent.values() for kind in amounts})
        return {kind: self.spent_in(kind, None) for kind in kinds}

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {"sequence": self.sequence, "offsets": self.offsets, "spent": self.spent, "clock": self.clock}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**record)


def _inside(name: str, stage: str | None) -> bool:
    return stage is None or name == stage or name.startswith(f"{stage}/")


class EventLog:
    """Scalars for TensorBoard, written without threads.

    The folder is written afresh whenever a run is opened, from `metrics.jsonl`, so that it never shows steps that a
    resume has cut away. Steps of a stage are shown under the stage's name.
    """

    def __init__(self, folder: Path) -> None:
        """Start the event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._event = Event
        self._file = (folder / f"events.out.tfevents.{int(time.time())}.rlready").open("wb", buffering=0)
        self._writer = RecordWriter(self._file)
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one line of `metrics.jsonl`."""
        event = self._event(wall_time=time.time(), step=int(line["step"]))
        prefix = f"{line['stage']}/" if line.get("stage") else ""
        for name, value in line.items():
            if name not in _FRAME and isinstance(value, (int, float)) and math.isfinite(value):
                event.summary.value.add(tag=f"{prefix}{name}", simple_value=float(value))
        self._write(event)

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as one line: `to_json`, but a prompt is written as what it adds to the turn before.

    A chain of n turns then takes space in proportion to its length, not to its square.
    """
    record = trajectory.to_json()
    before: list[int] = []
    for turn in record["turns"]:
        prompt = turn["prompt_ids"]
        shared = _common(before, prompt)
        before = prompt + turn["completion_ids"]
        if shared:
            turn["shared"] = shared
            turn["prompt_ids"] = prompt[shared:]
    return record


def read_trajectory(record: Mapping[str, Any]) -> Trajectory:
    """Inverse of `trajectory_record`; keys that the run added are left out."""
    before: list[int] = []
    turns = []
    for turn in record["turns"]:
        turn = dict(turn)
        turn["prompt_ids"] = before[: turn.pop("shared", 0)] + turn["prompt_ids"]
        before = turn["prompt_ids"] + turn["completion_ids"]
        turns.append(turn)
    kept = {k: v for k, v in record.items() if k not in ("step", "stage", "group", "index")}
    return Trajectory.from_json(kept | {"turns": turns})


def _common(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
