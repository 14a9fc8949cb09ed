"""Ratios and the critic's loss, as pure functions of tensors; no algorithm, no averaging, no reduction.

Every tensor is [B, T], aligned with tokens; log-probabilities are natural. What is made of a ratio stands in `trust`,
the KL to a reference in `kl`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rlready.policy.base import Batch
from rlready.types import FloatArray, IntArray, Row

# exp(20) = 5e8 is beyond any use of a ratio, and its square still fits float32. Further out the gradient is 0.
LOG_RATIO_BOUND = 20.0


def log_ratio(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """log(pi / pi_old) of each token, 0 where `mask` is False, bounded to +-20."""
    return torch.where(mask, new - old, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def interpolated(log_r: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ratio against a policy between the sampler's and the present one, which takes no forward pass.

        log pi_prox = log mu + a (log pi - log mu)          (AReaL, arXiv 2505.24298 and its decoupled loss since)

    Args:
        log_r: log(pi / mu).
        share: a, see `share_of`.

    Returns:
        (log(pi / pi_prox), log(pi_prox / mu)); pi_prox is held constant in both.
    """
    behind = share * log_r.detach()
    return log_r - behind, behind


def share_of(version: IntArray, start: int, now: int) -> FloatArray:
    """The share a = (v_start - v_mu) / (v_now - v_mu) of each token; 0 for the present version and for context (-1).

    Args:
        version: the policy version that sampled each token.
        start: version of the policy at the start of the update.
        now: version of the policy that is being trained.
    """
    gap = np.maximum(now - version, 1)
    share = np.clip((start - version) / gap, 0.0, 1.0)
    return np.where(version < 0, 0.0, share).astype(np.float32)


def owners(rows: Sequence[Row]) -> torch.Tensor | None:
    """For each row the number of its trajectory within the micro-batch, [B]; None where each has one row."""
    known: dict[object, int] = {}
    index = [
        known.setdefault(row.trajectory if row.trajectory >= 0 else ("alone", i), len(known))
        for i, row in enumerate(rows)
    ]
    return None if len(known) == len(rows) else torch.tensor(index)


def trajectory_mean(values: torch.Tensor, mask: torch.Tensor, owner: torch.Tensor | None) -> torch.Tensor:
    """Mean over the trained tokens of each row's trajectory, [B, 1]; `values` are 0 where `mask` is False."""
    sums, counts = values.sum(1), mask.sum(1).to(values.dtype)
    if owner is not None:
        n = int(owner.max()) + 1
        sums = sums.new_zeros(n).index_add(0, owner, sums)[owner]
        counts = counts.new_zeros(n).index_add(0, owner, counts)[owner]
    return (sums / counts.clamp(min=1))[:, None]


def over_trajectory(each: torch.Tensor, mask: torch.Tensor, owner: torch.Tensor | None) -> torch.Tensor:
    """Every token carries its trajectory's mean: the log of a geometric mean. 0 where `mask` is False.

    For log-ratios this is the length-normalised ratio of GSPO (arXiv 2507.18071, eq. 7). Its gradient is that of
    GSPO-token (eq. 13-14), the value of the mean with each token's own gradient: the same as GSPO's where a trajectory
    has one advantage, and still right where it has several.
    """
    mean = trajectory_mean(each.detach(), mask, owner)
    return torch.where(mask, mean + each - each.detach(), 0.0)


def column(batch: Batch, take: Callable[[Row], FloatArray]) -> torch.Tensor:
    """A column of the rows that a learner does not pad itself, [B, T], 0 beyond each row's end."""
    out = np.zeros(tuple(batch.logprobs.shape), dtype=np.float32)
    for i, row in enumerate(batch.rows):
        out[i, : len(row)] = take(row)
    return torch.from_numpy(out).to(batch.logprobs.device, batch.logprobs.dtype)


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, old: torch.Tensor | None, clip: float | None
) -> torch.Tensor:
    """Squared error of the critic, optionally with its change since sampling clipped.

    L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)   (OpenAI baselines' ppo2; PPO's own eq. 9 has no clip)
    """
    error = (values - returns).square()
    if clip is None or old is None:
        return error
    bounded = old + (values - old).clamp(-clip, clip)
    return torch.maximum(error, (bounded - returns).square())
