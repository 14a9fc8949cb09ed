"""Corrections for tokens that another policy sampled than the one that an update starts from.

The sampler may be stale, or another engine with other rounding. With w = pi_start / mu of a token:

    truncate    weight min(w, high), 2                                     verl; Yao et al. 2025
    icepop      0 for tokens whose w is outside [low, high], [0.5, 5]      arXiv 2510.18855; bounds of NeMo-RL
    sequence    0 for trajectories whose product of w is above high, 3     TRL
    geometric   0 for trajectories whose geometric mean of w is outside [low, high], [0.99, 1.01]        SkyRL
    veto        besides: 0 for trajectories with any w below it, 1e-4      slime

Token weights are biased and of low variance; the product over a trajectory is unbiased, and its variance grows with the
length; the geometric mean does not depend on the length, so that its band stays right for all.

**Masks and weights.** A ratio pi / mu holds w already: there the rules only mask. Where the ratio is pi / pi_start,
what the rule keeps is also weighted, by the token's w ("truncate", "icepop") or by the product ("sequence"), as
published; "geometric" masks only (SkyRL), a bias that its band bounds.

A masked token keeps its place in the denominators.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlready.algorithms.streams import LOG_RATIO_BOUND

Mismatch = Literal["none", "truncate", "icepop", "sequence", "geometric"]
Doubles = NDArray[np.float64]

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "truncate": (None, 2.0),
    "icepop": (0.5, 5.0),
    "sequence": (None, 3.0),
    "geometric": (0.99, 1.01),
}
"""Default (low, high) of each rule; None: it has no such bound."""


def bounds(rule: Mismatch, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The bounds of a rule, its defaults where none are given."""
    if rule == "none":
        return None, None
    default = BOUNDS[rule]
    return default[0] if low is None else low, default[1] if high is None else high


def factors(
    gaps: Doubles, rule: Mismatch, low: float | None, high: float | None, *, veto: float | None, weigh: bool
) -> Doubles:
    """What the advantages of one trajectory's trained tokens are multiplied by, [n]; 0 masks.

    Args:
        gaps: log w of each, [n].
        rule: see the module.
        low: least w (or mean w) that is kept; None for the rule's own bound.
        high: largest w, or product, or cap; likewise.
        veto: least w of any token; None for no veto.
        weigh: whether what is kept is weighted, because the ratio does not hold w.
    """
    low, high = bounds(rule, low, high)
    gaps = np.clip(gaps, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    w = np.exp(gaps)
    out = np.ones_like(w)
    if rule == "truncate":
        out = np.minimum(w, np.inf if high is None else high)
    elif rule == "icepop":
        inside = (w >= (low or 0.0)) & (w <= (np.inf if high is None else high))
        out = np.where(inside, w if weigh else 1.0, 0.0)
    elif rule == "sequence" and high is not None:
        total = float(gaps.sum())
        out = np.full_like(w, (np.exp(total) if weigh else 1.0) if total <= np.log(high) else 0.0)
    elif rule == "geometric" and len(w):
        mean = float(np.exp(gaps.mean()))
        out = np.full_like(w, float((low or 0.0) <= mean <= (np.inf if high is None else high)))
    if veto is not None and len(w) and w.min() < veto:
        out = np.zeros_like(w)
    return out
