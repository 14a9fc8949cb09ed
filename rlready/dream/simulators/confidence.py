"""From raw confidences to probabilities, and how good they are.

Calibration is isotonic regression: the monotone step function nearest to the outcomes in squares, found by pooling
adjacent violators (Ayer et al. 1955). Between two steps it is interpolated linearly. On the data that it was fitted to
its expected calibration error is 0, so it is measured on other data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlready.types import FloatArray

COVERAGES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class Calibration:
    """A monotone map from raw to calibrated confidence.

    Attributes:
        raw: knots, ascending.
        value: the calibrated confidence at each knot, not descending, in [0, 1].
        count: outcomes it was fitted to.
    """

    raw: tuple[float, ...]
    value: tuple[float, ...]
    count: int = 0

    @classmethod
    def fit(cls, raw: Sequence[float], right: Sequence[float | bool]) -> Calibration:
        """Isotonic regression of outcomes on raw confidences.

        Args:
            raw: confidences, any finite numbers.
            right: outcomes in [0, 1], one each.

        Raises:
            ValueError: there are none, not as many of each, or one is not finite or out of range.
        """
        x, y = _pairs(raw, right)
        xs, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        means = np.bincount(inverse, weights=y) / counts
        blocks: list[tuple[float, float, float, float]] = []  # first knot, last knot, mean, weight
        for knot, mean, weight in zip(xs.tolist(), means.tolist(), counts.tolist(), strict=True):
            block = (knot, knot, mean, float(weight))
            while blocks and blocks[-1][2] >= block[2]:
                first, _, m, w = blocks.pop()
                total = w + block[3]
                block = (first, block[1], (m * w + block[2] * block[3]) / total, total)
            blocks.append(block)
        knots, values = list[float](), list[float]()
        for first, last, mean, _ in blocks:
            for knot in dict.fromkeys((first, last)):
                knots.append(knot)
                values.append(min(1.0, max(0.0, mean)))
        return cls(tuple(knots), tuple(values), len(x))

    def __call__(self, raw: float) -> float:
        """The calibrated confidence; beyond the outermost knots that of the nearest one."""
        return float(np.interp(raw, self.raw, self.value))

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {"raw": list(self.raw), "value": list(self.value), "count": self.count}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Calibration:
        """Inverse of `to_json`."""
        return cls(tuple(record["raw"]), tuple(record["value"]), int(record["count"]))


def ece(confidence: Sequence[float], right: Sequence[float | bool], bins: int = 10) -> float:
    """Expected calibration error: |mean confidence - share right| in bins of equal width, weighted by their counts.

    Raises:
        ValueError: there is nothing to measure, or a value is out of range.
    """
    x, y = _pairs(confidence, right)
    at = np.clip((x * bins).astype(int), 0, bins - 1)
    gap = np.bincount(at, weights=x, minlength=bins) - np.bincount(at, weights=y, minlength=bins)
    return float(np.abs(gap).sum() / len(x))


def auroc(confidence: Sequence[float], right: Sequence[float | bool]) -> float:
    """How often a right one has a higher confidence than a wrong one, ties half; NaN where all are right or all wrong.

    Raises:
        ValueError: there is nothing to measure, or a value is out of range.
    """
    x, y = _pairs(confidence, right)
    hit = y >= 0.5
    good, bad = int(hit.sum()), int((~hit).sum())
    if not good or not bad:
        return math.nan
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2.0
    return float((rank[inverse][hit].sum() - good * (good + 1) / 2.0) / (good * bad))


def risk_coverage(
    confidence: Sequence[float], right: Sequence[float | bool], coverages: Sequence[float] = COVERAGES
) -> list[dict[str, float]]:
    """What is gained by answering only where one is sure.

    Returns:
        For each wanted share a row: `threshold` (the confidence that reaches it), `coverage` (the share at or above the
        threshold; larger than wanted where confidences tie), and `accuracy` among those.

    Raises:
        ValueError: there is nothing to measure, or a value is out of range.
    """
    x, y = _pairs(confidence, right)
    descending = np.sort(x)[::-1]
    rows = []
    for share in coverages:
        threshold = descending[min(len(x), max(1, math.ceil(share * len(x) - 1e-9))) - 1]
        kept = x >= threshold
        rows.append({"threshold": float(threshold), "coverage": float(kept.mean()), "accuracy": float(y[kept].mean())})
    return rows


def _pairs(raw: Sequence[float], right: Sequence[float | bool]) -> tuple[FloatArray, FloatArray]:
    x, y = np.asarray(raw, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ValueError(f"Confidences and outcomes must be lists of one length, and not empty: {x.shape}, {y.shape}.")
    if not np.isfinite(x).all() or not ((y >= 0) & (y <= 1)).all():
        raise ValueError("Confidences must be finite, and outcomes in [0, 1].")
    return x, y  # type: ignore[return-value]  # float64
