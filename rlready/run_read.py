"""Reading a run: `load_run(path)` gives metrics as arrays and trajectories one can filter, sort and look at.

run = load_run("runs/telecom-grpo-1")
run.metrics["reward"]                                   # NumPy array by step
run.trajectories.where(verdict="wrong").sort("length")[0].show()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from rlready.config import read_toml
from rlready.errors import UserError, did_you_mean
from rlready.run_files import jsonl_lines, parse_line, read_jsonl
from rlready.run_folder import find_run, read_header, read_json
from rlready.run_log import read_trajectory
from rlready.types import Trajectory, Turn

Decode = Callable[[Sequence[int]], list[str]]

_ROLE_STYLE = {"system": "magenta", "user": "cyan", "tool": "yellow", "assistant": "green"}


class LoadedRun:
    """A run that is only read."""

    def __init__(self, folder: Path) -> None:
        """Read the small files; metrics and trajectories are read when asked for."""
        self.dir = folder
        self.name = folder.name
        self.header = read_header(folder)
        self.config: dict[str, Any] = read_toml(folder / "config.toml").get("config", {})
        self.report = read_json(folder / "report.json")

    @property
    def metrics(self) -> Metrics:
        """What was logged, by step."""
        return Metrics(read_jsonl(self.dir / "metrics.jsonl"))

    @property
    def trajectories(self) -> Trajectories:
        """The episodes that were written."""
        return Trajectories.read(self.dir / "trajectories.jsonl", token_decoder(self.dir))


def load_run(run: str | Path, root: str | Path = "runs") -> LoadedRun:
    """Read a run, given by path or by name.

    Raises:
        UserError: there is no such run; the nearest names are offered.
    """
    return LoadedRun(find_run(run, root))


class Metrics(Mapping[str, NDArray[np.float64]]):
    """Logged metrics: `metrics["reward"]` has one value per line that holds it, in the order of logging."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Wrap lines of `metrics.jsonl`."""
        self.lines = list(lines)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """All values of a metric; nan where it was not finite.

        Raises:
            UserError: it was never logged; the nearest names are offered.
        """
        if name not in self:
            raise did_you_mean("metric", name, self)
        values = [line[name] for line in self.lines if name in line]
        return np.asarray([math.nan if v is None else v for v in values], dtype=np.float64)

    def __contains__(self, name: object) -> bool:
        """Whether it was ever logged."""
        return any(name in line for line in self.lines)

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of their first appearance."""
        return iter(dict.fromkeys(name for line in self.lines for name in line if name != "stage"))

    def __len__(self) -> int:
        """How many metrics there are."""
        return len(list(iter(self)))

    @property
    def stages(self) -> list[str]:
        """The stages that logged something, in order."""
        return list(dict.fromkeys(str(line.get("stage", "")) for line in self.lines))

    def stage(self, name: str) -> Metrics:
        """One stage's metrics.

        Raises:
            UserError: there is no such stage.
        """
        if name not in self.stages:
            if not any(self.stages):
                raise UserError(f'There is no stage "{name}": this run has no stages.')
            raise did_you_mean("stage", name, self.stages)
        return Metrics([line for line in self.lines if line.get("stage", "") == name])

    def at(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of one metric."""
        steps = [int(line["step"]) for line in self.lines if name in line]
        return np.asarray(steps, dtype=np.int64), self[name]


class LoggedTrajectory:
    """A trajectory and where in the run it was written."""

    def __init__(self, record: Mapping[str, Any], decode: Decode | None) -> None:
        """Wrap one line of `trajectories.jsonl`."""
        self.step, self.stage = int(record["step"]), str(record["stage"])
        self.group, self.index = int(record["group"]), int(record["index"])
        self.trajectory: Trajectory = read_trajectory(record)
        self._decode = decode

    def show(self, console: Console | None = None) -> None:
        """Print messages, completions, rewards, and the advantage of every token."""
        (console or Console()).print(self)

    def __rich__(self) -> Group:
        """For a terminal or notebook."""
        t = self.trajectory
        head = Text(f"step {self.step}", style="bold")
        for name, value in (
            ("stage", self.stage), ("task", t.task.id), ("reward", _number(t.reward)), ("verdict", t.verdict),
            ("turns", len(t.turns)), ("tokens", t.length), ("failure", t.failure), ("seed", t.seed or None),
        ):  # fmt: skip
            if value not in (None, ""):
                head.append(f"  {name} ", style="dim").append(str(value), style="bold" if name != "failure" else "red")
        if t.scores:
            head.append("\nscores ", style="dim").append(", ".join(f"{k} {_number(v)}" for k, v in t.scores.items()))
        blocks: list[Any] = [head]
        if t.task.prompt and not (t.turns and t.turns[0].context):
            blocks += [_message(m.role, m.text) for m in t.task.prompt]
        for i, turn in enumerate(t.turns):
            blocks += [_message(m.role, m.text) for m in turn.context]
            blocks.append(_completion(i, turn, self._decode))
        return Group(*blocks)


class Trajectories(Sequence[LoggedTrajectory]):
    """Episodes of a run. Only a summary of each is kept in memory; an episode is read when it is looked at."""

    def __init__(self, path: Path, rows: list[dict[str, Any]], decode: Decode | None) -> None:
        """Use `Trajectories.read`."""
        self._path, self.rows, self._decode = path, rows, decode

    @classmethod
    def read(cls, path: Path, decode: Decode | None = None) -> Trajectories:
        """Summarise a `trajectories.jsonl`.

        Raises:
            UserError: a line is not JSON.
        """
        rows = []
        for number, offset, line in jsonl_lines(path):
            record = parse_line(path, number, line)
            reward = math.nan if record["reward"] is None else float(record["reward"])
            rows.append(
                {
                    "step": record["step"],
                    "stage": record["stage"],
                    "group": record["group"],
                    "index": record["index"],
                    "task": record["task"]["id"],
                    "reward": reward,
                    "verdict": record["verdict"],
                    "failure": record["failure"],
                    "turns": len(record["turns"]),
                    "env_steps": record["env_steps"],
                    "length": sum(len(t["completion_ids"]) for t in record["turns"]),
                    "_at": (number, offset, len(line)),
                }
            )
        return cls(path, rows, decode)

    @overload
    def __getitem__(self, index: int) -> LoggedTrajectory: ...
    @overload
    def __getitem__(self, index: slice) -> Trajectories: ...
    def __getitem__(self, index: int | slice) -> LoggedTrajectory | Trajectories:
        """One episode, or a part of them."""
        if isinstance(index, slice):
            return Trajectories(self._path, self.rows[index], self._decode)
        number, offset, size = self.rows[index]["_at"]
        with self._path.open("rb") as f:
            f.seek(offset)
            return LoggedTrajectory(parse_line(self._path, number, f.read(size)), self._decode)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.rows)

    def where(self, keep: Callable[[dict[str, Any]], bool] | None = None, **equal: Any) -> Trajectories:
        """Those whose summary has these values (`where(verdict="wrong", step=3)`), or passes a function of it.

        Raises:
            UserError: there is no such field.
        """
        for name in equal:
            self._known(name)
        rows = [r for r in self.rows if all(r[k] == v for k, v in equal.items()) and (keep is None or keep(r))]
        return Trajectories(self._path, rows, self._decode)

    def sort(self, field: str, *, reverse: bool = False) -> Trajectories:
        """Ordered by a field of the summary; what has no value (nan, None) comes last.

        Raises:
            UserError: there is no such field.
        """
        self._known(field)

        def empty(row: dict[str, Any]) -> bool:
            return row[field] is None or row[field] != row[field]

        full = sorted((r for r in self.rows if not empty(r)), key=lambda r: r[field], reverse=reverse)
        return Trajectories(self._path, full + [r for r in self.rows if empty(r)], self._decode)

    def pick(self, which: str) -> LoggedTrajectory:
        """By name: "worst", "best" (by reward, then later, then longer), "last", "longest", "shortest"; or a number.

        Raises:
            UserError: there is no such episode.
        """
        if not self.rows:
            raise UserError(f"{self._path} holds no trajectories.")
        latest = self.sort("length", reverse=True).sort("step", reverse=True)
        orders: dict[str, Callable[[], Trajectories]] = {
            "worst": lambda: latest.sort("reward"),
            "best": lambda: latest.sort("reward", reverse=True),
            "longest": lambda: self.sort("length", reverse=True),
            "shortest": lambda: self.sort("length"),
            "last": lambda: self[-1:],
        }
        if which in orders:
            return orders[which]()[0]
        if which.lstrip("-").isdigit():
            if -len(self) <= int(which) < len(self):
                return self[int(which)]
            raise UserError(f"There are {len(self)} trajectories, so {which} is out of range.")
        raise did_you_mean("trajectory", which, [*orders, f"a number below {len(self)}"])

    def _known(self, name: str) -> None:
        fields = [k for k in self.rows[0] if not k.startswith("_")] if self.rows else [name]
        if name not in fields:
            raise did_you_mean("field", name, fields)


def token_decoder(folder: Path) -> Decode | None:
    """The text of each token, by the tokenizer of the run's newest checkpoint; None where there is none."""
    kept = ("tokenizer/tokenizer.json", "model/tokenizer.json", "checkpoints/*/step-*/model/tokenizer.json")
    found = [path for pattern in kept for path in sorted(folder.glob(pattern))]
    if not found:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(found[-1]))

    def decode(ids: Sequence[int]) -> list[str]:
        return [tokenizer.id_to_token(int(i)) or f"<{i}>" for i in ids]

    return decode


def _number(value: float) -> str:
    return "unscored" if math.isnan(value) else f"{value:.4g}"


def _message(role: str, text: str) -> Panel:
    style = _ROLE_STYLE.get(role, "white")
    return Panel(Text(text), title=role, title_align="left", border_style=style, style="dim", padding=(0, 1))


def _completion(number: int, turn: Turn, decode: Decode | None) -> Panel:
    body = Text(turn.text)
    each = turn.advantage if isinstance(turn.advantage, list) else None
    if each is not None and turn.completion_ids:
        pieces = decode(turn.completion_ids) if decode else [str(i) for i in turn.completion_ids]
        body.append("\nadvantage by token: ", style="dim")
        for piece, value in zip(pieces, each, strict=True):
            body.append(f"{piece} {value:+.2f}", style="green" if value > 0 else "red" if value < 0 else "dim").append(
                "  "
            )
    facts = [f"turn {number}", turn.tag, f"{turn.length} tokens", f"reward {_number(turn.reward)}"]
    if turn.parent is not None and turn.parent != number - 1:
        facts.insert(1, f"after turn {turn.parent}")
    if isinstance(turn.advantage, (int, float)):
        facts.append(f"advantage {turn.advantage:+.3f}")
    if turn.logprobs:
        facts.append(f"log-prob {sum(turn.logprobs):.2f}")
    if not turn.trainable:
        facts.append("not trained")
    if turn.stop != "end":
        facts.append(f"stopped by {turn.stop}")
    title = ", ".join(f for f in facts if f)
    return Panel(body, title=title, title_align="left", border_style="green", padding=(0, 1))
