"""From a micro-batch to the policy's loss of each token: ratio, corrections, trust region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlready.algorithms import trust
from rlready.algorithms.base import STEP, VERSION
from rlready.algorithms.mismatch import bounds
from rlready.algorithms.streams import (
    LOG_RATIO_BOUND,
    column,
    interpolated,
    log_ratio,
    over_trajectory,
    owners,
    share_of,
    trajectory_mean,
)
from rlready.policy.base import Batch, Outputs
from rlready.types import FloatArray, Row

if TYPE_CHECKING:
    from rlready.algorithms.policy_gradient import PolicyGradient


@dataclass(slots=True)
class Parts:
    """What a micro-batch's policy loss was made of, all [B, T].

    Attributes:
        mask: trained tokens.
        gap: log(pi / mu) of each token, bounded.
        ratio: the ratio that the trust region saw.
        loss: of each token.
        clipped: share of each token's gradient that was taken away.
        dropped: 1 where `opsm` dropped a token; None where it is off.
    """

    mask: torch.Tensor
    gap: torch.Tensor
    ratio: torch.Tensor
    loss: torch.Tensor
    clipped: torch.Tensor
    dropped: torch.Tensor | None


def assemble(rules: PolicyGradient, outputs: Outputs, batch: Batch) -> Parts:
    """The policy's loss under some rules.

    Columns are masked before the formulas: a nan outside the mask would turn a gradient of 0 into nan.
    """
    mask = batch.weights["policy"] > 0
    new = torch.where(mask, outputs.logprobs, 0.0)
    old = torch.where(mask, batch.logprobs, 0.0)
    advantage = torch.where(mask, batch.advantage, 0.0)
    owner = owners(batch.rows) if rules.couples else None
    gap = log_r = (new - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if rules.anchor == "start":
        log_r = log_ratio(new, torch.where(mask, column(batch, _start), 0.0), mask)
    elif rules.anchor == "interpolated":
        log_r, behind = interpolated(gap, column(batch, _shares(batch)))
        if rules.mismatch == "truncate":
            advantage = advantage * behind.exp().clamp(max=bounds("truncate", None, rules.mismatch_high)[1])
    dropped = None
    if rules.opsm is not None:
        late = (advantage < 0) & (-trajectory_mean(gap.detach(), mask, owner) > rules.opsm)
        advantage, dropped = torch.where(late, 0.0, advantage), late.to(gap.dtype)
    if rules.ratio == "sequence":
        log_r = over_trajectory(log_r, mask, owner)
    ratio = log_r.exp()
    if rules.ratio == "none":
        loss, clipped = -advantage * new, torch.zeros_like(gap)
    elif rules.ratio == "geometric":
        low, high = (rules.clip_low, rules.clip_high) if rules.trust == "clip" else (None, None)
        loss, clipped = trust.geometric(log_r, advantage, low, high, mask, owner)
    elif rules.trust == "clip":
        loss, clipped = trust.surrogate(ratio, advantage, rules.clip_low, rules.clip_high, rules.dual_clip)
    elif rules.trust == "cispo":
        loss, clipped = trust.cispo(ratio, advantage, new, rules.cap)
    elif rules.trust == "sapo":
        loss, clipped = trust.sapo(ratio, advantage, rules.tau_high, rules.tau_low)
    elif rules.trust == "tv":
        loss, clipped = trust.tv(ratio, advantage, new, old, rules.delta)
    else:
        loss, clipped = -ratio * advantage, torch.zeros_like(gap)
    return Parts(mask, gap, ratio, loss, clipped, dropped)


def _start(row: Row) -> FloatArray:
    assert row.start is not None, "prepare() asks the learner for the start's log-probs"
    return row.start


def _shares(batch: Batch) -> Callable[[Row], FloatArray]:
    """The shares a of each row's tokens, see `streams.share_of`."""
    for row in batch.rows:
        if row.version is None:
            raise ValueError('anchor="interpolated" needs Row.version, which rows compiled from turns have.')
    latest = max(int(row.version.max()) for row in batch.rows if row.version is not None)
    now = int(batch.denominators.get(VERSION, latest))
    start = now - int(batch.denominators.get(STEP, 0))

    def shares(row: Row) -> FloatArray:
        assert row.version is not None
        return share_of(row.version, start, now)

    return shares
