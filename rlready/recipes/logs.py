"""Playing for logs and demonstrations, and cloning them: the parts that recipes share before RL starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from rlready.types import Row, Trajectory


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
        rows = [row for t in good for row in compile_trajectory(t, streams=("nll",))]
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
        """Write `episodes.jsonl` and `rows.npz`."""
        lines = "".join(json.dumps(e.to_json()) + "\n" for e in self.episodes)
        (folder / "episodes.jsonl").write_text(lines, encoding="utf-8")
        np.savez(
            folder / "rows.npz",
            lengths=np.asarray([len(r) for r in self.rows]),
            tokens=np.concatenate([r.tokens for r in self.rows]),
            weights=np.concatenate([r.weights["nll"] for r in self.rows]),
        )

    @classmethod
    def load(cls, folder: Path) -> Logs:
        """Inverse of `save`."""
        episodes = [LoggedEpisode.from_json(r) for r in read_jsonl(folder / "episodes.jsonl")]
        with np.load(folder / "rows.npz") as data:
            cuts = np.cumsum(data["lengths"])[:-1]
            pairs = zip(np.split(data["tokens"], cuts), np.split(data["weights"], cuts), strict=True)
            rows = [_row(tokens, weights) for tokens, weights in pairs]
        return cls(episodes, rows)


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


def _row(tokens: np.ndarray, weights: np.ndarray) -> Row:
    zeros = np.zeros(len(tokens), dtype=np.float32)
    return Row(tokens, {"nll": weights}, zeros, zeros.copy(), np.ones(len(tokens), dtype=np.float32))
