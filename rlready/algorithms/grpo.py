"""GRPO: a trajectory's reward against its group.

    A_i = (r_i - mean(r)) / std(r)        (Shao et al., arXiv 2402.03300, sec. 4.1.2), one value for all tokens of i

Averaged, as there, over trajectories of the mean over tokens. Dr. GRPO (arXiv 2503.20783) is `GRPO(std="none",
average="constant", constant=<length cap>)`; DAPO's loss (arXiv 2503.14476) is `GRPO(average="token", clip_high=0.28)`;
GSPO (arXiv 2507.18071) is `GRPO(importance="sequence", clip_low=3e-4, clip_high=4e-4)`.

The deviation is the population's (divided by n), which bounds what a lone success can earn: |A| <= sqrt(n - 1). Two
spikes are closed. A group without variance gets exactly 0, not rounding noise over epsilon. A group whose rewards
differ by next to nothing (the jitter of a float reward) is divided by `std_floor` and not by its own tiny deviation, so
noise is not blown up to unit advantages.

Left out, and why: the paper's KL term is off by default (`kl=0`), as verifiable rewards do not need it; its own value
is .04. Dropping groups without variance is the curriculum's gate; here they cost nothing anyway (see
`policy_gradient`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlready.algorithms.base import Average
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.types import Group


@dataclass(frozen=True)
class GRPO(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s.

    Attributes:
        std: divide by the "group"'s deviation, by that of the whole "batch" of centred rewards (as Lite PPO,
            arXiv 2508.08221: a group's difficulty then does not weigh it), or by "none".
        std_floor: the least divisor, in units of reward. A number of ours.
    """

    average: Average = "trajectory"
    std: Literal["group", "batch", "none"] = "group"
    std_floor: float = 1e-3

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        if self.std not in ("group", "batch", "none"):
            raise UserError(f'GRPO: std="{self.std}" is unknown; choose group, batch or none.')
        if self.std_floor <= 0:
            raise UserError(f"GRPO: std_floor={self.std_floor} must be positive.")

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Centre by group and divide."""
        centred = [centre([t.reward for t in group.valid]) for group in groups]
        batch = float(np.concatenate([np.zeros(0), *centred]).std()) if any(len(c) for c in centred) else 0.0
        for group, gaps in zip(groups, centred, strict=True):
            divisor = {"none": 1.0, "batch": batch, "group": float(gaps.std()) if len(gaps) else 0.0}[self.std]
            for trajectory, gap in zip(group.valid, gaps, strict=True):
                trajectory.assign(float(gap) / max(divisor, self.std_floor))


def centre(rewards: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Rewards less their mean, [n]; exactly 0 where they are all equal."""
    r = np.asarray(rewards, dtype=np.float64)
    return np.zeros_like(r) if not len(r) or r.max() == r.min() else r - r.mean()
