"""What the policy's loss makes of a ratio: trust regions, as pure functions of tensors [B, T].

    none        -r A
    clip        -min(r A, clip(r, 1 - low, 1 + high) A)                     PPO, arXiv 1707.06347, eq. 7
    cispo       -sg(min(r, c)) A log pi                                     arXiv 2506.13585; c = 5 in 2510.13786
    sapo        -(4 / tau) sigmoid(tau (r - 1)) A                           arXiv 2511.20347
    tv          -r A, but 0 where A > 0 and pi - mu > delta, or A < 0 and pi - mu < -delta      arXiv 2602.04879
    geometric   -A exp(mean of s), s = log r clipped on the side where that lowers the objective     arXiv 2507.20673

At r = 1 all have the gradient -A grad log pi. All are positively homogeneous in A: weighting A weights the loss. Each
function returns the loss and, for the metric `clip/fraction`, the share of the gradient that was taken away, 0 to 1.
"""

from __future__ import annotations

import torch

from rlready.algorithms.streams import over_trajectory

Pair = tuple[torch.Tensor, torch.Tensor]


def surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float | None, high: float | None, dual: float | None
) -> Pair:
    """PPO's clipped objective, negated.

        L = -min(r A, clip(r, 1 - low, 1 + high) A)             PPO, arXiv 1707.06347, eq. 7 (one epsilon there)
        L = -max(min(...), c A)  where A < 0                    dual clip, arXiv 1912.09729

    Args:
        ratio: r.
        advantage: A.
        low: width of the lower bound; None leaves that side open.
        high: width of the upper bound ("clip-higher" of DAPO, arXiv 2503.14476, where it is above `low`).
        dual: c > 1, or None.
    """
    bounded = ratio.clamp(-torch.inf if low is None else 1 - low, torch.inf if high is None else 1 + high)
    plain = ratio * advantage
    objective = torch.minimum(plain, bounded * advantage)
    if dual is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    return -objective, (objective.detach() != plain.detach()).to(plain.dtype)


def cispo(ratio: torch.Tensor, advantage: torch.Tensor, new: torch.Tensor, cap: float) -> Pair:
    """Every token keeps a gradient; only its importance weight is capped, and `cap` is the weight's own bound."""
    weight = ratio.detach().clamp(max=cap)
    return -weight * advantage * new, 1 - weight / ratio.detach().clamp(min=1e-12)


def sapo(ratio: torch.Tensor, advantage: torch.Tensor, tau_high: float, tau_low: float) -> Pair:
    """A soft gate instead of a clip; `tau_low`, for bad tokens, is the steeper one in the paper."""
    tau = torch.where(advantage > 0, tau_high, tau_low).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1))
    slope = 4 * gate.detach() * (1 - gate.detach())
    return -4 / tau * gate * advantage, 1 - slope


def tv(ratio: torch.Tensor, advantage: torch.Tensor, new: torch.Tensor, old: torch.Tensor, delta: float) -> Pair:
    """DPPO's mask in total variation: a token is dropped once its *probability* moved too far in its own direction.

    Args:
        ratio: pi / mu.
        advantage: A.
        new: log pi.
        old: log mu, the sampler's.
        delta: most change of probability; 0.2 in prime-rl.
    """
    moved = new.detach().exp() - old.exp()
    drop = ((advantage > 0) & (moved > delta)) | ((advantage < 0) & (moved < -delta))
    return torch.where(drop, 0.0, -ratio * advantage), drop.to(ratio.dtype)


def geometric(
    log_r: torch.Tensor,
    advantage: torch.Tensor,
    low: float | None,
    high: float | None,
    mask: torch.Tensor,
    owner: torch.Tensor | None,
) -> Pair:
    """GMPO: the geometric mean, over a trajectory's tokens, of ratios that are clipped token by token in log space.

    Every token carries the trajectory's value and its own gradient, see `streams.over_trajectory`. Where the advantage
    is positive only the upper bound can bite, where it is negative only the lower one.

    Args:
        log_r: log-ratio of each token.
        advantage: A; its sign is one per token, as it may differ within a trajectory.
        low: clip of log r below, 0.4 in the paper; None leaves that side open.
        high: clip above.
        mask: trained tokens.
        owner: see `streams.owners`.
    """
    upper = log_r if high is None else log_r.clamp(max=high)
    lower = log_r if low is None else log_r.clamp(min=-low)
    clipped = torch.where(advantage > 0, upper, torch.where(advantage < 0, lower, log_r))
    value = over_trajectory(clipped, mask, owner).exp()
    return -value * advantage, (clipped.detach() != log_r.detach()).to(value.dtype)
