"""The KL to a frozen reference: estimates, losses, and the cost of a token in the reward.

With d = log pi - log reference of a token drawn from pi, after J. Schulman, "Approximating KL divergence" (2020):

    k1 = d                      unbiased, noisy, may be negative
    k2 = d^2 / 2                biased, low variance
    k3 = exp(-d) - 1 + d        unbiased, never negative

**As a loss, "exact".** Tokens are drawn from the sampler mu, and KL is an expectation under pi, so differentiating the
estimate alone forgets that pi also chose the sample. The importance ratio r = pi / mu brings the missing score term:
grad (r k) = r (k grad log pi + grad k), which is sample by sample

    k1:  r (d + 1) grad log pi        k3:  r d grad log pi        k2, with r held constant:  r d grad log pi

and E_mu[r d grad log pi] = grad KL(pi || reference), since E_pi[grad log pi] = 0: the three differ in their value and
in variance, not in what they pull towards. (DeepSeek-V3.2, arXiv 2512.02556, corrects k3 in the same way; 2512.21852
finds the unbiased forms better in and out of domain.) This is the gradient of the KL *at the contexts that were
sampled*: what a token does to later contexts is not in it.

**As a loss, "naive".** The estimate is differentiated alone, as published for GRPO (arXiv 2402.03300, eq. 4) and
VinePPO. On policy that pulls towards something else (2510.01555):

    k1:  E[grad k1] = 0, no pull at all       k2:  grad KL(pi || reference), right       k3:  grad KL(reference || pi)

**In the reward.** k1 is a cost of its token, and a token answers for its own and all later costs: A_t - beta sum_{s>=t}
k1_s. That is the gradient of the KL of whole answers, with a token's effect on later contexts in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from rlready.algorithms.gae import followers
from rlready.algorithms.streams import LOG_RATIO_BOUND
from rlready.policy.base import Policy, require_learner
from rlready.rollout.compile import compile_groups
from rlready.types import Group, Trajectory

Estimator = Literal["k1", "k2", "k3"]
Place = Literal["loss", "reward"]
Gradient = Literal["exact", "naive"]


def kl_value(new: torch.Tensor, reference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """One-sample estimates of KL(pi || reference) for a token drawn from pi, see the module."""
    d = new - reference
    if estimator == "k1":
        return d
    return d.square() / 2 if estimator == "k2" else torch.expm1((-d).clamp(max=LOG_RATIO_BOUND)) + d


def kl_loss(
    new: torch.Tensor,
    reference: torch.Tensor,
    log_r: torch.Tensor,
    estimator: Estimator,
    gradient: Gradient = "exact",
    clamp: float | None = None,
) -> torch.Tensor:
    """A loss whose value estimates KL(pi || reference) and whose gradient is that of the KL, or the naive one.

    Args:
        new: log pi.
        reference: log-probs of the reference.
        log_r: log(pi / mu) of each token, mu being what it was drawn from.
        estimator: see the module.
        gradient: likewise.
        clamp: bound on the estimate's size; beyond it a naive gradient is 0, and an exact one has its score term alone.
            VinePPO has 10 (arXiv 2410.01679).
    """
    k = kl_value(new, reference, estimator)
    if clamp is not None:
        k = k.clamp(-clamp, clamp)
    if gradient == "naive":
        return k
    ratio = log_r.exp()
    return (ratio.detach() if estimator == "k2" else ratio) * k


def charge(policy: Policy, groups: Sequence[Group], coefficient: float) -> dict[str, float]:
    """Write `Turn.costs` = coefficient x (log mu - log reference) of every trained token; one pass of the reference.

    Args:
        policy: its learner holds a reference.
        groups: with the sampler's log-probs.
        coefficient: beta, in units of reward per nat.

    Returns:
        `kl/reference`: the mean of log mu - log reference over trained tokens, nats.

    Raises:
        UserError: there is no reference.
    """
    rows = compile_groups(groups, streams=("nll",))
    trajectories = [t for group in groups for t in group.trajectories]
    total, count = 0.0, 0
    for row, reference in zip(rows, require_learner(policy).logprobs(rows, which="reference"), strict=True):
        assert row.turn is not None
        k1 = row.logprobs.astype(np.float64) - reference
        trained = row.weights["nll"] > 0
        for i in np.unique(row.turn[trained]):
            trajectories[row.trajectory].turns[i].costs = [coefficient * float(v) for v in k1[row.turn == i]]
        total += float(k1[trained].sum())
        count += int(trained.sum())
    return {"kl/reference": total / count} if count else {}


def costs_to_go(trajectory: Trajectory) -> dict[int, list[float]]:
    """For every trained turn, by index, the costs from each of its tokens on, [length] each.

    What follows a turn is what `gae.followers` says; where several turns follow one, the mean over them.
    """
    turns = trajectory.turns
    follow = followers(turns)
    out: dict[int, list[float]] = {}
    for i in sorted(follow, reverse=True):
        after = float(np.mean([out[j][0] for j in follow[i]])) if follow[i] else 0.0
        costs = np.asarray(turns[i].costs or [0.0] * turns[i].length, dtype=np.float64)
        out[i] = [float(c) + after for c in costs[::-1].cumsum()[::-1]]
    return out


def deduct(groups: Sequence[Group]) -> None:
    """Take the costs to go off the advantages of every trained turn, which are then one per token."""
    for trajectory in (t for group in groups for t in group.trajectories):
        for i, costs in costs_to_go(trajectory).items():
            turn = trajectory.turns[i]
            given = turn.advantage
            if given is not None:
                each = given if isinstance(given, list) else [float(given)] * turn.length
                turn.advantage = [a - c for a, c in zip(each, costs, strict=True)]
