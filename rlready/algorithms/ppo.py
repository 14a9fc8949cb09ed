"""PPO with a critic, and VAPO.

    L = policy loss (see `policy_gradient`) + value_coef x mean of max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2)

(Schulman et al., arXiv 1707.06347, eq. 7 and 9; the value clip is OpenAI baselines'.) Advantages A and returns R come
from generalised advantage estimation over tokens, see `gae`; A is then normalised once, over all trained tokens of the
update, and not again in minibatches. The critic is the learner's value head: V_t is its value of the context before
token t.

**Decoupled lambdas** (VC-PPO, arXiv 2503.01491; VAPO, arXiv 2504.05118). The critic's target may have a lambda of its
own: at 1 it is the plain return, which no bootstrap biases. The policy's may follow the length l of a trajectory,
lambda = 1 - 1 / (lam_length l), so that the weight of the end reaches back over long answers as over short ones. For
l < 1 / lam_length (20 tokens at VAPO's 0.05) that is negative, so it is cut at 0.

**Critic warm-up.** A critic that starts at random biases the first advantages. In the first `critic_warmup` updates the
policy is left as it is and the value head alone learns, from plain returns (lambda 1, no clip). Body and policy share
weights here, so the body is held still as well.

**KL in the reward** (`kl_in`). `Turn.costs` are subtracted token by token before the estimation, so the critic learns
them as well.

Left out, and why: separate critic networks (one body with two heads is what fits a small machine), and recomputing
advantages between epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from rlready.algorithms import kl as kl_terms
from rlready.algorithms.base import Algorithm, only_valid
from rlready.algorithms.gae import assign_gae
from rlready.algorithms.policy_gradient import PolicyGradient, Ratio, Trust
from rlready.algorithms.streams import value_loss
from rlready.errors import UserError
from rlready.policy.base import Batch, Learner, Outputs, Policy, beside, require_learner
from rlready.rollout.compile import compile_groups
from rlready.types import FloatArray, Group, Row, Trajectory, Turn


@dataclass(frozen=True)
class PPO(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s; `advantage` is not read.

    Attributes:
        epochs: passes over the experience (the paper's tables have 3 to 15; VinePPO's baseline 2).
        gamma: discount per sampled token; 1 suits episodes that end.
        lam: GAE's lambda; 1 makes the return a plain sum, lower ones lean on the critic.
        lam_value: lambda of the critic's targets; None: that of the advantages.
        lam_length: lambda = max(0, 1 - 1 / (lam_length l)) for a trajectory of l trained tokens, in place of `lam`.
        critic_warmup: updates in which the critic alone learns.
        normalize: advantages to mean 0 and standard deviation 1 over the update.
        value_coef: weight of the value stream.
        value_clip: how far the value may move from its value at sampling before its gradient stops; None for any.
    """

    paper: ClassVar[str] = "1707.06347"
    when: ClassVar[str] = "many turns or long answers whose parts should be told apart, and a critic can be afforded"
    assigns: ClassVar[str] = "GAE of a critic"

    epochs: int = 2
    trust: Trust = "clip"
    ratio: Ratio = "token"
    gamma: float = 1.0
    lam: float = 0.95
    lam_value: float | None = None
    lam_length: float | None = None
    critic_warmup: int = 0
    normalize: bool = True
    value_coef: float = 0.5
    value_clip: float | None = 0.2

    reads_costs: ClassVar[bool] = True
    reads_advantage: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work, or is not read.
        """
        super().__post_init__()
        name = type(self).__name__
        for key in ("gamma", "lam", "lam_value"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{name}: {key}={value} must be in [0, 1].")
        if self.lam_length is not None:
            if not self.lam_length > 0:
                raise UserError(f"{name}: lam_length={self.lam_length} must be positive (0.05 in VAPO), or None.")
            if self.lam != type(self).lam:
                raise UserError(f"{name}: lam is not read where lam_length is set; leave one of them out.")
        if self.value_clip is not None and self.value_clip <= 0:
            raise UserError(f"{name}: value_clip={self.value_clip} must be positive, or None for no clip.")
        if self.critic_warmup < 0:
            raise UserError(f"{name}: critic_warmup={self.critic_warmup} must not be negative.")
        if self.value_coef <= 0:
            raise UserError(f"{name}: value_coef={self.value_coef} must be positive, or the critic learns nothing.")

    @property
    def max_lag(self) -> int:
        """1: a critic's targets age faster than a ratio can mend (NeMo-RL)."""
        return 1

    @property
    def streams(self) -> tuple[str, ...]:
        """Those of the policy, and "value"."""
        return (*super().streams, "value")

    @property
    def needs_values(self) -> bool:
        """Always."""
        return True

    def lam_of(self, trajectory: Trajectory) -> float:
        """Lambda of a trajectory's advantages."""
        if self.lam_length is None:
            return self.lam
        length = sum(turn.length for turn in trajectory.turns if turn.trainable)
        return max(0.0, 1 - 1 / (self.lam_length * length)) if length else 0.0

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Values from the critic, then GAE, then normalisation over the update."""
        await beside(policy, estimate_values, policy, groups)
        trajectories = [t for group in groups for t in group.valid]
        for trajectory in trajectories:
            assign_gae(trajectory, self.gamma, self.lam_of(trajectory), self.lam_value, reward=self.reward(trajectory))
        if self.normalize:
            normalize([turn for t in trajectories for turn in t.turns if turn.trainable and turn.length])

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """The policy's streams, and the critic's."""
        return super().terms(outputs, batch) | {"value": self.value_coef * critic_loss(outputs, batch, self.value_clip)}

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Also log the share of the returns' variance that the critic explains; below 0 it is worse than a constant."""
        out, noted = super().prepare(policy, rows)
        return out, noted | explained(rows)

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """As `PolicyGradient`; while the critic warms up, its value head alone learns (`critic_warmup` is then 1)."""
        done = self._state.get("updates", 0.0)
        if done >= self.critic_warmup:
            return await super().update(policy, groups)
        groups = only_valid(groups)
        if self.kl and self.kl_in == "reward":
            await beside(policy, kl_terms.charge, policy, groups, self.kl)
        await beside(policy, estimate_values, policy, groups)
        for trajectory in (t for group in groups for t in group):
            assign_gae(trajectory, self.gamma, 1.0, reward=self.reward(trajectory))
        rows = compile_groups(groups, streams=("value",))
        critic = Critic(
            epochs=self.epochs,
            minibatches=self.minibatches,
            average=self.average,
            constant=self.constant,
            seed=self.seed,
            value_coef=self.value_coef,
        )
        metrics = await beside(policy, critic.fit, policy, rows)
        self._state["updates"] = done + bool(rows)
        return metrics | {"critic_warmup": 1.0}


@dataclass(frozen=True)
class VAPO(PPO):
    """VAPO (arXiv 2504.05118; its values from memory): decoupled lambdas, clip-higher, imitation of right answers.

    The paper warms its critic for 50 updates of 512 prompts; 5 are ours, for a small machine.
    """

    paper: ClassVar[str] = "2504.05118"
    when: ClassVar[str] = "long chains of thought with a warmed critic"
    assigns: ClassVar[str] = "GAE, own lambda for critic and policy"

    clip_high: float | None = 0.28
    lam_value: float | None = 1.0
    lam_length: float | None = 0.05
    critic_warmup: int = 5
    imitate: float = 0.1


@dataclass(frozen=True)
class Critic(Algorithm):
    """The value head alone, on rows that have returns.

    Attributes:
        value_coef: weight of the squared error.
    """

    value_coef: float = 0.5

    @property
    def streams(self) -> tuple[str, ...]:
        """The one stream, "value"."""
        return ("value",)

    @property
    def needs_values(self) -> bool:
        """Always."""
        return True

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Squared error."""
        return {"value": self.value_coef * critic_loss(outputs, batch, None)}

    def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Log how much of the returns the critic explains."""
        return list(rows), explained(rows)

    def descend(self, learner: Learner, rows: Sequence[Row], denominators: Mapping[str, float]) -> dict[str, float]:
        """One optimizer step, the body held still."""
        return learner.forward_backward(rows, self.loss, denominators, values="head") | learner.step()


def critic_loss(outputs: Outputs, batch: Batch, clip: float | None) -> torch.Tensor:
    """Squared error of each token's value, [B, T]; 0 where the stream "value" has no weight."""
    assert outputs.values is not None and batch.returns is not None
    mask = batch.weights["value"] > 0
    old = None if batch.values is None else torch.where(mask, batch.values, 0.0)
    return value_loss(torch.where(mask, outputs.values, 0.0), torch.where(mask, batch.returns, 0.0), old, clip)


def explained(rows: Sequence[Row]) -> dict[str, float]:
    """`value/explained`, 1 - Var(R - V) / Var(R) over trained tokens (0 where R does not vary), and `value/mean`."""
    returns = np.concatenate([_trained(row, row.returns) for row in rows])
    values = np.concatenate([_trained(row, row.values) for row in rows])
    if not len(values):
        return {}
    spread = float(returns.var())
    share = 1 - float((returns - values).var()) / spread if spread > 1e-12 else 0.0
    return {"value/explained": share, "value/mean": float(values.mean())}


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
