"""Credit for single turns from states that several rollouts of a group meet (GiGPO, arXiv 2505.10978; RTMC).

    A(turn) = A(trajectory) + omega A_step(turn)

    A_step = R - mean of R over the turns of the group that face the same state          step="return", GiGPO
    A_step = Q(s, a) - V(s): the mean R after the same state and action, less that       step="action", RTMC's idea
             after the state                                                             (arXiv 2604.11037)

with R the discounted return from the turn,  R_t = r_t + gamma R_next.  A state that several rollouts meet is a small
group of its own: the same question, answered differently, so that what the episodes' luck before had in common drops
out. No critic and no further sampling is needed; where no two rollouts ever meet, it is the trajectory's advantage
alone.

**What a state is.** By default the newest words of the environment (`Turn.context` after the last assistant message);
right where the environment says all there is to know. "prompt" asks for the same whole context, token by token; what
went before then is the same, too. A world that needs another rule overrides `key`.

**Counting.** Statistics count rollouts, never turns: a rollout that walks in circles meets one state many times, and
its visits are averaged before rollouts are. A state that one rollout alone has met gives no step advantage.

Left out, and why: similarity of states instead of equality (a threshold that every world would tune).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from rlready.algorithms.credit import WITHIN
from rlready.algorithms.gae import followers
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.types import Group, Trajectory

Visits = dict[int, list[tuple[int, float]]]
"""By rollout, the turns that faced a state, each with its return."""


@dataclass(frozen=True)
class GiGPO(PolicyGradient):
    """Attributes beyond `PolicyGradient`'s, whose `advantage` is the trajectory's part.

    Attributes:
        omega: weight of the step advantage (1 in the paper).
        gamma: discount per turn (0.95 in the paper; from memory).
        state: "context", the environment's newest words, or "prompt", the whole context.
        step: "return" or "action", see the module.
        step_std: divide a step advantage by the deviation at its state (the paper's two variants; off here, since it
            weighs states by their luck as "std" does groups).
    """

    paper: ClassVar[str] = "2505.10978"
    when: ClassVar[str] = "agents that come through the same states again"
    assigns: ClassVar[str] = "r - m of the episode + the same at equal states"

    omega: float = 1.0
    gamma: float = 0.95
    state: Literal["context", "prompt"] = "context"
    step: Literal["return", "action"] = "return"
    step_std: bool = False
    _noted: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        super().__post_init__()
        name = type(self).__name__
        for key, values in {"state": ("context", "prompt"), "step": ("return", "action")}.items():
            if getattr(self, key) not in values:
                raise UserError(f'{name}: {key}="{getattr(self, key)}" is unknown; choose one of {", ".join(values)}.')
        if self.omega < 0 or not 0 <= self.gamma <= 1:
            raise UserError(f"{name}: omega={self.omega} must not be negative, and gamma={self.gamma} be in [0, 1].")
        floor = type(self).__dataclass_fields__["std_floor"].default
        if self.std_floor != floor and not self.step_std and self.advantage not in ("std", "batch_std", "ngrpo"):
            raise UserError(f"{name}: std_floor is read with step_std=True or a deviation; leave it at {floor!r}.")

    @property
    def least_group(self) -> int:
        """2 where the trajectory's part is over a group; without a group no state is met twice."""
        return 2 if self.advantage in WITHIN else 1

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """The trajectory's advantage, and the step's on top."""
        await super().credit(groups, policy)
        turns = shared = 0
        for group in groups:
            steps = self.steps(group)
            for trajectory, each in zip(group.valid, steps, strict=True):
                turns += sum(t.trainable and t.length > 0 for t in trajectory.turns)
                shared += len(each)
                for i, value in each.items():
                    turn = trajectory.turns[i]
                    given = turn.advantage
                    added = self.omega * value
                    turn.advantage = [a + added for a in given] if isinstance(given, list) else (given or 0.0) + added
        self._noted["states/shared"] = shared / turns if turns else 0.0

    def steps(self, group: Group) -> list[dict[int, float]]:
        """Step advantage by turn, for each valid trajectory; turns whose state no other rollout met are not in it."""
        valid = group.valid
        met: dict[Hashable, Visits] = defaultdict(dict)
        for k, trajectory in enumerate(valid):
            for i, value in turn_returns(trajectory, self.gamma, self.reward(trajectory)).items():
                key = self.key(trajectory, i)
                if key is not None:
                    met[key].setdefault(k, []).append((i, value))
        out: list[dict[int, float]] = [{} for _ in valid]
        for visits in met.values():
            if len(visits) < 2:
                continue
            mean, std = moments(visits)
            divisor = max(std, self.std_floor) if self.step_std else 1.0
            values = self._after_actions(valid, visits) if self.step == "action" else visits
            for k, each in values.items():
                for i, value in each:
                    out[k][i] = (value - mean) / divisor
        return out

    def key(self, trajectory: Trajectory, i: int) -> Hashable | None:
        """What two turns of a group must have in common to be compared; None for a turn that never is."""
        turn = trajectory.turns[i]
        if self.state == "prompt":
            return tuple(turn.prompt_ids)
        start = len(turn.context)
        while start and turn.context[start - 1].role != "assistant":
            start -= 1
        newest = [m.to_json() for m in turn.context[start:] if m.role != "system"]
        return json.dumps(newest, sort_keys=True) if newest else None

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """As `PolicyGradient`; also `states/shared`, the share of turns whose state another rollout met."""
        return await super().update(policy, groups) | self._noted

    @staticmethod
    def _after_actions(valid: Sequence[Trajectory], visits: Visits) -> Visits:
        """The visits, each with the mean return of the visits that took the same action."""
        said = {(k, i): tuple(valid[k].turns[i].completion_ids) for k, each in visits.items() for i, _ in each}
        by_action: dict[tuple[int, ...], Visits] = defaultdict(dict)
        for k, each in visits.items():
            for i, value in each:
                by_action[said[k, i]].setdefault(k, []).append((i, value))
        means = {action: moments(those)[0] for action, those in by_action.items()}
        return {k: [(i, means[said[k, i]]) for i, _ in each] for k, each in visits.items()}


def turn_returns(trajectory: Trajectory, gamma: float, reward: float) -> dict[int, float]:
    """Discounted return from each trained turn; what `reward` has beyond the turns' rewards is paid after the last.

    Where several turns follow one (a tree), the mean over them. See `gae` for which turn follows which.
    """
    turns = trajectory.turns
    follow = followers(turns)
    out: dict[int, float] = {}
    rest = reward - sum(turns[i].reward for i in follow)
    last = max(follow, default=-1)
    for i in sorted(follow, reverse=True):
        after = float(np.mean([out[j] for j in follow[i]])) if follow[i] else 0.0
        out[i] = turns[i].reward + (rest if i == last else 0.0) + gamma * after
    return dict(sorted(out.items()))


def moments(visits: Visits) -> tuple[float, float]:
    """Mean and population deviation of the returns, every rollout counting once however often it came by."""
    values = np.asarray([value for each in visits.values() for _, value in each], dtype=np.float64)
    if values.max() == values.min():  # exactly, so that rows without signal cost nothing
        return float(values[0]), 0.0
    weights = np.asarray([1 / (len(visits) * len(each)) for each in visits.values() for _ in each])
    mean = float(weights @ values)
    return mean, float(np.sqrt(weights @ (values - mean) ** 2))
