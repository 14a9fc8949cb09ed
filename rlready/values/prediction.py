"""Estimates against the truth: error, size of the error, correlation; over all states and by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.gather import Progress
from rlready.rollout.probe import Reward, probe, unfinished_is_zero
from rlready.scoring import Scorer
from rlready.seeds import derive
from rlready.values.estimators import Estimator, Visited
from rlready.values.statistics import Floats, correlation_and_error, mean_and_error, numbered


@dataclass(frozen=True)
class Accuracy:
    """How near estimates come to the truth. Errors are estimate less truth, in units of reward.

    Attributes:
        name: the estimator's.
        low, high: the range of positions, t / T.
        n: states.
        error, error_se: mean error, its standard error (values of one task may depend on each other).
        absolute, absolute_se: mean absolute error likewise. It includes the truth's own noise.
        correlation, correlation_se: with the truth; NaN where one of them does not vary.
    """

    name: str
    low: float
    high: float
    n: int
    error: float
    error_se: float
    absolute: float
    absolute_se: float
    correlation: float
    correlation_se: float

    @property
    def unbiased(self) -> bool:
        """Whether the mean error is within 2 standard errors of 0; with few states an honest one fails 1 time in 12."""
        return abs(self.error) <= 2 * self.error_se


@dataclass
class Prediction:
    """Estimates and truth of the same states.

    Attributes:
        positions: t / T of each state, [S].
        truth: mean reward of `rollouts` samples from each, [S].
        truth_se: mean standard error of a truth: what nobody can be nearer than.
        estimates: by name, [S] each.
        overall: accuracy by name.
        by_position: accuracy in each range of positions, by name.
        rollouts: samples per truth.
        clusters: task number of each state, [S].
        tokens, seconds: sampled and spent for the truth.
    """

    positions: Floats
    truth: Floats
    truth_se: float
    estimates: dict[str, Floats]
    overall: dict[str, Accuracy]
    by_position: dict[str, list[Accuracy]]
    rollouts: int
    clusters: np.ndarray[Any, np.dtype[np.int64]]
    tokens: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "states": len(self.truth),
            "tasks": len(np.unique(self.clusters)),
            "rollouts": self.rollouts,
            "truth_mean": float(self.truth.mean()),
            "truth_se": self.truth_se,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "overall": {name: asdict(a) | {"unbiased": a.unbiased} for name, a in self.overall.items()},
            "by_position": {name: [asdict(a) for a in each] for name, each in self.by_position.items()},
        }


async def prediction(
    policy: Policy,
    visited: Sequence[Visited],
    estimators: Mapping[str, Estimator],
    *,
    score: Scorer,
    params: SamplingParams,
    seed: int,
    rollouts: int = 256,
    bins: int = 4,
    reward: Reward = unfinished_is_zero,
    on_progress: Progress | None = None,
) -> Prediction:
    """Compare estimators with the mean of many rollouts.

    Args:
        policy: whose value is asked for.
        visited: states, as `visit` gives them.
        estimators: by name.
        score: grades, such as `tasks.score`.
        params: as in training.
        seed: of the truth; estimators have their own.
        rollouts: per state for the truth.
        bins: ranges of positions.
        reward: the number that a scored rollout counts with.
        on_progress: called with (states done, states) for the truth.

    Raises:
        UserError: there are no states, or none could be judged.
    """
    if not visited or bins < 1:
        raise UserError(f"prediction: {len(visited)} states and {bins} ranges of positions leave nothing to compare.")
    states = [each.state for each in visited]
    found = await probe(
        policy, states, k=rollouts, params=params, score=score, seed=derive(seed, "truth"), reward=reward,
        on_progress=on_progress,
    )  # fmt: skip
    truth = np.asarray(found.means)
    judged = ~np.isnan(truth)
    if not judged.any():
        raise UserError("prediction: the grader could judge no rollout, so there is no truth to compare with.")
    positions = np.asarray([each.position for each in visited])
    clusters = numbered([state.task.id for state in states])
    estimates = {name: np.asarray(await each(states), dtype=np.float64) for name, each in estimators.items()}
    edges = np.linspace(0, 1, bins + 1)
    where = np.clip(np.searchsorted(edges, positions, side="right") - 1, 0, bins - 1)
    overall: dict[str, Accuracy] = {}
    by_position: dict[str, list[Accuracy]] = {}
    for name, values in estimates.items():
        use = judged & ~np.isnan(values)
        overall[name] = accuracy(name, values[use], truth[use], clusters[use])
        by_position[name] = [
            accuracy(name, values[at], truth[at], clusters[at], float(edges[b]), float(edges[b + 1]))
            for b in range(bins)
            if (at := use & (where == b)).any()
        ]
    errors = [each.error for each in found if not math.isnan(each.error)]
    return Prediction(
        positions, truth, float(np.mean(errors)) if errors else math.nan, estimates, overall, by_position, rollouts,
        clusters, found.tokens, found.seconds,
    )  # fmt: skip


def accuracy(
    name: str,
    values: Floats,
    truth: Floats,
    clusters: np.ndarray[Any, np.dtype[np.int64]],
    low: float = 0.0,
    high: float = 1.0,
) -> Accuracy:
    """Sum up estimates and truths, [S] each, of states in a range of positions."""
    gap = values - truth
    absolute = mean_and_error(np.abs(gap), clusters)
    return Accuracy(
        name, low, high, len(gap), *mean_and_error(gap, clusters), *absolute,
        *correlation_and_error(values, truth, clusters),
    )  # fmt: skip
