"""Calibration against numbers worked out by hand, and its properties."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.simulators.confidence import Calibration, auroc, ece, risk_coverage

PAIRS = st.lists(st.tuples(st.integers(0, 20).map(lambda i: i / 20), st.booleans()), min_size=1, max_size=60)


def test_pooled_adjacent_violators_by_hand() -> None:
    # outcomes 0 1 0 1 1 at .1 .2 .3 .4 .5: the violators (1, 0) at .2 and .3 are pooled to 1/2
    c = Calibration.fit([0.3, 0.1, 0.5, 0.2, 0.4], [0, 0, 1, 1, 1])
    assert c.raw == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert c.value == (0.0, 0.5, 0.5, 1.0, 1.0)
    assert c(0.15) == pytest.approx(0.25) and c(0.25) == 0.5 and c(0.35) == pytest.approx(0.75)
    assert c(-3) == 0.0 and c(7) == 1.0
    assert c.count == 5


def test_ties_are_one_step() -> None:
    c = Calibration.fit([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 1])
    assert c.raw == (0.5,) and c.value == (0.75,) and c(0.0) == c(1.0) == 0.75


def test_a_reversed_confidence_becomes_the_base_rate() -> None:
    c = Calibration.fit([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0])
    assert c(0.1) == c(0.5) == c(0.9) == 0.5


@given(PAIRS)
def test_it_is_monotone_keeps_the_mean_and_never_adds_error(pairs: list[tuple[float, bool]]) -> None:
    raw, right = [p[0] for p in pairs], [p[1] for p in pairs]
    c = Calibration.fit(raw, right)
    grid = [c(x) for x in np.linspace(-0.5, 1.5, 101)]
    assert all(a <= b + 1e-12 for a, b in pairwise(grid))
    assert all(0 <= v <= 1 for v in grid)
    calibrated = [c(x) for x in raw]
    assert np.mean(calibrated) == pytest.approx(np.mean(right))
    assert ece(calibrated, right) <= ece(raw, right) + 1e-9
    assert ece(calibrated, right) == pytest.approx(0.0, abs=1e-9)
    assert np.mean((np.array(calibrated) - right) ** 2) <= np.mean((np.array(raw) - right) ** 2) + 1e-9
    assert Calibration.from_json(c.to_json()) == c


def test_error_falls_on_other_data_too() -> None:
    r = np.random.default_rng(0)
    raw = r.random(4000)
    right = r.random(4000) < raw**3  # overconfident
    c = Calibration.fit(raw[:2000].tolist(), right[:2000].tolist())
    after = ece([c(x) for x in raw[2000:]], right[2000:].tolist())
    assert ece(raw[2000:].tolist(), right[2000:].tolist()) > 0.2 and after < 0.04


def test_ece_by_hand() -> None:
    # bin of .0: (.0 wrong), bin of .9: (.9 right, .9 wrong): 2/3 * |.9 - .5|
    assert ece([0.0, 0.9, 0.9], [0, 1, 0]) == pytest.approx(2 / 3 * 0.4)
    assert ece([1.0], [1]) == 0.0


def test_auroc_by_hand() -> None:
    assert auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75
    assert auroc([0.5, 0.5], [0, 1]) == 0.5
    assert auroc([0.9, 0.1], [0, 1]) == 0.0
    assert math.isnan(auroc([0.1, 0.2], [1, 1]))


@given(PAIRS)
def test_auroc_is_the_share_of_pairs(pairs: list[tuple[float, bool]]) -> None:
    good, bad = [c for c, r in pairs if r], [c for c, r in pairs if not r]
    found = auroc([p[0] for p in pairs], [p[1] for p in pairs])
    if not good or not bad:
        assert math.isnan(found)
    else:
        wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
        assert found == pytest.approx(wins / (len(good) * len(bad)))


def test_risk_and_coverage_by_hand() -> None:
    rows = risk_coverage([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], (0.25, 0.5, 1.0))
    assert rows[0] == {"threshold": 0.9, "coverage": 0.25, "accuracy": 1.0}
    assert rows[1]["threshold"] == 0.8 and rows[1]["coverage"] == 0.75  # the tie is taken whole
    assert rows[1]["accuracy"] == pytest.approx(2 / 3)
    assert rows[2] == {"threshold": 0.1, "coverage": 1.0, "accuracy": 0.5}


@pytest.mark.parametrize(("raw", "right"), [([], []), ([0.1], []), ([math.nan], [1]), ([0.1], [2])])
def test_bad_values_are_refused(raw: list[float], right: list[float]) -> None:
    for fn in (Calibration.fit, ece, auroc, risk_coverage):
        with pytest.raises(ValueError, match="onfidences"):
            fn(raw, right)  # type: ignore[operator]
