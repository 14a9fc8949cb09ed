"""Faults of credit, masks and losses, in an algorithm that is otherwise right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlready.algorithms.base import Algorithm
from rlready.doctor import Setup
from rlready.policy.base import Batch, Loss, Outputs, Policy
from rlready.types import Group, Row
from tests.doctor.faults.healthy import chat, guess
from tests.doctor.faults.registry import fault


@dataclass(frozen=True)
class Right(Algorithm):
    """Reward less the group's mean, importance-weighted, with an exact KL gradient: nothing is wrong here."""

    kl: float = 0.0
    max_lag: int = 2

    @property
    def streams(self) -> tuple[str, ...]:
        return ("policy", "kl") if self.kl else ("policy",)

    @property
    def needs_reference(self) -> bool:
        return bool(self.kl)

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        for group in groups:
            mean = sum(t.reward for t in group.valid) / max(1, len(group.valid))
            for trajectory in group.valid:
                trajectory.assign(trajectory.reward - mean)

    def ratio(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        mask = batch.weights["policy"] > 0
        return torch.where(mask, outputs.logprobs - batch.logprobs, 0.0).exp()

    def penalty(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        mask = batch.weights["kl"] > 0
        new, reference = (torch.where(mask, x, 0.0) for x in (outputs.logprobs, outputs.reference))
        ratio = torch.where(mask, outputs.logprobs - batch.logprobs, 0.0).exp()
        return ratio * (new - reference)

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        advantage = torch.where(batch.weights["policy"] > 0, batch.advantage, 0.0)
        out = {"policy": -self.ratio(outputs, batch) * advantage}
        return out | {"kl": self.kl * self.penalty(outputs, batch)} if self.kl else out


# ---- masks


@fault("verl#2506", "The advantages are passed as the response mask", "mask values")
def advantages_as_mask() -> Setup:
    class Swapped(Right):
        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            return [
                replace(r, weights={"policy": r.advantage.copy()}, advantage=r.weights["policy"].copy()) for r in rows
            ], {}

    return guess(algorithm=Swapped())


@fault("Search-R1 PR#21", "Retrieved tokens are counted in the KL", "mask")
def replies_in_the_kl() -> Setup:
    class Retrieved(Right):
        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            out = []
            for row in rows:
                said = int(np.argmax(row.weights["kl"] > 0))
                everything = np.where(np.arange(len(row)) >= said, 1.0, 0.0).astype(np.float32)
                out.append(replace(row, weights={**row.weights, "kl": everything}))
            return out, {}

    return guess(algorithm=Retrieved(kl=0.1))


# ---- credit


@fault("SkyRL PR#1507", "All steps before the last get an advantage of 0", "last turn only")
def only_the_last_step() -> Setup:
    class Last(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            await super().credit(groups, policy)
            for trajectory in (t for group in groups for t in group):
                for turn in trajectory.turns[:-1]:
                    turn.advantage = 0.0

    return guess(algorithm=Last())


@fault("miles#2378", "Group mean and deviation count turns, not rollouts", "turns counted")
def turns_in_the_mean() -> Setup:
    class Turns(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            for group in groups:
                every = np.asarray([t.reward for t in group.valid for _ in t.turns])
                for trajectory in group.valid:
                    trajectory.assign(float((trajectory.reward - every.mean()) / (every.std() + 1e-4)))

    return guess(algorithm=Turns())


@fault("gem PR#113", "Advantages are normalised by group, and once more over the batch", "normalised twice")
def normalised_again() -> Setup:
    class Again(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            for group in groups:
                rewards = group.rewards
                for trajectory in group.valid:
                    trajectory.assign(float((trajectory.reward - rewards.mean()) / (rewards.std() + 1e-4)))

        def prepare(self, policy: Policy, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
            every = np.concatenate([r.advantage[r.weights["policy"] > 0] for r in rows])
            return [
                replace(r, advantage=((r.advantage - every.mean()) / (every.std() + 1e-4)).astype(np.float32))
                for r in rows
            ], {}

    return guess(algorithm=Again())


@fault("NeMo-RL PR#4158", "A leave-one-out deviation of 0 makes a lone success explode", "spikes")
def leave_one_out_deviation() -> Setup:
    class Spikes(Right):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            for group in groups:
                for i, trajectory in enumerate(group.valid):
                    others = np.delete(group.rewards, i)
                    trajectory.assign(float((trajectory.reward - others.mean()) / (others.std() + 1e-6)))

    return chat(algorithm=Spikes())


@fault("OpenRLHF PR#1250", "Groups of one: every advantage is 0", "groups of one")
def one_sample_per_prompt() -> Setup:
    return chat(algorithm=Right(), group_size=1, groups=16)


# ---- losses


@fault("OpenRLHF PR#1240", "One NaN under the mask poisons the loss", "masked nan")
def nan_times_zero() -> Setup:
    class Multiplies(Right):
        def loss(self, outputs: Outputs, batch: Batch) -> Loss:
            weight = batch.weights["policy"]
            each = -(outputs.logprobs - batch.logprobs).exp() * batch.advantage
            return Loss((each * weight).sum() / batch.denominators["policy"])

    return chat(algorithm=Multiplies())


@fault("trl#3021", "Gradient accumulation changes the result", "accumulation")
def mean_of_each_micro_batch() -> Setup:
    class Local(Right):
        def loss(self, outputs: Outputs, batch: Batch) -> Loss:
            weight = batch.weights["policy"]
            each = self.terms(outputs, batch)["policy"]
            return Loss((each * weight).sum() / weight.sum().clamp(min=1))

    return chat(algorithm=Local())


@fault("verl PR#6957", "The denominator is taken per micro-batch, of sequences", "accumulation")
def mean_of_sequences_here() -> Setup:
    class Sequences(Right):
        def loss(self, outputs: Outputs, batch: Batch) -> Loss:
            weight = batch.weights["policy"]
            each = (self.terms(outputs, batch)["policy"] * weight).sum(1) / weight.sum(1).clamp(min=1)
            return Loss(each.mean())

    return guess(algorithm=Sequences())


@fault("AReaL PR#1346", "The mean of a sequence counts its padding", "padding")
def padding_in_the_mean() -> Setup:
    class Padded(Right):
        def ratio(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
            mask = batch.weights["policy"] > 0
            each = torch.where(mask, outputs.logprobs - batch.logprobs, 0.0)
            return each.mean(1, keepdim=True).exp().expand_as(each)

    return guess(algorithm=Padded())


@fault("trl#5814", "The sequence ratio is summed over the tokens, not averaged", "sequence ratio")
def summed_ratio() -> Setup:
    class Summed(Right):
        def ratio(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
            mask = batch.weights["policy"] > 0
            each = torch.where(mask, outputs.logprobs - batch.logprobs, 0.0)
            total = each.detach().sum(1, keepdim=True)
            return torch.where(mask, (total + each - each.detach()).exp(), 0.0)

    return guess(algorithm=Summed())


@fault("RAGEN#58", "The KL term has the wrong sign", "KL sign")
def kl_with_a_minus() -> Setup:
    class Minus(Right):
        def penalty(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
            return -super().penalty(outputs, batch)

    return chat(algorithm=Minus(kl=0.05))


@fault("NeMo-RL PR#2506", "The KL's gradient lacks its score term", "KL gradient")
def kl_without_its_score() -> Setup:
    class Naive(Right):
        def penalty(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
            mask = batch.weights["kl"] > 0
            new, reference = (torch.where(mask, x, 0.0) for x in (outputs.logprobs, outputs.reference))
            return torch.exp(reference - new) - 1 - (reference - new)

    return chat(algorithm=Naive(kl=0.05))


@fault("SkyRL PR#1353", "The KL is computed without gradients", "KL ignored")
def kl_under_no_grad() -> Setup:
    class Still(Right):
        def penalty(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
            with torch.no_grad():
                return super().penalty(outputs, batch)

    return chat(algorithm=Still(kl=0.05))


@fault("slime PR#399", "The KL coefficient is ignored", "KL ignored")
def coefficient_ignored() -> Setup:
    class Ignored(Right):
        @property
        def streams(self) -> tuple[str, ...]:
            return ("policy",)

        @property
        def needs_reference(self) -> bool:
            return False

        def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
            advantage = torch.where(batch.weights["policy"] > 0, batch.advantage, 0.0)
            return {"policy": -self.ratio(outputs, batch) * advantage}

    return chat(algorithm=Ignored(kl=0.05))
