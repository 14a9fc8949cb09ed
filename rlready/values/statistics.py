"""Means, standard errors and correlations where several values belong to one task."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def numbered(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Labels as numbers from 0, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.asarray([seen.setdefault(label, len(seen)) for label in labels], dtype=np.int64)


def mean_and_error(values: Floats, clusters: NDArray[np.int64]) -> tuple[float, float]:
    """Mean, and its standard error where values of one cluster may depend on each other.

    error = sqrt(C / (C - 1) x sum over clusters of (sum of deviations)^2) / n, the cluster-robust one (Liang and Zeger
    1986). NaN for fewer than two clusters. Clusters may be numbered with gaps.
    """
    n = len(values)
    if n == 0:
        return math.nan, math.nan
    mean = float(values.mean())
    count = len(np.unique(clusters))
    if count < 2:
        return mean, math.nan
    sums = np.bincount(clusters, weights=values - mean)
    return mean, math.sqrt(count / (count - 1) * float((sums**2).sum())) / n


def correlation_and_error(a: Floats, b: Floats, clusters: NDArray[np.int64]) -> tuple[float, float]:
    """Pearson's correlation, and its standard error by leaving out one cluster at a time; NaN where undefined."""
    whole = correlation(a, b)
    names = np.unique(clusters)
    if len(names) < 3 or math.isnan(whole):
        return whole, math.nan
    left = np.asarray([correlation(a[clusters != c], b[clusters != c]) for c in names])
    left = left[~np.isnan(left)]
    n = len(left)
    return whole, math.sqrt((n - 1) / n * float(((left - left.mean()) ** 2).sum())) if n > 1 else math.nan


def correlation(a: Floats, b: Floats) -> float:
    """Pearson's correlation; NaN where one side does not vary."""
    if len(a) < 2 or a.std() < 1e-12 or b.std() < 1e-12:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])
