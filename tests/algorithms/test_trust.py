"""Ratios and trust regions: value, slope and what was clipped, of single tokens, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlready.algorithms.streams import interpolated, log_ratio, over_trajectory, owners, share_of
from rlready.algorithms.trust import cispo, geometric, sapo, surrogate, tv
from tests.algorithms.toy_bigram import NAN, row_of


def tensor(x):
    return torch.tensor([[x]], dtype=torch.float64)


def one(ratio, advantage, low=0.2, high=0.2, dual=None):
    """Loss, gradient with respect to the ratio, and whether it was clipped, of one token."""
    r = tensor(ratio).requires_grad_()
    loss, clipped = surrogate(r, tensor(advantage), low, high, dual)
    loss.sum().backward()
    assert r.grad is not None
    return loss.item(), r.grad.item(), bool(clipped.item())


def slope(rule, log_r, *args):
    """Loss and its gradient with respect to log pi, of one token with this log-ratio to a sampler of log-prob -1."""
    new = tensor(-1.0 + log_r).requires_grad_()
    loss, clipped = rule(new, (new + 1).exp(), *args)
    loss.sum().backward()
    assert new.grad is not None
    return loss.item(), new.grad.item(), clipped.item()


# -min(rA, clip(r)A). The clip takes the gradient only where it lowers the objective: above for A > 0, below for A < 0.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 2.0, -2.2, -2.0, False),
        (1.5, 2.0, -2.4, 0.0, True),  # min(3.0, 1.2 * 2) = 2.4
        (0.5, 2.0, -1.0, -2.0, False),  # min(1.0, 0.8 * 2) = 1.0: a good token made rarer is always pulled back
        (1.5, -2.0, 3.0, 2.0, False),  # min(-3.0, -2.4) = -3.0: a bad token made likelier likewise
        (0.5, -2.0, 1.6, 0.0, True),  # min(-1.0, -1.6) = -1.6
        (0.9, -2.0, 1.8, 2.0, False),
        (1.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_clip_by_hand(ratio, advantage, loss, slope, clipped):
    assert one(ratio, advantage) == (pytest.approx(loss), pytest.approx(slope), clipped)


def test_clip_sides_are_independent():
    assert one(1.25, 1.0, low=0.2, high=0.28)[0] == pytest.approx(-1.25)  # clip-higher lets it pass
    assert one(1.25, 1.0, low=0.2, high=0.2)[0] == pytest.approx(-1.2)
    assert one(9.0, 1.0, high=None) == (pytest.approx(-9.0), pytest.approx(-1.0), False)
    assert one(0.1, -1.0, low=None) == (pytest.approx(0.1), pytest.approx(1.0), False)
    assert one(0.1, -1.0, low=0.2, high=None) == (pytest.approx(0.8), 0.0, True)


def test_dual_clip_bounds_only_bad_tokens():
    # A = -1, r = 10, c = 3: the objective is max(-10, -3) = -3 and no longer depends on r.
    assert one(10.0, -1.0, dual=3.0) == (pytest.approx(3.0), 0.0, True)
    assert one(2.0, -1.0, dual=3.0) == (pytest.approx(2.0), pytest.approx(1.0), False)
    assert one(10.0, 1.0, dual=3.0)[0] == pytest.approx(-1.2)


def test_cispo_by_hand():
    # Log-ratio ln 2: weight 2, loss -2 A log pi with log pi = -1 + ln 2, slope -2 A. At ratio 8 the weight is 5.
    rule = lambda new, r, a, cap: cispo(r, tensor(a), new, cap)  # noqa: E731
    assert slope(rule, math.log(2), 3.0, 5.0) == pytest.approx((-6 * (-1 + math.log(2)), -6.0, 0.0))
    loss, gradient, clipped = slope(rule, math.log(8), 3.0, 5.0)
    assert (gradient, clipped) == pytest.approx((-15.0, 1 - 5 / 8))
    assert loss == pytest.approx(-15 * (-1 + math.log(8)))
    assert slope(rule, math.log(8), -1.0, 5.0)[1] == pytest.approx(5.0)  # the cap is for bad tokens as well


def test_sapo_by_hand():
    # tau 2, r = 1.5, A = 3: gate sigmoid(1), loss -(4 / 2) sigmoid(1) 3; d/d log pi = -4 s (1 - s) r A.
    rule = lambda new, r, a: sapo(r, tensor(a), 2.0, 0.5)  # noqa: E731
    s = 1 / (1 + math.exp(-1))
    loss, gradient, clipped = slope(rule, math.log(1.5), 3.0)
    assert (loss, gradient) == pytest.approx((-6 * s, -4 * s * (1 - s) * 1.5 * 3))
    assert clipped == pytest.approx(1 - 4 * s * (1 - s))
    s = 1 / (1 + math.exp(-0.25))  # A < 0: tau .5
    assert slope(rule, math.log(1.5), -3.0)[:2] == pytest.approx((24 * s, 4 * s * (1 - s) * 1.5 * 3))


@pytest.mark.parametrize(
    ("old", "new", "advantage", "dropped"),
    [
        (0.5, 0.75, 1.0, True),  # moved up by .25 and is to go up
        (0.5, 0.75, -1.0, False),  # ... is to come down: pulled back
        (0.5, 0.65, 1.0, False),  # moved by .15
        (0.5, 0.25, -1.0, True),
        (0.5, 0.25, 1.0, False),
        (0.001, 0.01, 1.0, False),  # a ratio of 10 on a rare token moves little probability
    ],
)
def test_tv_by_hand(old, new, advantage, dropped):
    def rule(x, _, a):
        ratio = new / old * (x - x.detach()).exp()
        return tv(ratio, tensor(a), tensor(math.log(new)), tensor(math.log(old)), 0.2)

    loss, gradient, clipped = slope(rule, 0.0, advantage)
    expected = 0.0 if dropped else -new / old * advantage
    assert (loss, gradient, clipped) == pytest.approx((expected, expected, float(dropped)))


def test_gmpo_by_hand():
    # Log-ratios .6 and -.1, A = 2, clip .4: mean of .4 and -.1 is .15. The first token is clipped: no gradient.
    new = torch.tensor([[0.0, 0.6, -0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, True]])
    log_r = log_ratio(new, torch.zeros_like(new), mask)
    loss, clipped = geometric(log_r, torch.full_like(new, 2.0), 0.4, 0.4, mask, None)
    ((loss * mask).sum() / 2).backward()
    value = math.exp(0.15)
    assert loss[0, 1:].tolist() == pytest.approx([-2 * value] * 2)
    assert clipped[0].tolist() == [0, 1, 0]
    assert new.grad is not None and new.grad[0].tolist() == pytest.approx([0, 0, -2 * value / 2])
    # A < 0: only the lower side clips, so .6 counts in full.
    loss, clipped = geometric(log_r, torch.full_like(new, -1.0), 0.4, 0.4, mask, None)
    assert loss[0, 1].item() == pytest.approx(math.exp(0.25)) and clipped.sum() == 0


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_at_ratio_one_every_rule_has_the_policy_gradient(advantage, logprob):
    a = tensor(advantage)
    rules = {
        "clip": lambda new, r: surrogate(r, a, 0.2, 0.28, 3.0),
        "cispo": lambda new, r: cispo(r, a, new, 5.0),
        "sapo": lambda new, r: sapo(r, a, 1.0, 1.05),
        "tv": lambda new, r: tv(r, a, new - 4, new.detach() - 4, 0.2),
        "geometric": lambda new, r: geometric(r.log(), a, 0.4, 0.4, torch.ones(1, 1, dtype=torch.bool), None),
    }
    for name, rule in rules.items():
        new = tensor(logprob).requires_grad_()
        loss, clipped = rule(new, (new - new.detach()).exp())
        (gradient,) = torch.autograd.grad(loss.sum(), new)
        assert gradient.item() == pytest.approx(-advantage, abs=1e-9), name
        assert clipped.item() == pytest.approx(0, abs=1e-9), name


@given(st.floats(-2, 2), st.floats(-3, 3), st.floats(0.01, 4))
def test_every_rule_is_homogeneous_in_the_advantage(log_r, advantage, factor):
    """Which is why a weight on the loss may be put on the advantage (`mismatch`)."""
    new, mask = tensor(log_r - 1), torch.ones(1, 1, dtype=torch.bool)
    r = (new + 1).exp()
    for rule in (
        lambda a: surrogate(r, a, 0.2, 0.28, 3.0),
        lambda a: cispo(r, a, new, 5.0),
        lambda a: sapo(r, a, 1.0, 1.05),
        lambda a: tv(r, a, new, tensor(-1.0), 0.2),
        lambda a: geometric(r.log(), a, 0.4, 0.4, mask, None),
    ):
        assert rule(tensor(factor * advantage))[0].item() == pytest.approx(factor * rule(tensor(advantage))[0].item())


# -- ratios ----------------------------------------------------------------------------------------------------------


def test_sequence_ratio_is_the_geometric_mean_and_padding_is_out():
    # Row 1: log-ratios .3 and -.1 -> mean .1. Row 2: one trained token, .4. Padding holds nan.
    new = torch.tensor([[0.0, 0.3, -0.1], [0.0, 0.4, NAN]])
    old = torch.tensor([[NAN, 0.0, 0.0], [NAN, 0.0, NAN]])
    mask = torch.tensor([[False, True, True], [False, True, False]])
    token = log_ratio(new, old, mask)
    torch.testing.assert_close(token, torch.tensor([[0, 0.3, -0.1], [0, 0.4, 0]]))
    torch.testing.assert_close(over_trajectory(token, mask, None), torch.tensor([[0, 0.1, 0.1], [0, 0.4, 0]]))


def test_sequence_ratio_is_over_all_rows_of_a_trajectory():
    # Trajectory 7 has rows 0 and 2: log-ratios .3, -.1 and .7, mean .3. Row 1 is another's.
    rows = [row_of([0], [1], trajectory=t) for t in (7, 3, 7, -1, -1)]
    owner = owners(rows)
    assert owner is not None and owner.tolist() == [0, 1, 0, 2, 3]
    each = torch.tensor([[0.3, -0.1], [0.4, 0], [0.7, 0], [0.2, 0], [0.1, 0]])
    mask = each != 0
    expected = torch.tensor([[0.3, 0.3], [0.4, 0], [0.3, 0], [0.2, 0], [0.1, 0]])
    torch.testing.assert_close(over_trajectory(each, mask, owner), expected)
    assert owners(rows[:2]) is None


def test_sequence_ratio_has_gspo_gradient():
    # GSPO's loss of one row: -s A with s = exp(mean log-ratio); d/d logp_t = -A s / n. Ours averages n token terms.
    new = torch.tensor([[0.0, 0.3, -0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, True, True]])
    ratio = over_trajectory(log_ratio(new, torch.zeros_like(new), mask), mask, None).exp()
    loss, _ = surrogate(ratio, torch.full_like(new, 1.5), None, None, None)
    (loss * mask / 3).sum().backward()
    expected = -1.5 * math.exp(0.2) / 3
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([[0.0] + [expected] * 3], dtype=torch.float64))


def test_an_exploded_ratio_stays_finite():
    new = torch.tensor([[0.0, 500.0]], requires_grad=True)
    ratio = log_ratio(new, torch.zeros(1, 2), torch.tensor([[False, True]])).exp()
    loss, _ = surrogate(ratio, torch.tensor([[0.0, -1.0]]), 0.2, 0.2, None)
    loss.sum().backward()
    assert math.isfinite(loss.sum().item()) and new.grad is not None and torch.isfinite(new.grad).all()


def test_shares_of_the_interpolated_policy_by_hand():
    # The update began at version 6 and is at 8: what 2 sampled has (6 - 2) / (8 - 2), what 6 sampled 0, context 0.
    shares = share_of(np.asarray([2, 6, 5, -1]), 6, 8)
    assert shares.tolist() == pytest.approx([4 / 6, 0, 1 / 3, 0])
    assert share_of(np.asarray([2, 6]), 6, 6).tolist() == [1, 0]  # first step: pi is pi_prox for what is stale


@given(st.floats(-2, 2))
def test_interpolation_between_present_and_sampler(log_r):
    """a = 1: pi_prox is the present policy, ratio 1; a = 0: the sampler, the plain ratio. The gradient is the same."""
    for share, ratio, behind in ((1.0, 0.0, log_r), (0.0, log_r, 0.0), (0.25, 0.75 * log_r, 0.25 * log_r)):
        x = tensor(log_r).requires_grad_()
        new, rest = interpolated(x, tensor(share))
        assert (new.item(), rest.item()) == pytest.approx((ratio, behind), abs=1e-12)
        assert torch.autograd.grad(new.sum(), x)[0].item() == 1.0 and not rest.requires_grad
