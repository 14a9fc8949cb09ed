"""REINFORCE with a baseline.

    A_i = r_i - b,     gradient = mean of A_i grad log pi      (Williams 1992, Machine Learning 8)

The ratio is not clipped: on the first step of an update it is 1, and the gradient of r A is then A grad log pi; on
later ones it is the importance weight.

Left out, and why: reward-to-go by turn (the number that is trained on is `Trajectory.reward`; PPO splits it over
turns), and division by the standard deviation (that is `GRPO(std="batch")`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.types import Group


@dataclass(frozen=True)
class Reinforce(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s.

    Attributes:
        baseline: "batch", the mean reward of this update (a sample's own reward is in it, which shrinks the gradient by
            1 / n and changes nothing else); "running", an exponential mean of the earlier updates' means, this one's
            own where there is none before; "none".
        decay: of the running mean.
    """

    clip_low: float | None = None
    clip_high: float | None = None
    baseline: Literal["batch", "running", "none"] = "batch"
    decay: float = 0.9
    _state: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        if self.baseline not in ("batch", "running", "none"):
            raise UserError(f'Reinforce: baseline="{self.baseline}" is unknown; choose batch, running or none.')
        if not 0 <= self.decay < 1:
            raise UserError(f"Reinforce: decay={self.decay} must be in [0, 1).")

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Reward less baseline, for every trainable turn."""
        rewards = np.asarray([t.reward for group in groups for t in group.valid], dtype=np.float64)
        if not len(rewards):
            return
        mean = float(rewards.mean())
        baseline = {"none": 0.0, "batch": mean, "running": self._state.get("mean", mean)}[self.baseline]
        for group in groups:
            for trajectory in group.valid:
                trajectory.assign(trajectory.reward - baseline)
        before = self._state.get("mean", mean)
        self._state["mean"] = self.decay * before + (1 - self.decay) * mean

    def state_dict(self) -> dict[str, Any]:
        """The running mean."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._state.clear()
        self._state.update(state)
