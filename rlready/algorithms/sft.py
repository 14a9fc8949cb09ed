"""Supervised fine-tuning: cross-entropy on the tokens that carry weight.

    L = - sum_t w_t log pi(x_t | x_<t) / D

Rows come from `Row.from_segments` (any number of segments, each with its weight, 0 masks it), or from trajectories,
whose trainable turns are then learnt as they are. The rows' temperature holds here too: demonstrations have 1.

Left out, and why: packing (the learner's business), label smoothing (it teaches the model inadmissible tokens), and
early stopping (`on_step` may raise or return True).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlready.algorithms.base import Algorithm, reweigh
from rlready.errors import UserError
from rlready.policy.base import Batch, Learner, Outputs, Policy, require_learner
from rlready.policy.supervised import OnStep, fit, plan
from rlready.types import Group, Row


@dataclass(frozen=True)
class SFT(Algorithm):
    """Clone what is given; as an RL algorithm, with `only_right`, it is expert iteration on the policy's own successes.

    Attributes:
        only_right: `update` learns only from trajectories whose verdict is right.
    """

    only_right: bool = False

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


def nll(policy: Policy, rows: Sequence[Row]) -> float:
    """Held-out loss: nats per weighted token of the stream "nll". Nan where no token has weight."""
    total = weight = 0.0
    for row, logprobs in zip(rows, require_learner(policy).logprobs(rows), strict=True):
        w = row.weights["nll"].astype(np.float64)
        total -= float((w * np.where(w > 0, logprobs, 0.0)).sum())
        weight += float(w.sum())
    return total / weight if weight else float("nan")
