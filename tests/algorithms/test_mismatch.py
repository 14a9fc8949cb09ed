"""Corrections for a stale or foreign sampler: factors by hand, masks of whole trajectories, numbers to watch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlready.algorithms import GSPO
from rlready.algorithms.mismatch import factors
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from tests.algorithms.toy_bigram import Bigram, Bound, policy_of, row_of

W = np.log(np.asarray([1.5, 0.4, 6.0]))  # the product is 3.6, the geometric mean 1.533


@pytest.mark.parametrize(
    ("gaps", "rule", "fields", "expected"),
    [
        (W, "none", {}, [1, 1, 1]),
        (W, "truncate", {}, [1.5, 0.4, 2.0]),
        (W, "truncate", {"high": 1.2}, [1.2, 0.4, 1.2]),
        (W, "icepop", {}, [1, 0, 0]),
        (W, "icepop", {"weigh": True}, [1.5, 0, 0]),
        (W, "icepop", {"low": 0.3, "high": 10.0, "weigh": True}, [1.5, 0.4, 6.0]),
        (W, "sequence", {}, [0, 0, 0]),
        (W, "sequence", {"high": 4.0}, [1, 1, 1]),
        (W, "sequence", {"high": 4.0, "weigh": True}, [3.6, 3.6, 3.6]),
        (W, "geometric", {}, [0, 0, 0]),
        (W, "geometric", {"high": 1.6}, [1, 1, 1]),
        (W, "geometric", {"high": 1.6, "weigh": True}, [1, 1, 1]),
        (-W, "geometric", {"high": 1.6}, [0, 0, 0]),  # .65 is below .99
        (W, "none", {"veto": 0.3}, [1, 1, 1]),
        (W, "none", {"veto": 0.5}, [0, 0, 0]),
        (W, "icepop", {"veto": 0.5}, [0, 0, 0]),
        (np.zeros(0), "geometric", {"veto": 0.5}, []),
    ],
)
def test_factors_by_hand(gaps, rule, fields, expected):
    given = {"low": None, "high": None, "veto": None, "weigh": False} | fields
    assert factors(gaps, rule, given["low"], given["high"], veto=given["veto"], weigh=given["weigh"]).tolist() == (
        pytest.approx(expected)
    )


def stale_rows(learner):
    """Trajectory 0 in two rows, w = 1.5, .4 and 6; trajectory 1, w = 1; trajectory 2, w = 2."""
    rows = [
        row_of([0, 1, 2], [0, 1, 1], advantage=[0, 1.0, 2.0], trajectory=0),
        row_of([2, 3], [0, 1], advantage=4.0, trajectory=0),
        row_of([0, 3, 1], [0, 1, 1], advantage=-1.0, trajectory=1),
        row_of([0, 2], [0, 1], advantage=1.0, trajectory=2),
    ]
    gaps = ([0, *W[:2]], [0, W[2]], [0, 0, 0], [0, math.log(2)])
    for row, logprobs, gap in zip(rows, learner.logprobs(rows), gaps, strict=True):
        row.logprobs = (logprobs - np.asarray(gap)).astype(np.float32)
    return rows


@pytest.mark.parametrize(
    ("fields", "expected", "masked"),
    [
        ({"mismatch": "icepop"}, ([0, 1, 0], [0, 0], [0, -1, -1], [0, 1]), 2 / 6),
        ({"mismatch": "sequence"}, ([0, 0, 0], [0, 0], [0, -1, -1], [0, 1]), 3 / 6),
        ({"mismatch": "sequence", "mismatch_high": 4.0}, ([0, 1, 2], [0, 4], [0, -1, -1], [0, 1]), 0.0),
        ({"mismatch": "geometric"}, ([0, 0, 0], [0, 0], [0, -1, -1], [0, 0]), 4 / 6),
        ({"veto": 0.5}, ([0, 0, 0], [0, 0], [0, -1, -1], [0, 1]), 3 / 6),
    ],
)
def test_masks_are_over_all_rows_of_a_trajectory(fields, expected, masked):
    learner = Bigram()
    rows = stale_rows(learner)
    before = [row.advantage.copy() for row in rows]
    out, noted = PolicyGradient(**fields).prepare(policy_of(learner), rows)
    for row, wanted in zip(out, expected, strict=True):
        assert row.advantage.tolist() == pytest.approx(wanted) and row.start is None
    assert noted["masked"] == pytest.approx(masked)
    assert all(np.array_equal(row.advantage, old) for row, old in zip(rows, before, strict=True))  # left alone


def test_truncated_weights_by_hand():
    learner = Bigram()
    rows = stale_rows(learner)
    algorithm = PolicyGradient(anchor="start", mismatch="truncate")
    out, noted = algorithm.prepare(policy_of(learner), rows)
    assert out[0].advantage.tolist() == pytest.approx([0, 1.5, 0.8], rel=1e-5)
    assert out[1].advantage.tolist() == pytest.approx([0, 8.0])
    assert out[0].start is not None and out[0].start.tolist() == pytest.approx([0, *learner.logprobs(rows)[0][1:]])
    assert noted["mismatch/capped"] == pytest.approx(2 / 6)  # 6 and 2
    assert "masked" not in noted


def test_a_decoupled_ratio_is_against_the_start():
    learner = Bigram()
    metrics = PolicyGradient(anchor="start", trust="clip").fit(policy_of(learner), stale_rows(learner))
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-5) and metrics["clip/fraction"] == 0
    coupled = PolicyGradient(trust="clip").fit(policy_of(Bigram()), stale_rows(Bigram()))
    assert coupled["ratio/max"] == pytest.approx(6, rel=1e-5) and coupled["clip/fraction"] > 0


def test_masked_tokens_keep_their_place_in_the_denominator():
    """One of two trajectories masked: the gradient of the other is as it would be beside it, half of it alone."""
    learner = Bigram(lr=1.0)
    start = learner.table.detach().clone()
    rows = stale_rows(learner)[2:]
    metrics = PolicyGradient(mismatch="geometric", average="trajectory").fit(policy_of(learner), rows)
    moved = learner.table.detach() - start
    alone = Bigram(lr=1.0)
    PolicyGradient(average="trajectory").fit(policy_of(alone), stale_rows(alone)[2:3])
    torch.testing.assert_close(moved, (alone.table.detach() - start) / 2)
    assert metrics["rows_skipped"] == 1  # nor is it run


def test_opsm_drops_bad_trajectories_that_have_become_rare():
    """Mean log(mu / pi) of trajectory 0 is .35, of 1 it is -.35; the tokens with A < 0 of the former are dropped."""
    learner = Bound()
    rows = [
        row_of([0, 1, 2], [0, 1, 1], advantage=[0, -1.0, 1.0], trajectory=0),
        row_of([2, 3], [0, 1], advantage=-1.0, trajectory=0),
        row_of([0, 3, 1], [0, 1, 1], advantage=-1.0, trajectory=1),
    ]
    gaps = ([0, 0.15, 0.2], [0, 0.7], [0, -0.7, 0.0])
    for row, logprobs, gap in zip(rows, learner.logprobs(rows), gaps, strict=True):
        row.logprobs = (logprobs + np.asarray(gap)).astype(np.float32)
    for delta, share in ((0.34, 2 / 5), (0.36, 0.0)):
        out = PolicyGradient(opsm=delta).fit(policy_of(Bound()), rows)
        assert out["masked"] == out["opsm"] == pytest.approx(share)
    # Without the row that was rewritten, the mean would be .175: what counts is the whole trajectory.
    assert PolicyGradient(opsm=0.2).fit(policy_of(Bound()), rows[:1] + rows[2:])["masked"] == 0


def test_a_learner_that_parts_a_trajectory_is_refused_where_the_loss_is_over_all_of_it():
    rows = stale_rows(Bigram())
    for algorithm in (GSPO(), PolicyGradient(opsm=0.5)):
        with pytest.raises(UserError, match=r"trajectory 0 has 2 rows.*Use ratio=\"token\" without opsm"):
            algorithm.fit(policy_of(Bigram()), rows)
        algorithm.fit(policy_of(Bigram()), rows[2:])  # a row each: nothing to part
        algorithm.fit(policy_of(Bound()), rows)


@pytest.mark.parametrize("micro", [1, 2, 100])
def test_the_ratio_of_a_trajectory_is_over_its_rows_whatever_the_micro_batch(micro):
    learner = Bound(micro=micro)
    metrics = GSPO(trust="none").fit(policy_of(learner), stale_rows(learner))
    assert metrics["ratio/max"] == pytest.approx(2, rel=1e-5)
    assert metrics["ratio/mean"] == pytest.approx((3.6 ** (1 / 3) + 1 + 2) / 3, rel=1e-5)  # by trajectory, as averaged


def test_numbers_of_the_first_minibatch_by_hand():
    """w over six tokens: 1.5, .4, 6, 1, 1, 2. Later steps move pi; only the first says what was at the start."""
    learner = Bigram(lr=1.0)
    rows = stale_rows(learner)
    out = PolicyGradient(epochs=3).fit(policy_of(learner), rows)
    w = np.asarray([1.5, 0.4, 6.0, 1.0, 1.0, 2.0])
    assert out["mismatch/mean"] == pytest.approx(w.mean(), rel=1e-5)
    assert out["mismatch/std"] == pytest.approx(w.std(), rel=1e-4)
    assert out["mismatch/abs"] == pytest.approx(np.exp(np.abs(np.log(w))).mean(), rel=1e-5)
    assert out["mismatch/max"] == pytest.approx(6.0, rel=1e-5)
    assert out["mismatch/kl"] == pytest.approx((w - 1 - np.log(w)).mean(), rel=1e-5)
    assert out["mismatch/ess"] == pytest.approx(w.mean() ** 2 / (w**2).mean(), rel=1e-5)
    assert "mismatch/square" not in out and out["ratio/max"] > 6.5  # the policy did move
    exact = [row_of([0, 1], [0, 1])]
    exact[0].logprobs = Bigram().logprobs(exact)[0]
    out = PolicyGradient().fit(policy_of(Bigram()), exact)
    assert out["mismatch/kl"] == pytest.approx(0, abs=1e-9) and out["mismatch/ess"] == pytest.approx(1)


def test_numbers_of_the_first_minibatch_do_not_depend_on_micro_batches():
    every = [PolicyGradient().fit(policy_of(Bigram(micro=m)), stale_rows(Bigram())) for m in (1, 3, 100)]
    for other in every[1:]:
        assert other == pytest.approx(every[0])
