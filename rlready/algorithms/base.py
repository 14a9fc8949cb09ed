"""An algorithm assigns credit and names its loss streams; the trainer knows no algorithm.

Hooks, override the narrowest:

    credit(groups, policy)      writes `Turn.advantage` (and `Turn.returns`); may sample probes from the policy
    terms(outputs, batch)       the loss of every token under each named stream
    loss(outputs, batch)        the default: the sum of the named streams, each divided by its own denominator
    compile(groups)             rows of credited groups
    prepare(policy, rows)       once per update, before the first pass (corrections, numbers to log)
    watch(outputs, batch)       numbers of the first minibatch, where the policy is still what it was at the start
    update(policy, groups)      the default: credit -> compile -> loss -> step, in epochs and minibatches
    bind(tasks, env, params)    the algorithm as it is used in one training; for those that sample on their own

**What a mean is over.** A stream's loss is  sum_t w_t l_t / D,  the sum taken over the tokens of a minibatch. The
averaging mode sets both: `reweigh` scales the weights w, `denominators` gives D over the *whole update*, divided by the
number of minibatches. So neither minibatches nor micro-batches nor ranks (`Ranked`) change the weight of a token. A
loss divides by `batch.denominators[stream]` and by nothing else. With weights v_t as compiled (1 for a trained token):

    token        w = v                                  D = sum of v                   (DAPO, arXiv 2503.14476)
    sequence     w = v / (sum of v in its row)          D = number of rows             (GRPO, an episode being a row)
    trajectory   w = v / (sum of v in its trajectory)   D = number of trajectories     (GRPO, arXiv 2402.03300, eq. 3)
    group        w = v / (sum of v in its group)        D = number of groups           (Magistral, arXiv 2506.10910)
    constant     w = v                                  D = constant x trajectories    (Dr. GRPO, arXiv 2503.20783)

Rows, trajectories and groups with no weight in a stream are not counted in it. The rows of one trajectory always land
in the same minibatch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import (
    Batch,
    Learner,
    Loss,
    Outputs,
    Policy,
    SamplingParams,
    beside,
    over_ranks,
    require_learner,
)
from rlready.rollout.compile import compile_groups
from rlready.seeds import np_rng
from rlready.tasks.base import TaskSet
from rlready.types import FloatArray, Group, Row

Average = Literal["token", "sequence", "trajectory", "group", "constant"]
AVERAGES: tuple[Average, ...] = ("token", "sequence", "trajectory", "group", "constant")
UNLIMITED = 1_000_000
"""Updates of lag for algorithms that do not mind who sampled."""
STEP, VERSION = "step", "version"
"""Beside a minibatch's denominators: optimizer steps that the update has taken, and the learner's version."""


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms; its fields are hyper-parameters.

    Attributes:
        epochs: passes over the experience of one update.
        minibatches: optimizer steps per pass.
        average: what a stream's mean is over, see the module's table.
        constant: the divisor of "constant", usually the completion length cap.
        seed: of the minibatch shuffle.
    """

    epochs: int = 1
    minibatches: int = 1
    average: Average = "token"
    constant: float = 1.0
    seed: int = 0

    paper: ClassVar[str] = ""
    """Where a named method is from: arXiv ids."""
    when: ClassVar[str] = ""
    """When to use it, in words; shown by `rlready algorithms`."""
    assigns: ClassVar[str] = ""
    """What a credit of its own assigns, as a formula; where it is empty, the field `advantage` says it."""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        name = type(self).__name__
        if self.epochs < 1 or self.minibatches < 1:
            raise UserError(f"{name}: epochs={self.epochs} and minibatches={self.minibatches} must both be at least 1.")
        if self.average not in AVERAGES:
            raise UserError(f'{name}: average="{self.average}" is unknown; choose one of {", ".join(AVERAGES)}.')
        if self.constant <= 0:
            raise UserError(f"{name}: constant={self.constant} must be positive; the completion length cap is usual.")

    @property
    def max_lag(self) -> int:
        """Updates by which what is learnt from may be older than the policy. 0: only what the policy itself sampled."""
        return 0

    @property
    def least_group(self) -> int:
        """Episodes of a task that credit needs: 2 where it compares them, as an episode alone would teach nothing."""
        return 1

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the loss streams that rows are compiled with."""
        return ("policy",)

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss reads `outputs.entropy`."""
        return False

    @property
    def needs_values(self) -> bool:
        """Whether the loss reads `outputs.values`."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must hold a frozen reference."""
        return False

    @property
    def reads_reference(self) -> bool:
        """Whether the loss reads `outputs.reference`; a reference may be needed before the loss alone."""
        return self.needs_reference

    def averaging(self, stream: str) -> tuple[Average, float]:
        """What a stream's mean is over, and its constant."""
        return self.average, self.constant

    def bind(self, tasks: TaskSet, env: EnvFactory, params: SamplingParams | None = None) -> Algorithm:
        """The algorithm for one training: a copy that remembers nothing of an earlier one (warm-up, running means).

        Those that sample on their own learn here how answers are made and scored.

        Args:
            tasks: trained on.
            env: they are played in.
            params: the sampler's settings in training.
        """
        return replace(self)

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Write the advantages of every trainable turn."""
        raise NotImplementedError(f"{type(self).__name__} must define credit().")

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Loss of each token [B, T] per stream, coefficients included, weights and denominators not."""
        raise NotImplementedError(f"{type(self).__name__} must define terms() or loss().")

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The loss of one micro-batch: the sum of the streams' weighted means. Metrics `loss/<stream>`."""
        parts = {name: stream_sum(name, values, batch) for name, values in self.terms(outputs, batch).items()}
        total = torch.stack(list(parts.values())).sum()
        metrics: dict[str, torch.Tensor | float] = {f"loss/{name}": part.detach() for name, part in parts.items()}
        return Loss(total, metrics)

    def watch(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor | float]:
        """Metrics of a micro-batch of an update's first minibatch, like `Loss.metrics`; called without gradients."""
        return {}

    def compile(self, groups: Sequence[Group]) -> list[Row]:
        """Rows of groups that have their credit."""
        return compile_groups(groups, streams=self.streams)

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Rows as they will be trained on, and numbers to log. Called once per update."""
        return list(rows), {}

    def needed(self, row: Row) -> bool:
        """False where a row can only add zero to the gradient, so that no forward pass is spent on it."""
        return True

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """Learn from groups; return metrics averaged over optimizer steps.

        `credit` sees the valid trajectories alone, so an author need not think of failed ones.
        """
        groups = only_valid(groups)
        await self.credit(groups, policy)
        return await beside(policy, lambda: self.fit(policy, self.compile(groups)))

    def fit(self, policy: Policy, rows: Sequence[Row]) -> dict[str, float]:
        """Run epochs of minibatches over rows, then hand the new weights to the sampler.

        Returns:
            Metrics averaged over optimizer steps; those whose name ends in "/max" are maxima. Also `rows`,
            `rows_skipped` (see `needed`), `tokens` and `optimizer_steps`.

        Raises:
            FloatingPointError: a gradient was not finite; the sampler still has the weights of before.
        """
        learner = require_learner(policy)
        if not rows:
            return {"rows": 0.0, "rows_skipped": 0.0, "tokens": 0.0, "optimizer_steps": 0.0}
        rows, noted = self.prepare(policy, rows)
        rows = self.reweigh(rows)
        units = trajectories_of(rows)
        pieces = min(self.minibatches, len(units))
        sums = over_ranks(learner, self.sizes(rows))
        divisors = {stream: (size or 1.0) / pieces for stream, size in sums.items()}
        totals: dict[str, list[float]] = defaultdict(list)
        skipped = 0
        for epoch in range(self.epochs):
            order = np_rng(self.seed, "minibatch", learner.version, epoch).permutation(len(units))
            for piece, part in enumerate(np.array_split(order, pieces)):
                chosen = [units[unit] for unit in part]
                # The rows of a trajectory stand together; one is always run, so that the optimizer steps (momentum,
                # decay) as if all had been.
                useful = [row for unit in chosen for row in self.useful(unit)]
                useful = useful or [min((row for unit in chosen for row in unit), key=len)]
                skipped += sum(map(len, chosen)) - len(useful)
                where = {STEP: float(epoch * pieces + piece), VERSION: float(learner.version)}
                given = divisors | run_weights(useful) | where
                for name, value in self.descend(learner, useful, given).items():
                    totals[name].append(value)
        policy.sync()
        out = {name: float(max(v) if name.endswith("/max") else np.mean(v)) for name, v in totals.items()}
        return (
            out
            | noted
            | {
                "rows": float(len(rows)),
                "rows_skipped": skipped / self.epochs,
                "tokens": float(sum(len(row) for row in rows)),
                "optimizer_steps": float(len(totals["grad_norm"])),
            }
        )

    def useful(self, unit: Sequence[Row]) -> list[Row]:
        """The rows of one trajectory that are worth a forward pass."""
        return [row for row in unit if self.needed(row)]

    def descend(self, learner: Learner, rows: Sequence[Row], denominators: Mapping[str, float]) -> dict[str, float]:
        """One optimizer step on one minibatch. A learner adds metrics up; maxima are kept on this side.

        Args:
            learner: takes the step.
            rows: of the minibatch.
            denominators: per stream, and per "<stream>/run", see `run_weights`; where `STEP` among them is 0, `watch`
                is called.
        """
        peaks: dict[str, float] = {}

        def loss(outputs: Outputs, batch: Batch) -> Loss:
            result = self.loss(outputs, batch)
            if denominators.get(STEP) == 0:
                with torch.no_grad():
                    result.metrics |= self.watch(outputs, batch)
            for name in [n for n in result.metrics if n.endswith("/max")]:
                peaks[name] = max(peaks.get(name, -np.inf), float(result.metrics.pop(name)))
            return result

        metrics = learner.forward_backward(
            rows,
            loss,
            denominators,
            entropy=self.needs_entropy,
            values=self.needs_values,
            reference=self.reads_reference,
        )
        return metrics | peaks | learner.step()

    def reweigh(self, rows: Sequence[Row]) -> list[Row]:
        """Copies of rows whose weights carry the averaging of each stream; the rows given are left as they are."""
        modes: dict[Average, list[str]] = defaultdict(list)
        for stream in _streams(rows):
            modes[self.averaging(stream)[0]].append(stream)
        out = list(rows)
        for average, streams in modes.items():
            out = reweigh(out, average, streams)
        return out

    def sizes(self, rows: Sequence[Row]) -> dict[str, float]:
        """What each stream is divided by, over rows that `reweigh` made; 0 where nothing has weight."""
        return {stream: _size(rows, stream, *self.averaging(stream)) for stream in _streams(rows)}

    def weigh(self, rows: Sequence[Row]) -> dict[str, float]:
        """`sizes`, with 1 where nothing has weight, so that its share is 0 and not nan."""
        return {stream: size or 1.0 for stream, size in self.sizes(rows).items()}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know of this algorithm beyond its fields (a running baseline); JSON-ready."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""


def only_valid(groups: Sequence[Group]) -> list[Group]:
    """Groups without their failed trajectories."""
    return [group if len(group.valid) == len(group) else Group(group.task, group.valid) for group in groups]


def stream_sum(stream: str, values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """A micro-batch's share of a stream's mean: sum of weight x value over its tokens, divided by the denominator.

    Tokens without weight are cut out before the product, so that a nan or inf on padding or context cannot reach the
    loss.
    """
    weight = batch.weights[stream]
    return (weight * torch.where(weight > 0, values, 0.0)).sum() / batch.denominators[stream]


def run_mean(stream: str, values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Like `stream_sum`, but the mean over the tokens that were really run: for metrics, not for losses."""
    weight = batch.weights[stream]
    with torch.no_grad():
        return (weight * torch.where(weight > 0, values, 0.0)).sum() / batch.denominators[f"{stream}/run"]


def run_means(stream: str, values: Mapping[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
    """`run_mean` of several columns at once, which is as cheap as one."""
    weight = batch.weights[stream]
    with torch.no_grad():
        stacked = torch.where(weight > 0, torch.stack(list(values.values())), 0.0)
        means = (weight * stacked).sum((1, 2)) / batch.denominators[f"{stream}/run"]
        return dict(zip(values, means.unbind(), strict=True))


def run_weights(rows: Sequence[Row]) -> dict[str, float]:
    """Total weight per stream of the rows that are run, under the name "<stream>/run"."""
    return {
        f"{s}/run": sum(float(row.weights[s].sum(dtype=np.float64)) for row in rows if s in row.weights) or 1.0
        for s in _streams(rows)
    }


def trajectories_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by trajectory, in order of first appearance; a row that came from none stands alone."""
    return _by("trajectory", rows)


def reweigh(rows: Sequence[Row], average: Average, streams: Sequence[str] | None = None) -> list[Row]:
    """Copies of rows whose weights carry the averaging mode; the rows given are left as they are.

    Args:
        rows: as compiled.
        average: see the module's table.
        streams: those it is for; None for all.
    """
    if average in ("token", "constant"):
        return list(rows)
    units = [[row] for row in rows] if average == "sequence" else _by(average, rows)
    scaled: dict[int, Row] = {}
    for unit in units:
        sums: dict[str, float] = defaultdict(float)
        for row in unit:
            for stream, weight in row.weights.items():
                if streams is None or stream in streams:
                    sums[stream] += float(weight.sum(dtype=np.float64))
        for row in unit:
            weights = {s: w / np.float32(sums[s]) if sums.get(s, 0.0) > 0 else w for s, w in row.weights.items()}
            scaled[id(row)] = _reweighed(row, weights)
    return [scaled[id(row)] for row in rows]


def denominators(rows: Sequence[Row], average: Average, constant: float) -> dict[str, float]:
    """What each stream's weighted sum is divided by, over rows that `reweigh` made.

    A stream without any weight gets 1, so that its share is 0 and not nan.
    """
    return {stream: _size(rows, stream, average, constant) or 1.0 for stream in _streams(rows)}


def _reweighed(row: Row, weights: dict[str, FloatArray]) -> Row:
    """`dataclasses.replace`, at a tenth of its cost: an update does this for every row."""
    out = object.__new__(type(row))
    out.__dict__.update(row.__dict__, weights=weights)
    return out


def _streams(rows: Sequence[Row]) -> list[str]:
    return sorted({stream for row in rows for stream in row.weights})


def _size(rows: Sequence[Row], stream: str, average: Average, constant: float) -> float:
    sums = [float(row.weights[stream].sum(dtype=np.float64)) if stream in row.weights else 0.0 for row in rows]
    if average == "token":
        return sum(sums)
    if average == "sequence":
        return float(sum(s > 0 for s in sums))
    used = [row for row, s in zip(rows, sums, strict=True) if s > 0]
    return len(_by("group" if average == "group" else "trajectory", used)) * (constant if average == "constant" else 1)


def _by(what: str, rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by trajectory or group, in order of first appearance; a row that came from none stands alone."""
    units: dict[object, list[Row]] = {}
    for i, row in enumerate(rows):
        number: int = getattr(row, what)
        units.setdefault(number if number >= 0 else ("alone", i), []).append(row)
    return list(units.values())
