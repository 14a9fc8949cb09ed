"""GDPO: several rewards, each normalised on its own before they are summed (arXiv 2601.05242).

    A_i = sum_k w_k (r_ik - mean_k) / std_k        over the group, for each reward k
    A_i <- (A_i - mean) / std                      over all trajectories of the update

Normalising the *sum* of the rewards instead lets different combinations fall together: with rewards (1, 0) and (0, 1),
or one that varies a hundred times as much as another, the group sees only their total. Here each reward speaks with its
weight, whatever its scale. The batch norm keeps the size of the advantages from growing with the number of rewards.

Statistics count rollouts, never turns. Deviations are the population's; a reward that does not differ in a group adds
exactly 0, and one that hardly differs is divided by `std_floor`.

Left out, and why: the paper's conditioned rewards (one pays only where another is met). That is a matter of the reward,
and `rewards.combine` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rlready.algorithms.credit import Doubles
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.types import Group, Trajectory

WHOLE = "reward"
"""The name under which `Trajectory.reward` itself can be one of the rewards."""


@dataclass(frozen=True)
class GDPO(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s; `advantage` is not read.

    Attributes:
        rewards: weight by name; names are those of `Trajectory.scores`, or "reward" for `Trajectory.reward`.
        missing: what a trajectory without a named score has of it; None makes that an error.
    """

    paper: ClassVar[str] = "2601.05242"
    when: ClassVar[str] = "several rewards of different scales"
    assigns: ClassVar[str] = "each reward (r - m) / s, summed, batch-normed"

    rewards: Mapping[str, float] = field(default_factory=lambda: {WHOLE: 1.0})
    missing: float | None = None

    reads_advantage: ClassVar[bool] = False
    credit_reads: ClassVar[tuple[str, ...]] = ("std_floor",)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        if not self.rewards:
            raise UserError("GDPO: rewards is empty; name the scores that are learnt from, each with its weight.")

    @property
    def least_group(self) -> int:
        """2: every reward is compared within its group."""
        return 2

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """Normalise each reward by group, sum, normalise over the update."""
        sums: list[Doubles] = []
        for group in groups:
            total: Doubles = np.zeros(len(group.valid))
            for name, weight in self.rewards.items():
                r: Doubles = np.asarray([self.part(t, name) for t in group.valid], dtype=np.float64)
                if len(r) and r.max() > r.min():
                    total = total + weight * (r - r.mean()) / max(float(r.std()), self.std_floor)
            sums.append(total)
        every = np.concatenate([np.zeros(0), *sums])
        mean, std = (float(every.mean()), float(every.std())) if len(every) else (0.0, 0.0)
        for group, total in zip(groups, sums, strict=True):
            for trajectory, value in zip(group.valid, total, strict=True):
                trajectory.assign((value - mean) / max(std, self.std_floor))

    def part(self, trajectory: Trajectory, name: str) -> float:
        """One reward of a trajectory; where `truncated` is "zero", a cut-off one earns at most 0.

        Raises:
            UserError: the trajectory has no score of that name, and `missing` is None.
        """
        if name == WHOLE:
            return self.reward(trajectory)
        value = trajectory.scores.get(name, self.missing)
        if value is None:
            has = ", ".join([WHOLE, *sorted(trajectory.scores)])
            raise UserError(
                f'GDPO: a trajectory of task {trajectory.task.id} has no score "{name}", only {has}. '
                "Let the grader give it as a part of every score, or set missing."
            )
        return min(float(value), 0.0) if self.truncated == "zero" and trajectory.cut_off else float(value)
