"""PPO as the paper runs it as a baseline: the critic is a network of its own, with the policy's backbone.

The house's PPO (`algorithms.ppo`) has one body with two heads. On this task such a critic explains nothing of the
returns while it pulls at the policy's body, which would make a straw man of PPO. Here the critic starts as a copy of
the SFT policy with a linear head, and has an optimizer and a learning rate of its own. All else is PPO's: values before
the update, generalised advantage estimation, advantages normalised over the update, value clip.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from rlready.algorithms.base import Algorithm, only_valid
from rlready.algorithms.gae import assign_gae
from rlready.algorithms.policy_gradient import PolicyGradient, Trust
from rlready.algorithms.ppo import critic_loss, estimate_values, explained, normalize
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Batch, Outputs, Policy, SamplingParams, require_learner
from rlready.rollout.compile import compile_groups
from rlready.tasks.base import TaskSet
from rlready.types import Group


@dataclass(frozen=True)
class ValueFit(Algorithm):
    """Squared error of the values against the returns, with PPO's value clip.

    Attributes:
        value_clip: how far a value may move from what it was before the update; None for any.
    """

    value_clip: float | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """The one stream, "value"."""
        return ("value",)

    @property
    def needs_values(self) -> bool:
        """Always."""
        return True

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """Half the squared error."""
        return {"value": 0.5 * critic_loss(outputs, batch, self.value_clip)}


@dataclass(frozen=True)
class CriticPPO(PolicyGradient):
    """PPO with a critic apart. Give it one with `with_critic` before training.

    Attributes:
        lam: GAE's lambda; gamma is 1.
        value_clip: see `ValueFit`.
        critic_epochs: passes of the critic over an update's answers; None: `epochs`; 0: it stays as it is, to measure.
    """

    paper: ClassVar[str] = "1707.06347; 2410.01679"
    when: ClassVar[str] = "a critic's body should not be the policy's"
    assigns: ClassVar[str] = "GAE of a critic apart"

    epochs: int = 2
    trust: Trust = "clip"
    lam: float = 1.0
    value_clip: float | None = 0.2
    critic_epochs: int | None = None

    reads_advantage: ClassVar[bool] = False
    _critic: ClassVar[Policy | None] = None

    @property
    def max_lag(self) -> int:
        """1, as for PPO."""
        return 1

    @property
    def critic(self) -> Policy:
        """The critic.

        Raises:
            UserError: there is none yet.
        """
        if self._critic is None:
            raise UserError("CriticPPO has no critic: call with_critic(critic) first.")
        return self._critic

    def with_critic(self, critic: Policy) -> CriticPPO:
        """A copy that learns with this critic, in place."""
        out = copy.copy(self)
        object.__setattr__(out, "_critic", critic)
        return out

    def bind(self, tasks: TaskSet, env: EnvFactory, params: SamplingParams | None = None) -> CriticPPO:
        """A copy for one training, with the same critic."""
        bound = replace(self)
        return bound if self._critic is None else bound.with_critic(self._critic)

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """The critic's values, then advantages and returns, then normalisation."""
        estimate_values(self.critic, groups)
        trajectories = [t for group in groups for t in group.valid]
        for trajectory in trajectories:
            assign_gae(trajectory, 1.0, self.lam, reward=self.reward(trajectory))
        normalize([turn for t in trajectories for turn in t.turns if turn.trainable and turn.length])

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """The policy learns from the advantages, then the critic from the returns."""
        metrics = await super().update(policy, groups)
        rows = compile_groups(only_valid(groups), streams=("value",))
        passes = self.epochs if self.critic_epochs is None else self.critic_epochs
        if passes and rows:
            fit = ValueFit(
                epochs=passes, minibatches=self.minibatches, seed=self.seed, value_clip=self.value_clip
            )  # fmt: skip
            metrics["value/loss"] = fit.fit(self.critic, rows)["loss/value"]
        return metrics | explained(rows)

    def state_dict(self) -> dict[str, Any]:
        """The critic's learner beside what the rules remember."""
        return super().state_dict() | {"critic": require_learner(self.critic).state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        require_learner(self.critic).load_state_dict(state["critic"])
        super().load_state_dict({name: value for name, value in state.items() if name != "critic"})
