"""PPO with a critic.

    L = policy loss (see `policy_gradient`) + value_coef x mean of max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2)

(Schulman et al., arXiv 1707.06347, eq. 7 and 9; the value clip is OpenAI baselines'.) Advantages A and returns R come
from generalised advantage estimation over tokens, see `gae`; A is then normalised once, over all trained tokens of the
update, and not again in minibatches. The critic is the learner's value head: V_t is its value of the context before
token t.

Left out, and why: a KL penalty in the reward (`kl` is a stream of its own), separate critic networks (one body with two
heads is what fits a small machine), and recomputing advantages between epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlready.algorithms.gae import assign_gae
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.streams import value_loss
from rlready.errors import UserError
from rlready.policy.base import Batch, Outputs, Policy, require_learner
from rlready.rollout.compile import compile_groups
from rlready.types import FloatArray, Group, Row, Turn


@dataclass(frozen=True)
class PPO(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s.

    Attributes:
        epochs: passes over the experience (the paper's tables have 3 to 15).
        gamma: discount per sampled token; 1 suits episodes that end.
        lam: GAE's lambda; 1 makes the return a plain sum, lower ones lean on the critic.
        normalize: advantages to mean 0 and standard deviation 1 over the update.
        value_coef: weight of the value stream.
        value_clip: how far the value may move from its value at sampling before its gradient stops; None for any.
    """

    epochs: int = 2
    gamma: float = 1.0
    lam: float = 0.95
    normalize: bool = True
    value_coef: float = 0.5
    value_clip: float | None = 0.2

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        if not (0 <= self.gamma <= 1 and 0 <= self.lam <= 1):
            raise UserError(f"PPO: gamma={self.gamma} and lam={self.lam} must be in [0, 1].")
        if self.value_coef <= 0:
            raise UserError(f"PPO: value_coef={self.value_coef} must be positive, or the critic learns nothing.")

    @property
    def streams(self) -> tuple[str, ...]:
        """Those of the policy, and "value"."""
        return (*super().streams, "value")

    @property
    def needs_values(self) -> bool:
        """Always."""
        return True

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Values from the critic, then GAE, then normalisation over the update."""
        estimate_values(policy, groups)
        trajectories = [t for group in groups for t in group.valid]
        for trajectory in trajectories:
            assign_gae(trajectory, self.gamma, self.lam)
        if self.normalize:
            normalize([turn for t in trajectories for turn in t.turns if turn.trainable and turn.length])

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """The policy's streams, and the critic's."""
        assert outputs.values is not None and batch.returns is not None
        mask = batch.weights["value"] > 0
        old = None if batch.values is None else torch.where(mask, batch.values, 0.0)
        critic = value_loss(
            torch.where(mask, outputs.values, 0.0), torch.where(mask, batch.returns, 0.0), old, self.value_clip
        )
        return super().terms(outputs, batch) | {"value": self.value_coef * critic}

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Also log the share of the returns' variance that the critic explains; below 0 it is worse than a constant."""
        out, noted = super().prepare(policy, rows)
        returns = np.concatenate([_trained(row, row.returns) for row in rows])
        values = np.concatenate([_trained(row, row.values) for row in rows])
        spread = float(returns.var())
        explained = 1 - float((returns - values).var()) / spread if spread > 1e-12 else 0.0
        return out, noted | {"value/explained": explained, "value/mean": float(values.mean())}


def estimate_values(policy: Policy, groups: Sequence[Group]) -> None:
    """Write the critic's value of every trained token into `Turn.value`."""
    trajectories = [t for group in groups for t in group.trajectories]
    rows = compile_groups(groups, streams=("nll",))
    for row, values in zip(rows, require_learner(policy).values(rows), strict=True):
        assert row.turn is not None
        for i in np.unique(row.turn[row.weights["nll"] > 0]):
            trajectories[row.trajectory].turns[i].value = [float(v) for v in values[row.turn == i]]


def normalize(turns: Sequence[Turn]) -> None:
    """Shift and scale the advantages of all tokens of these turns to mean 0 and population standard deviation 1.

    Where they hardly differ (deviation below 1e-6) they are only shifted.
    """
    every = [a for turn in turns if isinstance(turn.advantage, list) for a in turn.advantage]
    if not every:
        return
    mean, std = float(np.mean(every)), float(np.std(every))
    for turn in turns:
        if isinstance(turn.advantage, list):
            turn.advantage = [(a - mean) / (std if std > 1e-6 else 1.0) for a in turn.advantage]


def _trained(row: Row, column: FloatArray | None) -> FloatArray:
    assert column is not None
    return column[row.weights["value"] > 0]
