"""One evaluator, in training and after: how often does it succeed on real tasks, and how sure is that?

    Evaluation          success with a 95% interval, reward, what was excluded, every task's outcome, the policy version
    paired              two evaluations on the same tasks: the difference, its interval, wins and losses
    tune_temperature    the temperature at which a policy does best on dev, since success sampled at 1 flatters RL

One sample a task: Wilson's interval. Several: a bootstrap over tasks, since samples of one task are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlready.aio import run_sync
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.actors import Actor, PolicyActor
from rlready.rollout.collect import play_many, why_excluded
from rlready.rollout.gather import Progress
from rlready.seeds import np_rng
from rlready.tasks.base import TaskSet
from rlready.types import Trajectory

Z95 = 1.959963984540054
RESAMPLES = 2000


@dataclass
class Evaluation:
    """What an actor did on a task set.

    Attributes:
        success: share of valid episodes whose verdict is right; NaN where none is valid.
        interval: its 95% interval.
        reward: mean reward of valid episodes.
        n: valid episodes.
        excluded: episodes left out since environment or grader failed, never counted as wrong.
        reasons: why, with counts.
        outcomes: for each task id, the successes (0 or 1) of its valid episodes in order.
        rewards: likewise the rewards.
        env_steps: environment transitions spent, failed episodes included.
        length: mean completion tokens of a valid episode.
        version: the policy's; -1 for an actor that is no policy.
        seconds: wall-clock time.
        settings: what it was measured with (task set, samples, seed, temperature).
    """

    success: float
    interval: tuple[float, float]
    reward: float
    n: int
    excluded: int
    reasons: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, list[int]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    env_steps: int = 0
    length: float = math.nan
    version: int = -1
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        version: int = -1,
        seconds: float = 0.0,
        settings: Mapping[str, Any] | None = None,
    ) -> Evaluation:
        """Sum up trajectories that were already played."""
        valid = [t for t in trajectories if not t.excluded]
        outcomes: dict[str, list[int]] = {}
        rewards: dict[str, list[float]] = {}
        reasons: dict[str, int] = {}
        for t in trajectories:
            if t.excluded:
                reason = why_excluded(t)
                reasons[reason] = reasons.get(reason, 0) + 1
            else:
                outcomes.setdefault(t.task.id, []).append(int(t.success))
                rewards.setdefault(t.task.id, []).append(float(t.reward))
        n, right = len(valid), sum(t.success for t in valid)
        return cls(
            success=right / n if n else math.nan,
            interval=interval(outcomes),
            reward=sum(t.reward for t in valid) / n if n else math.nan,
            n=n,
            excluded=len(trajectories) - n,
            reasons=reasons,
            outcomes=outcomes,
            rewards=rewards,
            env_steps=sum(t.env_steps for t in trajectories),
            length=sum(t.length for t in valid) / n if n else math.nan,
            version=version,
            seconds=seconds,
            settings=dict(settings or {}),
        )

    def __str__(self) -> str:
        """In one line, for people."""
        low, high = self.interval
        left_out = f", {self.excluded} excluded" if self.excluded else ""
        return f"{self.success:.1%} [{low:.1%}, {high:.1%}] of {self.n} episodes{left_out}"

    def metrics(self) -> dict[str, float]:
        """The numbers alone, for `metrics.jsonl`."""
        return {
            "success": self.success,
            "success_low": self.interval[0],
            "success_high": self.interval[1],
            "reward": self.reward,
            "episodes": float(self.n),
            "excluded": float(self.excluded),
            "length": self.length,
            "env_steps": float(self.env_steps),
            "version": float(self.version),
            "seconds": self.seconds,
        }

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping; NaN becomes None."""
        out = asdict(self)
        out["interval"] = [_none(x) for x in self.interval]
        for name in ("success", "reward", "length"):
            out[name] = _none(out[name])
        return out

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Evaluation:
        """Inverse of `to_json`."""
        kw = dict(record)
        low, high = (_nan(x) for x in record["interval"])
        kw["interval"] = (low, high)
        for name in ("success", "reward", "length"):
            kw[name] = _nan(record[name])
        return cls(**kw)


async def evaluate(
    who: Policy | Actor,
    tasks: TaskSet,
    env: EnvFactory,
    *,
    samples: int = 1,
    params: SamplingParams | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    deadline: float | None = 60.0,
    concurrency: int = 256,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Play every task and sum up.

    Args:
        who: a policy, decoded greedily unless `params` say otherwise, or any actor.
        tasks: what to play; all of it.
        env: makes a fresh environment for each episode.
        samples: episodes per task; sample k of a task meets the same world whoever plays.
        params: decoding of a policy.
        seed: of worlds and sampling.
        max_steps: actions per episode.
        deadline: seconds per episode.
        concurrency: episodes at once.
        on_progress: called with (episodes done, episodes asked for).

    Raises:
        UserError: there are no tasks, or `params` were given with an actor, which has its own.
    """
    began = perf_counter()
    settings: dict[str, Any] = {"tasks": tasks.name, "samples": samples, "seed": seed, "max_steps": max_steps}
    actor: Actor
    if isinstance(who, Policy):
        params = params or SamplingParams(temperature=0.0)
        actor, version = PolicyActor(who, params, seed), who.version
    else:
        if params is not None:
            raise UserError("evaluate: params belong to a policy; an actor decodes by its own.")
        actor, version = who, who.policy.version if isinstance(who, PolicyActor) else -1
    if isinstance(actor, PolicyActor):
        settings |= {"temperature": actor.params.temperature, "top_k": actor.params.top_k, "top_p": actor.params.top_p}
    if len(tasks) == 0 or samples < 1:
        raise UserError(f"{tasks.name}: {len(tasks)} tasks with {samples} samples each leave nothing to evaluate.")
    played = await play_many(
        tasks,
        env,
        actor,
        [task for task in tasks for _ in range(samples)],
        seed,
        max_steps=max_steps,
        deadline=deadline,
        concurrency=concurrency,
        on_progress=on_progress,
    )
    return Evaluation.of(played, version=version, seconds=perf_counter() - began, settings=settings)


def evaluate_sync(who: Policy | Actor, tasks: TaskSet, env: EnvFactory, **options: Any) -> Evaluation:
    """`evaluate` for callers without an event loop."""
    return run_sync(evaluate(who, tasks, env, **options))


@dataclass(frozen=True)
class Paired:
    """Success of a minus success of b on the tasks that both have.

    Attributes:
        difference: mean over tasks of the difference of their success rates.
        interval: its 95% interval, by a paired bootstrap over tasks.
        wins, losses, ties: tasks on which a does better, worse, alike.
        tasks: how many were compared.
        only_one: tasks that only one of the two has (the other's episodes were excluded, or never played).
    """

    difference: float
    interval: tuple[float, float]
    wins: int
    losses: int
    ties: int
    tasks: int
    only_one: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return asdict(self) | {"interval": list(self.interval)}

    def __str__(self) -> str:
        """In one line, for people."""
        low, high = (100 * x for x in self.interval)
        text = f"{100 * self.difference:+.1f} points [{low:+.1f}, {high:+.1f}]"
        return f"{text}, {self.wins} won, {self.losses} lost, {self.ties} tied of {self.tasks} tasks"


def paired(a: Evaluation, b: Evaluation, *, seed: int = 0) -> Paired:
    """Compare two evaluations task by task.

    Raises:
        UserError: they have no task in common.
    """
    common = [name for name in a.outcomes if name in b.outcomes]
    if not common:
        raise UserError("These two evaluations have no task in common, so they cannot be compared in pairs.")
    gaps = np.asarray([np.mean(a.outcomes[name]) - np.mean(b.outcomes[name]) for name in common])
    return Paired(
        difference=float(gaps.mean()),
        interval=bootstrap(gaps, np.ones(len(gaps)), seed),
        wins=int((gaps > 0).sum()),
        losses=int((gaps < 0).sum()),
        ties=int((gaps == 0).sum()),
        tasks=len(common),
        only_one=len(set(a.outcomes) ^ set(b.outcomes)),
    )


async def sweep_temperature(
    policy: Policy, dev: TaskSet, env: EnvFactory, grid: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0), **options: Any
) -> dict[float, Evaluation]:
    """Evaluate a policy on dev tasks at each temperature of a grid; options as for `evaluate`.

    Raises:
        UserError: the grid is empty.
    """
    if not grid:
        raise UserError("The temperature grid is empty. Give at least one temperature, such as (0, 0.5, 1).")
    base = options.pop("params", None) or SamplingParams()
    return {t: await evaluate(policy, dev, env, params=replace(base, temperature=t), **options) for t in grid}


async def tune_temperature(
    policy: Policy, dev: TaskSet, env: EnvFactory, grid: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0), **options: Any
) -> float:
    """The temperature of the grid with the highest success on dev; the lowest of equals.

    Raises:
        UserError: the grid is empty.
    """
    results = await sweep_temperature(policy, dev, env, grid, **options)
    return min(results, key=lambda t: (-_or(results[t].success, -1.0), t))


def interval(outcomes: Mapping[str, Sequence[int]], seed: int = 0) -> tuple[float, float]:
    """95% interval of the success rate over all episodes: Wilson for one episode a task, else a bootstrap over tasks.

    Where all episodes agree a bootstrap has no width; then it is Wilson's with the number of tasks, which is cautious.
    """
    if not outcomes:
        return math.nan, math.nan
    right = np.asarray([sum(each) for each in outcomes.values()], dtype=np.float64)
    count = np.asarray([len(each) for each in outcomes.values()], dtype=np.float64)
    if (count == 1).all() or len(count) == 1:
        return wilson(int(right.sum()), int(count.sum()))
    if right.sum() in (0, count.sum()):
        return wilson(len(count) if right.sum() else 0, len(count))
    return bootstrap(right, count, seed)


def wilson(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95% score interval for a proportion (Wilson 1927).

    centre = (p + z^2/2n) / (1 + z^2/n);  half width = z / (1 + z^2/n) * sqrt(p(1-p)/n + z^2/4n^2).
    """
    if n == 0:
        return math.nan, math.nan
    p, z2 = right / n, Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(total: NDArray[np.float64], count: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of sum(total) / sum(count), resampling clusters (tasks) with replacement.

    Args:
        total: [K] sum of each cluster.
        count: [K] size of each cluster.
        seed: of the resampling.
    """
    k = len(total)
    random = np_rng(seed, "bootstrap", k)
    ratios = np.empty(RESAMPLES)
    block = max(1, 4_000_000 // k)  # bounds the memory
    for start in range(0, RESAMPLES, block):
        drawn = random.integers(0, k, size=(min(block, RESAMPLES - start), k))
        ratios[start : start + len(drawn)] = total[drawn].sum(1) / count[drawn].sum(1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _none(x: float) -> float | None:
    return None if math.isnan(x) else x


def _nan(x: float | None) -> float:
    return math.nan if x is None else x


def _or(x: float, otherwise: float) -> float:
    return otherwise if math.isnan(x) else x
