"""A small gym of the fictional desk and settings that train in it within seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlready.algorithms.presets import GRPO
from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dreaming.agent import policy_of
from rlready.dreaming.fit import fit
from rlready.dreaming.options import FitOptions
from rlready.dreaming.rounds import RealSide
from rlready.dreaming.train import DreamTrainConfig, Outcome, train_in_dream
from rlready.envs.base import Env, Observation, Step
from rlready.policy.tiny import TinyConfig
from rlready.run import Run
from rlready.types import Task
from rlready.worlds.fiction.desk import WORLD, Desk
from rlready.worlds.fiction.play import play_logs, write_logs

TINY = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=512)
QUICK: dict[str, Any] = {
    "steps": 3, "groups": 2, "group_size": 2, "clone_epochs": 1, "check_every": 2, "check_tasks": 4, "real_rounds": 1,
    "save_every": 1, "max_tokens": 24, "tiny": TINY,
}  # fmt: skip


def make_gym(folder: Path, **options: Any) -> Path:
    """A gym whose actions are few and all known, as the desk's are: learned from 400 runs, it keeps 60 of them.

    `real.py` beside it holds the environment and the 72 tasks of the runs that were kept, 12 of them held out.
    """
    log = folder / "desk.jsonl"
    write_logs(play_logs(WORLD, episodes=400), log)
    fit([log], folder / "whole", FitOptions(curve=False, **options), progress="quiet")
    whole = Gym.load(folder / "whole")
    train, test = whole.splits["train"][:60], whole.splits["test"][:12]
    kept = Library([e for e in whole.library.episodes.values() if e.task_id in set(train)], whole.domain, whole.state)
    gym = Gym(
        whole.domain, whole.state, kept, whole.simulator, splits={"train": train, "dev": (), "test": test},
        held_out=[e for e in whole.held_out if e.task_id in set(test)], reward_source=whole.reward_source,
        about=whole.about,
    )  # fmt: skip
    model = folder / "whole" / "model"
    gym.save(folder / "gym", model=model if model.exists() else None)
    (folder / "real.py").write_text(
        "from rlready.worlds.fiction.desk import WORLD, Desk\n"
        f"ids = {{*{train!r}, *{test!r}}}\n"
        'tasks = WORLD.splits["train"].filter(lambda t: t.id in ids)\n'
        "env = Desk\n",
        encoding="utf-8",
    )
    return folder / "gym"


def side(gym: Gym, env: Callable[[], Env] = Desk, *, held: int = 6, practice: int | None = None) -> RealSide:
    """Reality with so few held-out tasks that a check takes a moment."""
    ids = {*gym.splits["train"], *gym.splits["test"]}
    every = RealSide.of(gym, env, WORLD.splits["train"].filter(lambda t: t.id in ids))
    some = every.practice if practice is None else every.practice.head(practice)
    return RealSide(env, every.held_out.head(held), some, every.max_steps)


def train(
    gym: Gym,
    root: Path,
    *,
    resume: str | None = None,
    run_seed: int = 0,
    name: str = "t",
    more: Any = None,
    **options: Any,
) -> tuple[Outcome, Run]:
    """The whole path in a fresh run folder; `options` that are settings go to the config."""
    fields = DreamTrainConfig.__dataclass_fields__
    config = DreamTrainConfig(**{**QUICK, **{k: options.pop(k) for k in list(options) if k in fields}})
    algorithm = options.pop("algorithm", GRPO(minibatches=2))
    cloned = options.pop("policy", None)
    with Run.create("t", config, run_seed, root=root, resume=resume, progress="quiet") as run:
        run.note(threads=1)
        policy, trained = policy_of("tiny", gym, config, run.seed, run.dir) if cloned is None else (cloned, True)
        out = train_in_dream(gym, policy, algorithm, run, config, cloned=trained, **options)
        policy.save(run.dir / "model")  # type: ignore[attr-defined]
    return out, run


def header(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.dir / "run.json").read_text(encoding="utf-8"))
    return found


class Counted(Desk):
    """The desk with a count of its steps over all episodes."""

    steps = 0
    tasks: list[str] = []  # noqa: RUF012  (shared on purpose)

    async def reset(self, task: Task, seed: int) -> Observation:
        Counted.tasks.append(task.id)
        return await super().reset(task, seed)

    async def step(self, action: str) -> Step:
        Counted.steps += 1
        return await super().step(action)
