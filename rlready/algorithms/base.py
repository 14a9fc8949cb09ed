"""An algorithm assigns credit and names its loss streams; the trainer knows no algorithm.

Three hooks, override the narrowest:

    credit(groups, policy)      writes `Turn.advantage` (and `Turn.returns`); may sample probes from the policy
    loss(outputs, batch)        a sum of named streams, each divided by its own denominator
    update(policy, groups)      the default: credit -> compile -> loss -> step, in epochs and minibatches

A stream's denominator is taken over the whole minibatch before it is cut into micro-batches, so accumulating gradients gives
the update of one big batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rlready.policy.base import Batch, Learner, Loss, Outputs, Policy
from rlready.rollout.compile import compile_groups
from rlready.seeds import np_rng
from rlready.types import Group, Row

Average = Literal["token", "sequence", "trajectory", "constant"]


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms; its fields are hyper-parameters.

    Attributes:
        epochs: passes over the experience of one update.
        minibatches: optimizer steps per pass.
        average: what a stream's mean is over: "token" (all tokens alike), "sequence" (mean over rows of the mean over a
            row's tokens), "trajectory" (the same over trajectories, whatever their number of rows), or "constant"
            (sum over tokens divided by `constant` times the number of trajectories, as Dr. GRPO does).
        constant: the divisor of "constant", usually the completion length cap.
        seed: of the minibatch shuffle.
    """

    epochs: int = 1
    minibatches: int = 1
    average: Average = "token"
    constant: float = 1.0
    seed: int = 0

    streams: ClassVar[tuple[str, ...]] = ("policy",)
    needs_entropy: ClassVar[bool] = False
    needs_values: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Write the advantages of every trainable turn."""
        raise NotImplementedError(f"{type(self).__name__} must define credit().")

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        """The loss of one micro-batch."""
        raise NotImplementedError(f"{type(self).__name__} must define loss().")

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """Learn from groups; return metrics averaged over optimizer steps."""
        await self.credit(groups, policy)
        rows = compile_groups(groups, streams=self.streams)
        return self.fit(policy, rows)

    def fit(self, policy: Policy, rows: Sequence[Row]) -> dict[str, float]:
        """Run epochs of minibatches over rows, then hand the new weights to the sampler."""
        learner = require_learner(policy)
        if not rows:
            return {"rows": 0.0, "optimizer_steps": 0.0}
        totals: dict[str, list[float]] = defaultdict(list)
        for epoch in range(self.epochs):
            order = np_rng(self.seed, "minibatch", learner.version, epoch).permutation(len(rows))
            for part in np.array_split(order, min(self.minibatches, len(rows))):
                chosen = [rows[i] for i in part]
                metrics = learner.forward_backward(
                    chosen,
                    self.loss,
                    self.weigh(chosen),
                    entropy=self.needs_entropy,
                    values=self.needs_values,
                    reference=self.needs_reference,
                )
                metrics |= learner.step()
                for name, value in metrics.items():
                    totals[name].append(value)
        policy.sync()
        out = {name: float(np.mean(v)) for name, v in totals.items()}
        return out | {"rows": float(len(rows)), "optimizer_steps": float(len(totals["grad_norm"]))}

    def weigh(self, rows: Sequence[Row]) -> dict[str, float]:
        """Denominator per stream over a minibatch.

        The averaging mode is expressed by the rows' weights where it is not a plain token mean, see `reweigh`.
        """
        return denominators(rows, self.average, self.constant)


def require_learner(policy: Policy) -> Learner:
    """The policy's learner.

    Raises:
        ValueError: the policy is fixed.
    """
    if policy.learner is None:
        raise ValueError("This policy has no learner, so it cannot be trained.")
    return policy.learner


def denominators(rows: Sequence[Row], average: Average, constant: float) -> Mapping[str, float]:
    raise NotImplementedError
