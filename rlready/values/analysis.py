"""All the analysers in one go, for a policy and the algorithms that train it, and how their numbers are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rlready.algorithms.base import Algorithm
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.progress import ProgressBoard
from rlready.rollout.probe import Reward, unfinished_is_zero
from rlready.rollout.steps import StepRule
from rlready.run_report import Table, percent
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.values.estimators import Estimator, critic, drawn, probes, visit
from rlready.values.gradient import Bin, Variance, advantages, batches_of, gradient_variance
from rlready.values.prediction import Prediction, prediction
from rlready.values.ranking import Ranking, alternatives, ranking

_TRIED = 16
"""States at which next steps are sampled, per choice wanted: many have too few distinct ones."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured. VinePPO's own analysis has 256 rollouts and up to 256 states.

    Attributes:
        tasks: tasks that are answered to find states; at most.
        states: states whose value is predicted.
        choices: states at which next steps are ranked; 0 leaves it out.
        rollouts: samples per ground truth.
        k: samples per estimate; one estimator each.
        batches: batches whose gradients are compared; 0 leaves it out.
        groups: tasks per batch.
        group_size: episodes per task.
    """

    tasks: int = 128
    states: int = 64
    choices: int = 32
    rollouts: int = 256
    k: tuple[int, ...] = (1, 3, 9)
    batches: int = 8
    groups: int = 16
    group_size: int = 8


@dataclass
class Analysis:
    """What the analysers found.

    Attributes:
        prediction, ranking: estimators against the truth; None where that was left out or not possible.
        variances: gradient variance by algorithm.
        positions: advantages of one batch by position, by algorithm.
        notes: what could not be measured, and why.
    """

    prediction: Prediction | None = None
    ranking: Ranking | None = None
    variances: dict[str, Variance] = field(default_factory=dict)
    positions: dict[str, list[Bin]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "prediction": None if self.prediction is None else self.prediction.to_json(),
            "ranking": None if self.ranking is None else self.ranking.to_json(),
            "gradient_variance": {name: v.to_json() for name, v in self.variances.items()},
            "advantages": {name: [asdict(b) for b in bins] for name, bins in self.positions.items()},
            "notes": self.notes,
        }

    def tables(self) -> list[Table]:
        """For people."""
        out = []
        if self.prediction is not None:
            p = self.prediction
            columns = ["estimator", "mean error", "absolute error", "correlation", "unbiased"]
            rows = [
                [name, _pm(a.error, a.error_se), _pm(a.absolute, a.absolute_se),
                 _pm(a.correlation, a.correlation_se, 2), "yes" if a.unbiased else "no"]
                for name, a in p.overall.items()
            ]  # fmt: skip
            title = f"Values of {len(p.truth)} states against {p.rollouts} rollouts each"
            out.append(Table(f"{title} (truth ±{p.truth_se:.3f})", columns, rows))
            columns = ["estimator and position", "states", "mean error", "absolute error"]
            rows = [
                [
                    f"{a.name}, {a.low:.2g} to {a.high:.2g}",
                    str(a.n),
                    _pm(a.error, a.error_se),
                    _pm(a.absolute, a.absolute_se),
                ]
                for each in p.by_position.values()
                for a in each
            ]  # fmt: skip
            out.append(Table("By position (share of the answer's steps said)", columns, rows))
        if self.ranking is not None:
            r = self.ranking
            columns = ["estimator", "right", "right if not tied", "tied", "right on clear pairs", "finds the best"]
            rows = [
                [name, _share(o.accuracy, o.accuracy_se), _share(o.decided, o.decided_se), percent(o.ties),
                 _share(o.clear, o.clear_se), f"{_share(o.best, o.best_se)} (blind {percent(o.best_chance)})"]
                for name, o in r.orders.items()
            ]  # fmt: skip
            pairs = next(iter(r.orders.values())).pairs if r.orders else 0
            title = (
                f"Which of two next steps is better? {pairs} pairs at {r.choices} states, {r.rollouts} rollouts each"
            )
            out.append(Table(title, columns, rows))
        if self.variances:
            columns = ["algorithm", "variance / |mean|²", "corrected", "|mean|²"]
            rows = [
                [name, _pm(v.variance, v.variance_se, 2), f"{v.corrected:.3g}", f"{v.signal:.3g}"]
                for name, v in self.variances.items()
            ]
            batches = next(iter(self.variances.values())).batches
            out.append(Table(f"Gradient of the policy's loss over {batches} batches", columns, rows))
        for name, bins in self.positions.items():
            columns = ["position", "tokens", "mean", "deviation", "zero"]
            rows = [[f"{b.low:.1f} to {b.high:.1f}", str(b.n), f"{b.mean:+.3f}", f"{b.std:.3f}", percent(b.zero)]
                    for b in bins]  # fmt: skip
            out.append(Table(f"Advantages by position, {name}", columns, rows))
        return out

    def metrics(self, prefix: str = "values/") -> dict[str, float]:
        """The main numbers, flat, for claims: `values/critic/correlation`, `values/k=9/ranking`, ..."""
        out: dict[str, float] = {}
        if self.prediction is not None:
            for name, a in self.prediction.overall.items():
                out |= {
                    f"{name}/error": a.error, f"{name}/error_se": a.error_se, f"{name}/absolute": a.absolute,
                    f"{name}/correlation": a.correlation, f"{name}/unbiased": float(a.unbiased),
                }  # fmt: skip
        if self.ranking is not None:
            for name, o in self.ranking.orders.items():
                out |= {
                    f"{name}/ranking": o.accuracy, f"{name}/ranking_se": o.accuracy_se,
                    f"{name}/ranking_decided": o.decided, f"{name}/ranking_ties": o.ties,
                    f"{name}/ranking_clear": o.clear, f"{name}/best": o.best, f"{name}/best_chance": o.best_chance,
                }  # fmt: skip
        for name, v in self.variances.items():
            out |= {f"{name}/gradient_variance": v.variance, f"{name}/gradient_variance_se": v.variance_se}
        return {f"{prefix}{name}": value for name, value in out.items() if math.isfinite(value)}


async def analyse(
    policy: Policy,
    tasks: TaskSet,
    env: EnvFactory,
    algorithms: Mapping[str, Algorithm],
    *,
    rule: StepRule,
    params: SamplingParams,
    seed: int,
    sizes: Sizes | None = None,
    with_critic: bool = False,
    reward: Reward = unfinished_is_zero,
    board: ProgressBoard | None = None,
) -> Analysis:
    """Measure everything.

    Args:
        policy: measured as it is; with a learner where gradients are asked for.
        tasks: posed, at most `sizes.tasks` of them for states.
        env: a question and its answer.
        algorithms: whose gradients and advantages; bound where they need it.
        rule: how answers are cut.
        params: as in training.
        seed: of everything.
        sizes: how much.
        with_critic: whether the policy's value head is one of the estimators.
        reward: the number that a scored sample counts with.
        board: shows progress.

    Raises:
        UserError: no answer has more than one step, or the tasks are not of one question and answer.
    """
    sizes = sizes or Sizes()
    show = _Show(board or ProgressBoard("quiet"))
    out = Analysis()
    options = {"score": tasks.score, "params": params, "reward": reward}
    estimators: dict[str, Estimator] = {
        f"k={k}": probes(policy, k=k, seed=derive(seed, "probes", k), **options)  # type: ignore[arg-type]
        for k in sizes.k
    }
    if with_critic:
        estimators["critic"] = critic(policy)
    some = tasks.shuffle(derive(seed, "tasks")).head(sizes.tasks)
    with show.of("answers", len(some)) as tell:
        visited = await visit(policy, some, env, rule=rule, params=params, seed=seed, on_progress=tell)
    kept = drawn(visited, sizes.states, seed)
    with show.of("truth of states", len(kept)) as tell:
        out.prediction = await prediction(
            policy, kept, estimators, seed=derive(seed, "prediction"), rollouts=sizes.rollouts, on_progress=tell,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip
    if sizes.choices:
        tried = drawn([each for each in visited if each.step], _TRIED * sizes.choices, derive(seed, "tried"))
        choices = await alternatives(policy, tried, rule=rule, params=params, seed=derive(seed, "alternatives"))
        choices = choices[: sizes.choices]
        try:
            with show.of("truth of next steps", sum(len(choice.after) for choice in choices)) as tell:
                out.ranking = await ranking(
                    policy, choices, estimators, seed=derive(seed, "ranking"), rollouts=sizes.rollouts,
                    on_progress=tell, **options,  # type: ignore[arg-type]
                )  # fmt: skip
        except UserError as error:
            out.notes.append(f"Next steps were not ranked. {error}")
    if sizes.batches and algorithms:
        with show.of("batches", sizes.batches) as tell:
            batches = await batches_of(
                policy, tasks, env, batches=sizes.batches, groups=sizes.groups, group_size=sizes.group_size,
                params=params, seed=derive(seed, "batches"), on_progress=tell,
            )  # fmt: skip
        for name, algorithm in algorithms.items():
            try:
                with show.of(f"gradients of {name}", len(batches)) as tell:
                    out.variances |= await gradient_variance(policy, {name: algorithm}, batches, on_progress=tell)
                out.positions[name] = await advantages(policy, algorithm, batches[0])
            except UserError as error:
                out.notes.append(f"The gradient of {name} was not measured. {error}")
    return out


class _Show:
    """Progress as a bar with the time left, for functions that call back with (done, total)."""

    def __init__(self, board: ProgressBoard) -> None:
        self.board = board

    @contextmanager
    def of(self, label: str, total: int) -> Iterator[Callable[[int, int], None]]:
        with self.board.track(label, total) as bar:

            def tell(done: int, total: int) -> None:
                while bar.done < done:
                    bar.advance()

            yield tell


def _pm(value: float, error: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{digits}f}" + ("" if math.isnan(error) else f" ±{error:.{digits}f}")


def _share(value: float, error: float) -> str:
    return "-" if math.isnan(value) else percent(value, None if math.isnan(error) else error)
