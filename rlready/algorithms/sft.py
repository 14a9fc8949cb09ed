"""Supervised fine-tuning: cross-entropy on the tokens that carry weight.

    L = - sum_t w_t log pi(x_t | x_<t) / D

Rows come from `Row.from_segments` (any number of segments, each with its weight, 0 masks it), or from trajectories,
whose trainable turns are then learnt as they are. The rows' temperature holds here too: demonstrations have 1.

`RestEM` is rejection-sampling fine-tuning (arXiv 2312.06585): sample, keep the right answers, fine-tune the *base*
model on them, and sample again from the result.

Left out, and why: packing (the learner's business), label smoothing (it teaches the model inadmissible tokens), and
early stopping (`on_step` may raise or return True).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from rlready.algorithms.base import UNLIMITED, Algorithm, reweigh
from rlready.errors import UserError
from rlready.policy.base import Batch, Learner, Outputs, Policy, require_learner
from rlready.policy.supervised import OnStep, fit, plan
from rlready.seeds import np_rng
from rlready.types import Group, Row, Task, Trajectory


@dataclass(frozen=True)
class SFT(Algorithm):
    """Clone what is given; as an RL algorithm, with `only_right`, it is expert iteration on the policy's own successes.

    Attributes:
        only_right: `update` learns only from trajectories whose verdict is right.
    """

    paper: ClassVar[str] = "-"
    when: ClassVar[str] = "demonstrations, or only_right=true for the policy's own successes"
    assigns: ClassVar[str] = "-log pi of what is given"

    only_right: bool = False

    @property
    def max_lag(self) -> int:
        """Any: a demonstration is right whoever gave it."""
        return UNLIMITED

    @property
    def streams(self) -> tuple[str, ...]:
        """The one stream, "nll"."""
        return ("nll",)

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Nothing to assign."""

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Negative log-likelihood of each token."""
        return {"nll": -outputs.logprobs}

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """Learn from the groups' trajectories."""
        if self.only_right:
            groups = [Group(g.task, [t for t in g.valid if t.success]) for g in groups]
            groups = [g for g in groups if g.trajectories]
        return await super().update(policy, groups)

    def fit_rows(
        self,
        policy: Policy,
        rows: Sequence[Row],
        *,
        epochs: int | None = None,
        batch_tokens: int = 4096,
        seed: int | None = None,
        on_step: OnStep | None = None,
    ) -> list[dict[str, float]]:
        """Train on supervised rows in batches of similar length, one optimizer step each.

        Args:
            policy: with a learner.
            rows: with an "nll" stream.
            epochs: passes over the rows; default: the field `epochs`.
            batch_tokens: tokens per batch, context and padding included; a longer row is a batch of its own.
            seed: of the order, which is hashed from (seed, epoch); default: the field `seed`.
            on_step: called after each step with (step from 1, steps in all, metrics); returning True stops the
                training.

        Returns:
            Each step's metrics, `loss/nll` and the learner's among them.

        Raises:
            UserError: there is nothing to learn: no rows, or none with weight.
            ValueError: the policy has no learner.
        """
        if not any(np.any(row.weights.get("nll", 0.0)) for row in rows):
            raise UserError(f"SFT: none of the {len(rows)} rows has a token with weight; check the masks.")
        rows = reweigh(rows, self.average)
        epochs, seed = self.epochs if epochs is None else epochs, self.seed if seed is None else seed
        batches = plan([len(row) for row in rows], epochs, batch_tokens, seed)

        def descend(learner: Learner, batch: list[Row]) -> dict[str, float]:
            return self.descend(learner, batch, self.weigh(batch))

        return fit(policy, rows, batches, descend=descend, on_step=on_step)


@dataclass(frozen=True)
class RestEM(SFT):
    """Rejection-sampling fine-tuning (ReST-EM, arXiv 2312.06585, algorithm 1).

    An update is one iteration: its groups are the samples (the E-step), and the epochs of likelihood on the right ones
    are the M-step. Iterations should be large: with `from_base`, whatever an update does not show is forgotten.

    Attributes:
        epochs: passes over the right answers; 8 as VinePPO's baseline has it (arXiv 2410.01679).
        minibatches: optimizer steps per pass; ours.
        per_task: most right answers kept per task, drawn by hash, so that easy tasks do not crowd out hard ones; the
            paper keeps 10 (from memory).
        distinct: keep one of several equal answers (same tokens after the same prompts).
        from_base: start every iteration from the base weights, as the paper does against overfitting and drift; they
            are the learner's frozen reference, so a checkpoint holds them. False goes on from the present weights.
    """

    paper: ClassVar[str] = "2312.06585"
    when: ClassVar[str] = "a first push from a weak start, with nothing to tune"
    assigns: ClassVar[str] = "-log pi of right answers"

    only_right: bool = True
    epochs: int = 8
    minibatches: int = 4
    per_task: int = 10
    distinct: bool = True
    from_base: bool = True

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        if not self.only_right:
            raise UserError("RestEM: only_right=False would learn from wrong answers; SFT does that.")
        if self.per_task < 1:
            raise UserError(f"RestEM: per_task={self.per_task} must be at least 1.")

    @property
    def needs_reference(self) -> bool:
        """The base weights, where every iteration starts from them."""
        return self.from_base

    @property
    def reads_reference(self) -> bool:
        """The loss does not."""
        return False

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """One M-step on the groups' right answers; where there are none, the policy stays as it is.

        Returns:
            Also `right` (right answers that were sampled) and `kept` (those learnt from).
        """
        learner = require_learner(policy)
        right = sum(t.success for group in groups for t in group.valid)
        kept = self.kept(groups, key=learner.version)
        if kept and self.from_base:
            learner.restart()
        numbers = {"right": float(right), "kept": float(sum(len(group) for group in kept))}
        return await super().update(policy, kept) | numbers

    def kept(self, groups: Sequence[Group], *, key: int) -> list[Group]:
        """The right answers to learn from, by task in order of first appearance.

        Args:
            groups: samples; a task may have several.
            key: seeds the draw where a task has too many, with the field `seed` and the task.
        """
        by_task: dict[Task, dict[object, Trajectory]] = {}
        for group in groups:
            for trajectory in group.valid:
                if trajectory.success:
                    answers = by_task.setdefault(group.task, {})
                    answers.setdefault(_answer(trajectory) if self.distinct else id(trajectory), trajectory)
        out = []
        for task, answers in by_task.items():
            every = list(answers.values())
            if len(every) > self.per_task:
                drawn = np_rng(self.seed, "restem", key, task.id).choice(len(every), self.per_task, replace=False)
                every = [every[i] for i in sorted(drawn.tolist())]
            out.append(Group(task, every))
        return out


def _answer(trajectory: Trajectory) -> object:
    """What makes two trajectories the same demonstration."""
    return tuple((tuple(t.prompt_ids), tuple(t.completion_ids)) for t in trajectory.turns if t.trainable)


def nll(policy: Policy, rows: Sequence[Row]) -> float:
    """Held-out loss: nats per weighted token of the stream "nll". Nan where no token has weight."""
    total = weight = 0.0
    for row, logprobs in zip(rows, require_learner(policy).logprobs(rows), strict=True):
        w = row.weights["nll"].astype(np.float64)
        total -= float((w * np.where(w > 0, logprobs, 0.0)).sum())
        weight += float(w.sum())
    return total / weight if weight else float("nan")
