"""What the comparison is judged by: curves of held-out accuracy, costs, and how good values are.

Costs are read off the run's own metrics: tokens that were generated (answers and probes), seconds of collecting and
learning (evaluations left out).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from rlready.algorithms import VinePPO
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.probe import State
from rlready.rollout.steps import StepRule
from rlready.run_files import read_jsonl
from rlready.run_report import Table, percent
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group
from rlready.values import (
    Accuracy,
    Analysis,
    Order,
    alternatives,
    critic,
    gradient_variance,
    prediction,
    probes,
    ranking,
    visit,
)
from rlready.values.estimators import Estimator, drawn

S = TypeVar("S", Accuracy, Order)
T = TypeVar("T")
KS = (1, 3, 9)
REPEAT = " repeat "
NEVER = 2.0
"""What the ratio of updates counts as where an arm did not reach the other's best within the run."""


@dataclass
class Curve:
    """An arm's held-out accuracy while it learned.

    Attributes:
        steps, tokens, seconds, accuracy: at each evaluation; steps are updates of one batch each.
        optimizer_steps: in all.
    """

    steps: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    optimizer_steps: float = 0.0

    @property
    def best(self) -> tuple[float, float]:
        """The highest accuracy, and the first step that had it."""
        best = max(self.accuracy)
        return best, self.steps[self.accuracy.index(best)]

    def reaches(self, accuracy: float) -> float:
        """The step at which this accuracy was first reached, linear between evaluations; NaN where it never was."""
        for i, now in enumerate(self.accuracy):
            if now >= accuracy:
                if i == 0:
                    return self.steps[0]
                before, x0, x1 = self.accuracy[i - 1], self.steps[i - 1], self.steps[i]
                return x0 + (x1 - x0) * (accuracy - before) / (now - before)
        return math.nan


def curve_of(folder: Path, stage: str) -> Curve:
    """Read an arm's curve from a run's metrics."""
    out = Curve()
    tokens = seconds = 0.0
    for line in read_jsonl(folder / "metrics.jsonl"):
        if line.get("stage") != stage:
            continue
        tokens += line.get("tokens", 0.0) + line.get("update/vine/tokens", 0.0)
        seconds += line.get("seconds", 0.0) + line.get("update/seconds", 0.0)
        out.optimizer_steps += line.get("update/optimizer_steps", 0.0)
        if "eval/success" in line:
            out.steps.append(float(line["step"]))
            out.tokens.append(tokens)
            out.seconds.append(seconds)
            out.accuracy.append(float(line["eval/success"]))
    return out


def updates_ratio(arm: Curve, rivals: Sequence[Curve]) -> float:
    """Updates that the arm took to the best accuracy of its rivals, as a share of those that the best rival took.

    `NEVER` where it did not get there.
    """
    best, steps = max((rival.best for rival in rivals), key=lambda pair: (pair[0], -pair[1]))
    reached = arm.reaches(best)
    if steps == 0:  # no rival ever got better than the start
        return NEVER
    return NEVER if math.isnan(reached) else reached / steps


def cost_table(curves: Mapping[str, Curve], at: str = "T=1") -> Table:
    """Updates, tokens and seconds of each arm, with its accuracy on the way, sampled `at` a temperature."""
    rows: list[list[str | float | int]] = [
        [name, round(c.steps[-1]), round(c.optimizer_steps), f"{c.tokens[-1] / 1e3:,.0f}k", round(c.seconds[-1]),
         percent(c.accuracy[0]), percent(c.best[0]), f"{c.best[1]:g}", percent(c.accuracy[-1])]
        for name, c in curves.items()
    ]  # fmt: skip
    columns = ["agent", "updates", "optimizer steps", "tokens", "seconds", "start", "best", "at update", "end"]
    return Table(f"Cost, and accuracy at {at} on dev tasks while learning", columns, rows)


def draw_curves(path: Path, curves: Mapping[str, Curve], at: str = "T=1") -> str:
    """Accuracy by share of the updates, by tokens and by seconds; returns the file's name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(13, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = {"prompts seen": "steps", "thousand tokens generated": "tokens", "seconds, this machine": "seconds"}
    for place, (label, key) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, 3, place)
        for name, c in curves.items():
            x = np.asarray(getattr(c, key), dtype=np.float64)
            x = x / 1e3 if key == "tokens" else x / x[-1] if key == "steps" else x
            axes.plot(x, c.accuracy, marker="o", markersize=3, linewidth=1.6, label=name)
        axes.set(xlabel=f"share of the {label}" if key == "steps" else label)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(f"accuracy on dev tasks, {at}")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path)
    return path.name


@dataclass
class Values:
    """How good value estimates are at one policy.

    Attributes:
        analysis: prediction and ranking of the critic and of probes, with 1, 3 and 9 samples; gradient variance.
        bias: mean error of 9-sample estimates in their standard errors, against a truth of many rollouts.
        sums: largest gap between the sum of an answer's advantages and its score less V(S_0).
    """

    analysis: Analysis
    bias: float
    sums: float

    def metrics(self) -> dict[str, float]:
        """The numbers that claims are judged by, beside the analysis' own."""
        out = self.analysis.metrics() | {"values/bias in standard errors": self.bias, "values/sum gap": self.sums}
        found, ranked = self.analysis.prediction, self.analysis.ranking
        if found is not None:
            error = {name: each.absolute for name, each in found.overall.items()}
            out["values/least fall of error with K"] = min(error["k=1"] - error["k=3"], error["k=3"] - error["k=9"])
        if ranked is not None:
            o = ranked.orders
            share = {name: each.accuracy for name, each in o.items()}
            out["values/ranking lead"] = o["k=9"].accuracy - o["critic"].accuracy
            out["values/ranking lead, ties out"] = o["k=9"].decided - o["critic"].decided
            out["values/least gain of ranking with K"] = min(share["k=3"] - share["k=1"], share["k=9"] - share["k=3"])
        return out


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        states, choices: states whose value is predicted; states whose next steps are ranked, at most.
        tried: states at which next steps are looked for.
        continuations: per state, to find next steps; at least three must differ. The paper's analysis has 5.
        rollouts: per truth.
        repeats: estimates with fresh samples per state and K, whose scores are averaged.
        bias_states, bias_rollouts: of the check of unbiasedness.
        bias_repeats: 9-sample estimates per state there.
    """

    states: int = 60
    choices: int = 60
    tried: int = 2400
    continuations: int = 10
    rollouts: int = 160
    repeats: int = 8
    bias_states: int = 24
    bias_rollouts: int = 1024
    bias_repeats: int = 8


async def measure_values(
    policy: Policy, value: Policy, tasks: TaskSet, rule: StepRule, params: SamplingParams, seed: int, sizes: Sizes
) -> Values:
    """Measure a policy and its critic.

    Args:
        policy: whose values.
        value: the critic: a policy whose value head predicts them.
        tasks: held out.
        rule: how answers are cut.
        params: as in training.
        seed: of all.
        sizes: how much.
    """
    score = tasks.score

    def of(k: int, *purpose: object) -> Estimator:
        return probes(policy, score, k=k, params=params, seed=derive(seed, "estimate", k, *map(str, purpose)))

    estimators = {"critic": critic(value)} | {f"k={k}{REPEAT}{i}": of(k, i) for k in KS for i in range(sizes.repeats)}
    visited = await visit(policy, tasks, ChatEnv, rule=rule, params=params, seed=derive(seed, "visit"))
    found = await prediction(
        policy, drawn(visited, sizes.states, seed), estimators, score=score, params=params,
        seed=derive(seed, "prediction"), rollouts=sizes.rollouts,
    )  # fmt: skip
    found.overall = averaged(found.overall)
    found.by_position = {
        name: [mean_of(bins, name) for bins in zip(*each, strict=True)]
        for name, each in by_name(found.by_position).items()
    }
    found.estimates = {name: each[0] for name, each in by_name(found.estimates).items()}
    tried = drawn([each for each in visited if each.step], sizes.tried, derive(seed, "tried"))
    choices = await alternatives(
        policy, tried, rule=rule, params=params, seed=derive(seed, "alternatives"), continuations=sizes.continuations
    )
    ranked = None
    if choices:
        ranked = await ranking(
            policy, choices[: sizes.choices], estimators, score=score, params=params, seed=derive(seed, "ranking"),
            rollouts=sizes.rollouts,
        )  # fmt: skip
        ranked.orders = averaged(ranked.orders)

    async def repeated(states: Sequence[State]) -> Sequence[float]:
        each = [await of(9, "bias", i)(states) for i in range(sizes.bias_repeats)]
        return np.mean(each, axis=0).tolist()  # type: ignore[no-any-return]

    few = drawn(visited, sizes.bias_states, derive(seed, "bias states"))
    checked = await prediction(
        policy, few, {"k=9": repeated}, score=score, params=params, seed=derive(seed, "bias"),
        rollouts=sizes.bias_rollouts,
    )  # fmt: skip
    error = checked.overall["k=9"]
    bias = abs(error.error) / error.error_se if error.error_se > 0 else 0.0
    return Values(Analysis(prediction=found, ranking=ranked), bias, math.nan)


def by_name(found: Mapping[str, T]) -> dict[str, list[T]]:
    """What belongs to each estimator; repeats of one are told apart by a number behind `REPEAT`."""
    out: dict[str, list[T]] = {}
    for name, each in found.items():
        out.setdefault(name.partition(REPEAT)[0], []).append(each)
    return out


def mean_of(each: Sequence[S], name: str) -> S:
    """The mean of scores, field by field; a standard error is that of one repeat, which is cautious."""
    numbers: dict[str, Any] = {
        f.name: fmean(getattr(e, f.name) for e in each) for f in fields(each[0]) if f.type in ("float", float)
    }
    return replace(each[0], name=name, **numbers)


def averaged(found: Mapping[str, S]) -> dict[str, S]:
    """Scores of each estimator, the mean over its repeats."""
    return {name: mean_of(each, name) for name, each in by_name(found).items()}


async def add_batches(
    values: Values, policy: Policy, algorithms: Mapping[str, Any], batches: Sequence[Sequence[Group]]
) -> None:
    """Add what batches of the policy show: the variance of each algorithm's gradient, and that advantages sum up.

    An algorithm whose gradient is 0 in every batch (no answer of a smoke run is right, say) is left out, with a note.
    """
    for name, algorithm in algorithms.items() if len(batches) > 1 else ():
        try:
            values.analysis.variances |= await gradient_variance(policy, {name: algorithm}, batches)
        except UserError as error:
            values.analysis.notes.append(f"The gradient of {name} was not measured. {error}")
    vine = next(a for a in algorithms.values() if isinstance(a, VinePPO))
    values.sums = await sum_gap(vine, policy, batches[0])


async def sum_gap(algorithm: VinePPO, policy: Policy, groups: Sequence[Group]) -> float:
    """The largest |sum over steps of A_t - (score - V(S_0))| over answers, before whitening; 0 by the definition."""
    plain = copy.copy(algorithm)
    object.__setattr__(plain, "whiten", False)
    copies = copy.deepcopy(list(groups))
    await plain.credit(copies, policy)
    gaps = [0.0]
    for trajectory in (t for group in copies for t in group.valid):
        turn = trajectory.turns[0]
        if isinstance(turn.advantage, list) and turn.value is not None:
            starts = plain.steps.starts(turn.completion_ids, policy.renderer)
            total = sum(turn.advantage[start] for start in starts)
            gaps.append(abs(total - (plain.reward(trajectory) - turn.value[0])))
    return max(gaps)
