"""The formulas: means, detections, and how good probabilities are.

A number that cannot be computed (a mean over nothing, the AUROC of one class) is NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlready.dream.simulators.confidence import auroc, ece


def mean(values: Sequence[float]) -> float:
    """The mean; NaN over nothing."""
    return float(np.mean(values)) if len(values) else math.nan


@dataclass(frozen=True)
class Mean:
    """One figure averaged in both ways, so that nobody can pick the flattering one unnamed.

    Attributes:
        macro: mean over kinds of action, each kind counting the same.
        micro: mean over steps.
    """

    macro: float
    micro: float

    @classmethod
    def of(cls, by_kind: Mapping[str, Sequence[float]]) -> Mean:
        """From the values of every step, by kind of action."""
        filled = [v for v in by_kind.values() if len(v)]
        return cls(mean([mean(v) for v in filled]), mean([x for v in filled for x in v]))


@dataclass(frozen=True)
class Detection:
    """How well something rare is said: errors, ends.

    Attributes:
        recorded: how often it was so.
        said: how often it was said.
        both: how often rightly.
        precision: both / said.
        recall: both / recorded.
        accuracy: share of steps on which said and recorded agree.
    """

    recorded: int
    said: int
    both: int
    precision: float
    recall: float
    accuracy: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[bool, bool]]) -> Detection:
        """From (recorded, said) pairs."""
        recorded, said = sum(r for r, _ in pairs), sum(s for _, s in pairs)
        both = sum(r and s for r, s in pairs)
        return cls(
            recorded,
            said,
            both,
            both / said if said else math.nan,
            both / recorded if recorded else math.nan,
            mean([float(r == s) for r, s in pairs]),
        )


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table.

    Attributes:
        low, high: the probabilities in it.
        n: how many.
        said: mean probability.
        true: share that was true.
    """

    low: float
    high: float
    n: int
    said: float
    true: float


@dataclass(frozen=True)
class Probabilities:
    """How good stated probabilities are.

    Attributes:
        n: how many.
        base: share that was true.
        accuracy: share right when cut at one half.
        brier: mean squared error (Brier 1950); always saying `base` gives `base * (1 - base)`.
        ece: expected calibration error over equal-width bins (Naeini et al. 2015).
        auroc: probability that a true case got more than a false one; NaN where all were true, or none.
        bins: the reliability table, filled bins only.
    """

    n: int
    base: float
    accuracy: float
    brier: float
    ece: float
    auroc: float
    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, said: Sequence[float], true: Sequence[bool], *, bins: int = 10) -> Probabilities:
        """From probabilities and what was so."""
        p, y = np.asarray(said, dtype=float), np.asarray(true, dtype=float)
        n = len(p)
        if not n:
            return cls(0, *(math.nan,) * 5, bins=())
        which = np.minimum((p * bins).astype(int), bins - 1)
        rows = []
        for b in range(bins):
            inside = which == b
            if inside.any():
                rows.append(
                    Bin(b / bins, (b + 1) / bins, int(inside.sum()), float(p[inside].mean()), float(y[inside].mean()))
                )
        right = float(np.mean((p > 0.5) == (y > 0.5)))
        brier = float(np.mean((p - y) ** 2))
        return cls(n, float(y.mean()), right, brier, ece(said, true, bins), auroc(said, true), tuple(rows))


def ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Ranks from 1, ties sharing their mean rank."""
    _, which, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    out: np.ndarray[tuple[int], np.dtype[np.float64]] = (last - (counts - 1) / 2)[which].astype(np.float64)
    return out


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank; NaN for fewer than 3 pairs or where one side does not vary."""
    if len(a) < 3:
        return math.nan
    x, y = ranks(a), ranks(b)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else math.nan
