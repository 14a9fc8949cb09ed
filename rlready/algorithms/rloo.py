"""RLOO: each trajectory's baseline is the mean reward of the others in its group.

    A_i = r_i - (1 / (n - 1)) sum_{j != i} r_j  =  n / (n - 1) (r_i - mean)

(Kool et al. 2019; Ahmadian et al., arXiv 2402.14740). The baseline does not depend on the sample, so the gradient is
unbiased. The ratio is not clipped.

Left out, and why: division by a leave-one-out standard deviation. With binary rewards the others of a lone success have
deviation 0, and the quotient spikes. Use `GRPO`, whose deviation includes the sample and is bounded.

A group with fewer than two valid trajectories has no baseline; its advantage is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.policy.base import Policy
from rlready.types import Group


@dataclass(frozen=True)
class RLOO(PolicyGradient):
    """Fields are `PolicyGradient`'s, with the clip off."""

    clip_low: float | None = None
    clip_high: float | None = None

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Reward less the mean of the others."""
        for group in groups:
            valid = group.valid
            total = sum(t.reward for t in valid)
            for trajectory in valid:
                others = len(valid) - 1
                baseline = (total - trajectory.reward) / others if others else trajectory.reward
                trajectory.assign(trajectory.reward - baseline)
