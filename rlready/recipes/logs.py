"""Playing for logs and demonstrations, and cloning them: the parts that recipes share before RL starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlready.aio import run_sync
from rlready.algorithms.sft import SFT
from rlready.envs.base import EnvFactory
from rlready.experience.episode import LoggedEpisode, from_trajectory
from rlready.policy.base import Policy
from rlready.rollout.actors import Actor
from rlready.rollout.collect import play_many
from rlready.rollout.compile import compile_trajectory
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import FloatArray, IntArray, Row, Trajectory


@dataclass
class Logs:
    """Episodes as logs, and each one's actions as a supervised row.

    Attributes:
        episodes: what was logged.
        rows: one per episode, with the stream "nll" on the actions.
    """

    episodes: list[LoggedEpisode]
    rows: list[Row]

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], source: str) -> Logs:
        """Read trajectories that are chains; failed episodes are left out."""
        good = [t for t in trajectories if not t.excluded]
        compiled = [row for t in good for row in compile_trajectory(t, streams=("nll",))]
        rows = [replace(row, trajectory=-1, group=-1) for row in compiled]  # each was compiled as the first of its own
        return cls([from_trajectory(t, source=source) for t in good], rows)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.episodes)

    @property
    def transitions(self) -> int:
        """Actions in all."""
        return sum(len(e) for e in self.episodes)

    @property
    def successes(self) -> Logs:
        """The episodes that succeeded."""
        keep = [i for i, e in enumerate(self.episodes) if e.success]
        return Logs([self.episodes[i] for i in keep], [self.rows[i] for i in keep])

    @property
    def success(self) -> float:
        """Share that succeeded."""
        return sum(e.success for e in self.episodes) / max(1, len(self.episodes))

    def save(self, folder: Path) -> None:
        """Write `episodes.jsonl` and `rows.npz`: all that cloning reads of the rows."""
        lines = "".join(json.dumps(e.to_json()) + "\n" for e in self.episodes)
        (folder / "episodes.jsonl").write_text(lines, encoding="utf-8")
        supports = _Supports()
        support_of = [supports.index(row) for row in self.rows]
        np.savez(
            folder / "rows.npz",
            lengths=np.asarray([len(r) for r in self.rows], dtype=np.int64),
            tokens=_joined([r.tokens for r in self.rows], np.int64),
            weights=_joined([r.weights["nll"] for r in self.rows], np.float32),
            temperature=_joined([r.temperature for r in self.rows], np.float32),
            support_of=_joined(support_of, np.int64),
            support_lengths=np.asarray([len(ids) for ids in supports.sets], dtype=np.int64),
            supports=_joined(supports.sets, np.int64),
        )

    @classmethod
    def load(cls, folder: Path) -> Logs:
        """Inverse of `save`."""
        episodes = [LoggedEpisode.from_json(r) for r in read_jsonl(folder / "episodes.jsonl")]
        with np.load(folder / "rows.npz") as data:
            supports = tuple(_cut(data["supports"], data["support_lengths"]))
            parts = [_cut(data[name], data["lengths"]) for name in ("tokens", "weights", "temperature", "support_of")]
        return cls(episodes, [_row(a, b, c, d, supports) for a, b, c, d in zip(*parts, strict=True)])


def play_logs(
    run: Run, name: str, tasks: TaskSet, env: EnvFactory, actor: Actor, episodes: int, *, source: str
) -> Logs:
    """Play episodes in a stage of the run, counted as "logs", with progress; read back where they were played before.

    Args:
        run: keeps the stage and the ledger.
        name: of the stage; other names meet other worlds.
        tasks: played round and round.
        env: the real environment.
        actor: who plays.
        episodes: how many.
        source: how the logs are labelled.
    """
    with run.stage(name) as stage:
        if stage.done:
            return Logs.load(stage.dir)
        with run.progress.track(name, episodes) as bar:
            seed = derive(run.seed, "logs", name)
            work = play_many(tasks, env, actor, episodes, seed, on_progress=lambda _done, _all: bar.advance())
            played = run_sync(work)
        run.spend(logs=sum(t.env_steps for t in played))
        logs = Logs.of(played, source)
        stage.result.update(episodes=len(logs), success=logs.success, transitions=logs.transitions)
        logs.save(stage.dir)
    run.say(f"{name}: {len(logs):,} episodes, {logs.transitions:,} transitions, {logs.success:.1%} succeeded")
    return logs


def clone(run: Run, policy: Policy, rows: Sequence[Row], *, epochs: int, batch_tokens: int, label: str) -> None:
    """Supervised learning on rows, with progress and time left."""
    algorithm = SFT(seed=run.seed)
    with run.progress.track(label, 1) as bar:

        def on_step(_step: int, total: int, metrics: dict[str, float]) -> None:
            bar.total = total
            bar.show(metrics)
            bar.advance()

        history = algorithm.fit_rows(policy, rows, epochs=epochs, batch_tokens=batch_tokens, on_step=on_step)
    for step in range(0, len(history), max(1, len(history) // 50)):
        run.log(step + 1, history[step])


class _Supports:
    """The distinct sets of ids that sampling was limited to, over many rows."""

    def __init__(self) -> None:
        self.sets: list[IntArray] = []
        self._known: dict[bytes, int] = {}

    def index(self, row: Row) -> IntArray:
        """For each token an index into `sets`, -1 where the whole vocabulary was open."""
        if row.support_of is None:
            return np.full(len(row), -1, dtype=np.int64)
        places = []
        for ids in row.supports:
            place = self._known.setdefault(ids.tobytes(), len(self.sets))
            if place == len(self.sets):
                self.sets.append(ids)
            places.append(place)
        return np.asarray([*places, -1], dtype=np.int64)[row.support_of]


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype, copy=False)


def _cut(joined: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _row(
    tokens: IntArray, weights: FloatArray, temperature: FloatArray, support_of: IntArray, supports: tuple[IntArray, ...]
) -> Row:
    zeros = np.zeros(len(tokens), dtype=np.float32)
    row = Row(tokens, {"nll": weights}, zeros, zeros.copy(), temperature)
    if (support_of >= 0).any():
        row.support_of, row.supports = support_of, supports
    return row
