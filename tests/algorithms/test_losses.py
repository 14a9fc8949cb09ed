"""Loss values and gradients against numbers derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.ppo import PPO
from rlready.algorithms.streams import kl_loss, kl_value, log_ratio, surrogate, value_loss
from rlready.errors import UserError
from rlready.policy.base import Outputs
from rlready.types import Row
from tests.algorithms.toy_bigram import NAN, Bigram, pad, policy_of, row_of


def one(ratio, advantage, low=0.2, high=0.2, dual=None):
    """Loss, gradient with respect to the ratio, and whether it was clipped, of one token."""
    r = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    loss, clipped = surrogate(r, torch.tensor([[advantage]], dtype=torch.float64), low, high, dual)
    loss.sum().backward()
    assert r.grad is not None
    return loss.item(), r.grad.item(), clipped.item()


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


def test_sequence_ratio_is_the_geometric_mean_and_padding_is_out():
    # Row 1: log-ratios .3 and -.1 -> mean .1. Row 2: one trained token, .4. Padding holds nan.
    new = torch.tensor([[0.0, 0.3, -0.1], [0.0, 0.4, NAN]])
    old = torch.tensor([[NAN, 0.0, 0.0], [NAN, 0.0, NAN]])
    mask = torch.tensor([[False, True, True], [False, True, False]])
    token = log_ratio(new, old, mask, "token")
    sequence = log_ratio(new, old, mask, "sequence")
    torch.testing.assert_close(token, torch.tensor([[0, 0.3, -0.1], [0, 0.4, 0]]))
    torch.testing.assert_close(sequence, torch.tensor([[0, 0.1, 0.1], [0, 0.4, 0]]))


def test_sequence_ratio_has_gspo_gradient():
    # GSPO's loss of one row: -s A with s = exp(mean log-ratio); d/d logp_t = -A s / n. Ours averages n token terms.
    new = torch.tensor([[0.0, 0.3, -0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, True, True]])
    ratio = log_ratio(new, torch.zeros_like(new), mask, "sequence").exp()
    loss, _ = surrogate(ratio, torch.full_like(new, 1.5), None, None, None)
    (loss * mask / 3).sum().backward()
    expected = -1.5 * math.exp(0.2) / 3
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([[0.0] + [expected] * 3], dtype=torch.float64))


def test_an_exploded_ratio_stays_finite():
    new = torch.tensor([[0.0, 500.0]], requires_grad=True)
    ratio = log_ratio(new, torch.zeros(1, 2), torch.tensor([[False, True]]), "token").exp()
    loss, _ = surrogate(ratio, torch.tensor([[0.0, -1.0]]), 0.2, 0.2, None)
    loss.sum().backward()
    assert math.isfinite(loss.sum().item()) and new.grad is not None and torch.isfinite(new.grad).all()


def test_kl_values_by_hand():
    # d = log .5 - log .25 = log 2: k1 = .6931, k2 = .2402, k3 = 1/2 - 1 + .6931 = .1931
    new, ref = torch.tensor(math.log(0.5)), torch.tensor(math.log(0.25))
    assert kl_value(new, ref, "k1").item() == pytest.approx(0.693147, abs=1e-6)
    assert kl_value(new, ref, "k2").item() == pytest.approx(0.240227, abs=1e-6)
    assert kl_value(new, ref, "k3").item() == pytest.approx(0.193147, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_gradient_is_that_of_the_exact_kl(estimator):
    """The mean over all tokens, weighted by the sampler's probabilities, against finite differences of the true KL."""
    generator = torch.Generator().manual_seed(1)
    theta, ref, behaviour = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(3))
    ref, old = torch.log_softmax(ref, 0), torch.log_softmax(behaviour, 0)

    def exact(t):
        p = torch.log_softmax(t, 0)
        return float((p.exp() * (p - ref)).sum())

    eps = 1e-6
    finite = torch.tensor(
        [(exact(theta + eps * e) - exact(theta - eps * e)) / (2 * eps) for e in torch.eye(5, dtype=torch.float64)],
        dtype=torch.float64,
    )
    theta.requires_grad_()
    new = torch.log_softmax(theta, 0)
    mask = torch.ones(1, 5, dtype=torch.bool)
    each = kl_loss(new[None], ref[None], log_ratio(new[None], old[None], mask, "token"), estimator)
    (old.exp() * each).sum().backward()  # the expectation over tokens that the *old* policy draws
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, finite, atol=1e-7, rtol=1e-6)


def test_the_naive_k3_gradient_would_be_another():
    """What the correction is for: without the ratio, k3's gradient differs, so the test above can fail."""
    theta = torch.tensor([0.5, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), 0)
    new = torch.log_softmax(theta, 0)
    naive = torch.autograd.grad((new.detach().exp() * kl_value(new, ref, "k3")).sum(), theta, retain_graph=True)[0]
    true = torch.autograd.grad((new.exp() * (new - ref)).sum(), theta)[0]
    assert (naive - true).abs().max() > 0.1


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "slope"),
    [
        (0.5, 0.4, 1.0, 0.2, 0.25, -1.0),  # inside: (.5 - 1)^2
        (0.9, 0.4, 1.0, 0.2, 0.16, 0.0),  # clipped to .6: max(.01, .16), no gradient: it moved far enough
        (0.9, 0.4, 0.0, 0.2, 0.81, 1.8),  # moved the wrong way: max(.81, .36) keeps pulling
        (0.9, 0.4, 1.0, None, 0.01, -0.2),
    ],
)
def test_value_loss_by_hand(value, old, target, clip, loss, slope):
    v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    out = value_loss(v, torch.tensor(target, dtype=torch.float64), torch.tensor(old, dtype=torch.float64), clip)
    out.backward()
    assert v.grad is not None
    assert out.item() == pytest.approx(loss) and v.grad.item() == pytest.approx(slope)


# -- the streams together, on a batch --------------------------------------------------------------------------------


def outputs_of(logprobs, **more):
    return Outputs(torch.tensor(logprobs, dtype=torch.float64), **more)


def test_total_by_hand():
    # Two trained tokens, A = 1, ratios 1.5 and 1: policy = -(1.2 + 1) / 2 = -1.1.
    # Entropy .6 and .4, coefficient .1: -.1 * .5 = -.05.
    # KL k1 with reference log-probs .1 lower at both: k = .1, ratios 1.5 and 1, coefficient 2: 2 (.15 + .1) / 2 = .25.
    row = row_of([0, 1, 2], [0, 1, 1], logprobs=[0, -2.0, -1.0])
    row.weights |= {"kl": row.weights["policy"].copy(), "entropy": row.weights["policy"].copy()}
    algorithm = PolicyGradient(kl=2.0, kl_estimator="k1", entropy=0.1)
    new = [0.0, -2.0 + math.log(1.5), -1.0]
    outputs = outputs_of(
        [new],
        entropy=torch.tensor([[NAN, 0.6, 0.4]], dtype=torch.float64),
        reference=torch.tensor([[NAN, new[1] - 0.1, new[2] - 0.1]], dtype=torch.float64),
    )
    divisors = algorithm.weigh([row]) | {"policy/run": 2.0}
    result = algorithm.loss(outputs, pad([row], divisors))
    assert result.metrics["loss/policy"].item() == pytest.approx(-1.1)
    assert result.metrics["loss/entropy"].item() == pytest.approx(-0.05)
    assert result.metrics["loss/kl"].item() == pytest.approx(0.25)
    assert result.total.item() == pytest.approx(-1.1 - 0.05 + 0.25)
    assert result.metrics["ratio/mean"].item() == pytest.approx(1.25)
    assert result.metrics["ratio/max"].item() == pytest.approx(1.5)
    assert result.metrics["clip/fraction"].item() == pytest.approx(0.5)
    assert result.metrics["entropy"].item() == pytest.approx(0.5)
    # k3 of behaviour: (1.5 - 1 - ln 1.5) / 2
    assert result.metrics["kl/behaviour"].item() == pytest.approx((0.5 - math.log(1.5)) / 2)
    assert result.metrics["kl/reference"].item() == pytest.approx(0.1)


def test_streams_follow_the_coefficients():
    assert PolicyGradient().streams == ("policy",)
    assert PolicyGradient(kl=0.1, entropy=0.1).streams == ("policy", "kl", "entropy")
    assert PPO(kl=0.1).streams == ("policy", "kl", "value")
    assert not PolicyGradient().needs_reference and PolicyGradient(kl=0.1).needs_reference
    assert PPO().needs_values and not PPO().needs_entropy


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_ratio_is_one_at_the_sampling_temperature(temperature):
    learner = Bigram()
    row = row_of([0, 1, 2, 3], [0, 1, 1, 1])
    row.temperature[:] = temperature
    row.logprobs = learner.logprobs([row])[0]
    metrics = PolicyGradient().fit(policy_of(learner), [row])
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-6) and metrics["kl/behaviour"] == pytest.approx(0, abs=1e-9)
    # ... and is not where only one side applied it (the test would be blind otherwise)
    row.temperature[:] = 2 * temperature
    assert abs(PolicyGradient().fit(policy_of(Bigram()), [row])["ratio/max"] - 1) > 0.05


def test_first_gradient_is_the_policy_gradient():
    """At ratio 1 the gradient is -mean A grad log pi, whatever the clip; by finite differences at temperature .5."""
    learner = Bigram()
    row = row_of([0, 1, 2], [0, 1, 1], advantage=[0, 2.0, -1.0])
    row.temperature[:] = 0.5
    row.logprobs = learner.logprobs([row])[0]
    algorithm = PolicyGradient()
    grad = learner.gradient(lambda: learner.forward_backward([row], algorithm.loss, {"policy": 2.0, "policy/run": 2.0}))

    def objective(table):
        logp = torch.log_softmax(table / 0.5, -1)
        return -(2.0 * logp[0, 1] - 1.0 * logp[1, 2]) / 2

    expected = torch.zeros_like(grad)
    for i in range(4):
        for j in range(4):
            up = learner.table.detach().clone()
            up[i, j] += 1e-6
            down = learner.table.detach().clone()
            down[i, j] -= 1e-6
            expected[i, j] = (objective(up) - objective(down)) / 2e-6
    torch.testing.assert_close(grad, expected, atol=1e-6, rtol=1e-5)


def test_ppo_value_stream_has_its_own_coefficient_and_denominator():
    # Values .5 at both tokens, returns 1 and 0: mean of .25 and .25, coefficient 2 -> .5.
    row = row_of([0, 1, 2], [0, 1, 1], advantage=0.0)
    row.weights["value"] = row.weights["policy"].copy()
    row.returns = np.asarray([0, 1, 0], dtype=np.float32)
    row.values = np.asarray([0, 0.5, 0.5], dtype=np.float32)
    outputs = outputs_of([[0.0, 0.0, 0.0]], values=torch.tensor([[NAN, 0.5, 0.5]], dtype=torch.float64))
    batch = pad([row], {"policy": 2.0, "policy/run": 2.0, "value": 2.0})
    assert PPO(value_coef=2.0).loss(outputs, batch).total.item() == pytest.approx(0.5)
    batch.denominators = {"policy": 2.0, "policy/run": 2.0, "value": 4.0}
    assert PPO(value_coef=2.0).loss(outputs, batch).total.item() == pytest.approx(0.25)
    # The critic moved from .4 to .9 (clip .2, so .6) with returns 1 and 0: max(.01, .16) and max(.81, .36), mean .485.
    batch = pad([row], {"policy": 2.0, "policy/run": 2.0, "value": 2.0})
    batch.values = torch.full_like(batch.logprobs, 0.4)
    outputs = outputs_of([[0.0, 0.0, 0.0]], values=torch.tensor([[NAN, 0.9, 0.9]], dtype=torch.float64))
    assert PPO(value_coef=1.0).loss(outputs, batch).total.item() == pytest.approx(0.485)
    assert PPO(value_coef=1.0, value_clip=None).loss(outputs, batch).total.item() == pytest.approx((0.01 + 0.81) / 2)


def test_peaks_are_maxima_over_microbatches_and_steps():
    learner = Bigram(micro=1)
    rows = [row_of([0, 1], [0, 1]) for _ in range(3)]
    exact = learner.logprobs(rows[:1])[0][1]
    for row, log_ratio_wanted in zip(rows, (0.0, 1.0, 0.5), strict=True):
        row.logprobs[1] = exact - log_ratio_wanted
    metrics = PolicyGradient(clip_high=None).fit(policy_of(learner), rows)
    assert metrics["ratio/max"] == pytest.approx(math.e, rel=1e-5)
    assert metrics["ratio/mean"] == pytest.approx((1 + math.e + math.exp(0.5)) / 3, rel=1e-5)


# -- rows that cost nothing ------------------------------------------------------------------------------------------


def mixed_rows(learner) -> list[Row]:
    rows = [
        row_of([0, 1, 2], [0, 1, 1], advantage=1.0, trajectory=0),
        row_of([0, 2, 3, 1], [0, 1, 1, 1], advantage=0.0, trajectory=1),
        row_of([0, 3], [0, 1], advantage=-2.0, trajectory=2),
        row_of([0, 3, 3], [0, 1, 1], advantage=0.0, trajectory=3),
    ]
    for row, logprobs in zip(rows, learner.logprobs(rows), strict=True):
        row.logprobs = logprobs
    return rows


class RunsAll(PolicyGradient):
    def needed(self, row: Row) -> bool:
        return True


@pytest.mark.parametrize("average", ["token", "sequence", "trajectory", "constant"])
@pytest.mark.parametrize("advantages", [None, 0.0])
def test_skipping_zero_advantages_is_the_same_update(average, advantages):
    tables, metrics, run = [], [], []
    for kind in (PolicyGradient, RunsAll):
        learner = Bigram(adam=True, seed=4)
        rows = mixed_rows(learner)
        if advantages is not None:
            for row in rows:
                row.advantage[:] = 0  # nothing to learn at all; the optimizer must still step (momentum, decay)
        metrics.append(kind(average=average, constant=4, epochs=3, minibatches=2).fit(policy_of(learner), rows))
        tables.append(learner.table.detach().clone())
        run.append(learner.rows_run)
    torch.testing.assert_close(tables[0], tables[1], atol=1e-14, rtol=0)
    assert metrics[0]["loss/policy"] == pytest.approx(metrics[1]["loss/policy"])
    assert metrics[0]["optimizer_steps"] == metrics[1]["optimizer_steps"] == 6
    assert run[0] < run[1] == 12
    assert metrics[0]["rows_skipped"] == (12 - run[0]) / 3


def test_no_row_is_skipped_where_another_stream_wants_it():
    learner = Bigram()
    rows = mixed_rows(learner)
    for row in rows:
        row.weights["entropy"] = row.weights["policy"].copy()
    PolicyGradient(entropy=0.1).fit(policy_of(learner), rows)
    assert learner.rows_run == 4


# -- stale or foreign behaviour log-probs ----------------------------------------------------------------------------


def test_truncated_correction_by_hand():
    # The learner's probability is e^.5 and e^-1 times the behaviour's: weights min(e^.5, 1.2) = 1.2 and e^-1.
    learner = Bigram()
    row = row_of([0, 1, 2], [0, 1, 1], advantage=[0, 1.0, 2.0])
    exact = learner.logprobs([row])[0]
    row.logprobs = exact - np.asarray([0, 0.5, -1.0], dtype=np.float32)
    (out,), noted = PolicyGradient(correction=1.2).prepare(policy_of(learner), [row])
    assert out.advantage.tolist() == pytest.approx([0, 1.2, 2 * math.exp(-1)], rel=1e-5)
    assert out.logprobs.tolist() == pytest.approx(exact.tolist(), abs=1e-6)
    assert row.advantage.tolist() == [0, 1.0, 2.0]  # the row given is left alone
    assert noted["correction/mean"] == pytest.approx((1.2 + math.exp(-1)) / 2, rel=1e-5)
    assert noted["correction/capped"] == 0.5
    # By row: the geometric mean of the two is e^-.25 for both.
    (out,), _ = PolicyGradient(correction=1.2, importance="sequence").prepare(policy_of(learner), [row])
    assert out.advantage.tolist() == pytest.approx([0, math.exp(-0.25), 2 * math.exp(-0.25)], rel=1e-5)


def test_correction_off_changes_nothing():
    row = row_of([0, 1], [0, 1], logprobs=-3.0)
    (out,), noted = PolicyGradient().prepare(policy_of(Bigram()), [row])
    assert out is row and set(noted) == {"advantage/mean", "advantage/std"}


def test_advantage_metrics_are_over_trained_tokens():
    rows = [row_of([0, 1, 1], [0, 1, 1], advantage=1.0), row_of([0, 1], [0, 1], advantage=-2.0)]
    _, noted = PolicyGradient().prepare(policy_of(Bigram()), rows)
    assert noted["advantage/mean"] == pytest.approx(0.0)
    assert noted["advantage/std"] == pytest.approx(math.sqrt(2))  # of 1, 1, -2


@pytest.mark.parametrize(
    "fields",
    [{"dual_clip": 1.0}, {"clip_low": -0.1}, {"kl_estimator": "k4"}, {"importance": "word"}, {"correction": -1.0}],
)
def test_fields_that_cannot_work_are_refused(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        PolicyGradient(**fields)
