"""VinePPO: PPO whose values are tried out, not predicted.

    A_t = r_t + V(S_t) - V(S_{t-1}),     V(S) = mean reward of K fresh samples from S       (arXiv 2410.01679, sec. 4)

An answer is cut into steps s_1 .. s_T (`rollout.steps`); S_t is the prompt and the first t steps, V(S_T) = 0, and the
reward r_T is the answer's score. All tokens of a step carry its advantage, an end token that of the last step. The
samples are probes (`rollout.probe`): they measure and are never trained on. There is no critic.

States beyond `max_states` are filled from the end, V_t = r_{t+1} + V_{t+1}, so that their steps have advantage 0.
Either way an answer's advantages sum to its score less V(S_0), before they are whitened over all response tokens of the
update.

Left out, and why: agents of many turns, whose states would be turns; their probes would need environments that can be
forked, and `bind` says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rlready.algorithms.base import Average
from rlready.algorithms.kl import Gradient
from rlready.algorithms.policy_gradient import PolicyGradient, Truncated, Trust
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Learner, Policy, SamplingParams
from rlready.policy.gradients import take_gradients
from rlready.rollout.probe import Estimates, State, answers_of, probe
from rlready.rollout.steps import SplitError, StepRule
from rlready.scoring import Scorer
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group, Row, Trajectory, Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Bound:
    """What probes need to know of the training: how answers are scored and sampled."""

    score: Scorer
    params: SamplingParams


@dataclass
class _Plan:
    """One answer, its steps, and the values before each."""

    trajectory: Trajectory
    turn: Turn
    starts: list[int]
    score: float
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class VinePPO(PolicyGradient):
    """PPO's clip and epochs, a KL of 1e-4 in the loss (k3 as published, clamped, summed over an answer), no critic.

    The defaults are the paper's: 2 epochs of 8 minibatches, clip 0.2, and an answer that was cut off is worth 0, in
    training and in probes alike. Where a dialect has no end token every answer is cut off; then take
    `truncated="keep"`. The KL's gradient is the biased one that was published; `kl_gradient="exact"` mends it. Probes
    are of the policy that acts now, so the answers should be, too: at most one update of lag, as for a critic.

    Attributes:
        k: samples per state (9; 1 and 3 are its ablation).
        max_states: states probed per answer, the first ones; None for all (25 on GSM8K).
        steps: how answers are cut.
        whiten: shift and scale advantages to mean 0 and deviation 1 over all response tokens of the update (there: of
            a minibatch, so that a token's weight depends on its neighbours).
        ratio_limit: no step is taken on a minibatch whose mean ratio is above this; None: on all. Its code has such a
            limit; 10 is a number of ours.
    """

    paper: ClassVar[str] = "2410.01679"
    when: ClassVar[str] = "long answers of clear steps, where sampling is cheap: probes instead of a critic"
    assigns: ClassVar[str] = "value after a step - value before, by probes"

    epochs: int = 2
    minibatches: int = 8
    trust: Trust = "clip"
    kl: float = 1e-4
    kl_gradient: Gradient = "naive"
    kl_average: Average | None = "constant"
    kl_clamp: float | None = 10.0
    truncated: Truncated = "zero"
    k: int = 9
    max_states: int | None = None
    steps: StepRule = field(default_factory=StepRule)
    whiten: bool = True
    ratio_limit: float | None = 10.0

    reads_advantage: ClassVar[bool] = False
    _bound: ClassVar[_Bound | None] = None

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        object.__setattr__(self, "_noted", {})
        if self.k < 1:
            raise UserError(f"VinePPO: k={self.k} must be at least 1 sample per state.")
        if self.max_states is not None and self.max_states < 1:
            raise UserError(f"VinePPO: max_states={self.max_states} must be at least 1, or None for all states.")
        if self.ratio_limit is not None and self.ratio_limit <= 1:
            raise UserError(f"VinePPO: ratio_limit={self.ratio_limit} must be above 1, the ratio on policy, or None.")
        if self.kl and self.kl_in == "reward" and self.whiten:
            raise UserError('VinePPO: kl_in="reward" would be deducted from whitened advantages; use whiten=False.')
        if self.anchor == "interpolated" and self.ratio_limit is not None:
            raise UserError(
                'VinePPO: anchor="interpolated" counts versions, and a step that ratio_limit leaves out has none; '
                "set ratio_limit=None."
            )

    @property
    def max_lag(self) -> int:
        """1, as for PPO: the values are those of the policy now."""
        return 1

    def bind(self, tasks: TaskSet, env: EnvFactory, params: SamplingParams | None = None) -> VinePPO:
        """A copy that knows how answers are scored and sampled.

        Args:
            tasks: their score is the reward.
            env: must be a question and its answer.
            params: the sampler's settings in training; `SamplingParams()` by default.

        Raises:
            UserError: the environment is not a single question and answer, or limits the answers to choices.
        """
        answers_of(env, "VinePPO")
        bound = replace(self)
        object.__setattr__(bound, "_bound", _Bound(tasks.score, params or SamplingParams()))
        return bound

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Cut, probe, and write the advantages of steps.

        An answer that cannot be cut is dropped: its `failure` says why, and `vine/dropped` counts it.

        Raises:
            UserError: `bind` was not called, or an episode has more than one trained turn.
        """
        if self._bound is None:
            raise UserError("VinePPO does not know how answers are scored: call bind(tasks, env, params) first.")
        if self.truncated == "zero" and not (self._bound.params.stop_ids or policy.renderer.stop_ids):
            raise UserError(
                "VinePPO: this dialect has no end token, so every answer is stopped by length and would be worth 0. "
                'Set truncated="keep".'
            )
        plans, dropped = self._cut(groups, policy)
        asked = [self._asked(plan) for plan in plans]
        states = [State.of(p.trajectory.task, p.turn, p.starts[t]) for p, n in zip(plans, asked, strict=True)
                  for t in range(n)]  # fmt: skip
        estimates = await probe(
            policy, states, k=self.k, params=self._bound.params, score=self._bound.score,
            seed=derive(self.seed, "vine", policy.version), reward=self.reward,
        )  # fmt: skip
        if plans and all(len(plan.starts) == 1 for plan in plans) and not self.__dict__["_noted"]:
            log.warning(
                'VinePPO: every answer is a single step by the rule "%s", so credit is the score less its expectation, '
                "and no step is told from another. Choose steps that cut these answers.",
                self.steps.kind,
            )
        given = iter(estimates.means)
        for plan, n in zip(plans, asked, strict=True):
            plan.values = filled([next(given) for _ in range(n)], len(plan.starts), plan.score)
            write(plan.turn, plan.starts, plan.values, plan.score)
        self._note(plans, estimates, dropped)
        if self.whiten:
            whiten([plan.turn for plan in plans])

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """As `Algorithm.update`, with what the probes came to under `vine/`."""
        metrics = await super().update(policy, groups)
        noted: dict[str, float] = self.__dict__["_noted"]
        return metrics | noted

    def descend(self, learner: Learner, rows: Sequence[Row], denominators: Mapping[str, float]) -> dict[str, float]:
        """As `Algorithm.descend`, with `ratio_limit`; `ratio/skipped` is the share of minibatches above it."""
        if self.ratio_limit is None:
            return super().descend(learner, rows, denominators)
        guard: Any = _Guard(learner, self.ratio_limit)
        return super().descend(guard, rows, denominators)

    def _cut(self, groups: Sequence[Group], policy: Policy) -> tuple[list[_Plan], int]:
        plans: list[_Plan] = []
        dropped = 0
        for trajectory in (t for group in groups for t in group.valid):
            turns = [turn for turn in trajectory.turns if turn.trainable and turn.length]
            if len(turns) > 1:
                raise UserError(
                    f"VinePPO: an episode of task {trajectory.task.id} has {len(turns)} turns, and only answers of one "
                    "turn can be cut into steps and gone on from. Use ppo for agents of many turns."
                )
            for turn in turns:
                try:
                    starts = self.steps.starts(turn.completion_ids, policy.renderer)
                except SplitError as error:
                    dropped += 1
                    trajectory.failure = f"its answer cannot be cut into steps: {error}"
                    continue
                plans.append(_Plan(trajectory, turn, starts, self.reward(trajectory)))
        return plans, dropped

    def _asked(self, plan: _Plan) -> int:
        return len(plan.starts) if self.max_states is None else min(self.max_states, len(plan.starts))

    def _note(self, plans: Sequence[_Plan], estimates: Estimates, dropped: int) -> None:
        first = [plan.values[0] for plan in plans]
        every = [v for plan in plans for v in plan.values]
        noted = {
            "vine/states": float(len(estimates)),
            "vine/distinct": float(estimates.distinct),
            "vine/shared": estimates.shared,
            "vine/tokens": float(estimates.tokens),
            "vine/prompt_computed": estimates.computed,
            "vine/prompt_reused": estimates.reused,
            "vine/seconds": estimates.seconds,
            "vine/unfinished": estimates.unfinished / max(1, self.k * estimates.distinct),
            "vine/failed": float(estimates.failed),
            "vine/dropped": float(dropped),
            "vine/steps": float(np.mean([len(plan.starts) for plan in plans])) if plans else 0.0,
            "vine/value": float(np.mean(every)) if every else 0.0,
            "vine/value_first": float(np.mean(first)) if first else 0.0,
        }
        object.__setattr__(self, "_noted", {name: value for name, value in noted.items() if math.isfinite(value)})


class _Guard:
    """A learner that takes no step where the mean ratio of what it has run is above a limit."""

    def __init__(self, learner: Learner, limit: float) -> None:
        self._learner = learner
        self._limit = limit
        self._ratio = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def forward_backward(self, *args: Any, **options: Any) -> dict[str, float]:
        metrics = self._learner.forward_backward(*args, **options)
        self._ratio = metrics["ratio/mean"]
        return metrics

    def step(self) -> dict[str, float]:
        if self._ratio > self._limit:
            take_gradients(self._learner)
            return {"ratio/skipped": 1.0}
        return self._learner.step() | {"ratio/skipped": 0.0}


def filled(values: Sequence[float], steps: int, score: float) -> list[float]:
    """V(S_0) .. V(S_{T-1}), [T]: what was not probed, or could not be judged (NaN), is filled from the end.

    V_t = r_{t+1} + V_{t+1}: the last one is the score, another one its successor's value.
    """
    out = [*values, *[math.nan] * (steps - len(values))]
    after = score
    for t in reversed(range(steps)):
        if math.isnan(out[t]):
            out[t] = after
        after = out[t]
    return out


def step_advantages(values: Sequence[float], score: float) -> list[float]:
    """A_t = r_t + V(S_t) - V(S_{t-1}) for steps 1 .. T, given V(S_0) .. V(S_{T-1}); V(S_T) = 0, r_T = score. [T]."""
    after = [*values[1:], score]
    return [b - a for a, b in zip(values, after, strict=True)]


def write(turn: Turn, starts: Sequence[int], values: Sequence[float], score: float) -> None:
    """Spread the steps' advantages, and the values before them, over their tokens."""
    lengths = np.diff([*starts, turn.length])
    turn.advantage = [float(a) for a in np.repeat(step_advantages(values, score), lengths)]
    turn.value = [float(v) for v in np.repeat(values, lengths)]


def whiten(turns: Sequence[Turn]) -> None:
    """Advantages of all tokens of these turns to mean 0 and population deviation 1; where they hardly differ, to 0."""
    every: list[Any] = [a for turn in turns if isinstance(turn.advantage, list) for a in turn.advantage]
    if not every:
        return
    mean, std = float(np.mean(every)), float(np.std(every))
    for turn in turns:
        if isinstance(turn.advantage, list):
            turn.advantage = [(a - mean) / std if std > 1e-6 else 0.0 for a in turn.advantage]
