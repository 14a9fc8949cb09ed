"""Rewards from elsewhere than the log: a file of `id, reward`, a mapping, or a verifier."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from rlready.errors import UserError
from rlready.experience.logs.report import LogReport
from rlready.experience.recording import Recording

Rewards = str | Path | Mapping[str, float] | Callable[[Recording], float | None]


class Rewarder:
    """Gives recordings their rewards, and remembers which of a file's it used."""

    def __init__(self, rewards: Rewards, report: LogReport) -> None:
        """Read the file, where it is one.

        Raises:
            UserError: it cannot be read, or an entry is no number.
        """
        self.report = report
        self.verify = rewards if callable(rewards) and not isinstance(rewards, Mapping) else None
        self.given: dict[str, float] = {}
        if isinstance(rewards, (str, Path)):
            self.given = read_rewards(Path(rewards))
        elif isinstance(rewards, Mapping):
            self.given = {str(k): float(v) for k, v in rewards.items()}
        self.used: set[str] = set()

    def apply(self, recording: Recording) -> Recording:
        """The recording with its reward; as it is where none is given for it.

        Raises:
            UserError: the verifier gave something that is no finite number.
        """
        if self.verify is not None:
            found = self.verify(recording)
            if found is not None and not math.isfinite(found):
                raise UserError(
                    f"The verifier gave {found} for {recording.place}; it must give a finite number or None."
                )
        else:
            found = self._look_up(recording)
        if found is None:
            self.report.notes["recordings without a reward of their own (the log's was kept)"] += 1
            return recording
        meta = {k: v for k, v in recording.meta.items() if k != "success"}
        return replace(recording, reward=float(found), meta=meta)

    def finish(self) -> None:
        """Report the rewards that fit no recording."""
        self.report.unmatched += sorted(set(self.given) - self.used)

    def _look_up(self, recording: Recording) -> float | None:
        trial = recording.meta.get("trial")
        names = [recording.id]
        if trial is not None:
            names += [f"{recording.task_id}{mark}{trial}" for mark in ("-", "/", ":", "_", " ", "#")]
        for name in names:
            if name in self.given:
                self.used.add(name)
                return self.given[name]
        return None


def read_rewards(path: Path) -> dict[str, float]:
    """Rewards by id, from JSONL (`{"id": ..., "reward": ...}`) or CSV with a header.

    `task_id` and `trial` may stand in place of the id.

    Raises:
        UserError: the file is not there, a line has no id or no finite reward, or an id has two rewards.
    """
    if not path.is_file():
        raise UserError(f"There is no file of rewards {path}.")
    out: dict[str, float] = {}
    for line, row in _rows(path):
        ident = row.get("id")
        if ident in (None, ""):
            task, trial = row.get("task_id"), row.get("trial")
            ident = f"{task}-{trial}" if task not in (None, "") and trial not in (None, "") else None
        try:
            reward = float(row["reward"])
        except (KeyError, TypeError, ValueError):
            reward = math.nan
        if ident is None or not math.isfinite(reward):
            raise UserError(
                f"{path}, line {line}: a reward needs an id (or task_id and trial) and a finite reward, "
                f"but the line has {', '.join(f'{k}={v}' for k, v in list(row.items())[:4]) or 'nothing'}."
            )
        if out.get(str(ident), reward) != reward:
            raise UserError(f"{path}, line {line}: {ident} has two different rewards; leave one.")
        out[str(ident)] = reward
    return out


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if path.suffix.lower() == ".csv" or data.lstrip()[:1] not in (b"{", b""):
        try:
            lines = data.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{path} is not UTF-8 text.") from None
        reader = csv.DictReader(lines, skipinitialspace=True)
        return [(reader.line_num, {k.strip(): v for k, v in row.items() if k is not None}) for row in reader]
    out = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.strip():
            try:
                row = orjson.loads(raw)
            except orjson.JSONDecodeError:
                row = None
            if not isinstance(row, dict):
                raise UserError(f'{path}, line {number} is no JSON object such as {{"id": "...", "reward": 1}}.')
            out.append((number, row))
    return out
