"""Loss values and gradients of a whole batch against numbers derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlready.algorithms import GDPO, GSPO, VinePPO
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.ppo import PPO
from rlready.algorithms.streams import value_loss
from rlready.errors import UserError
from rlready.policy.base import Outputs
from rlready.types import Row
from tests.algorithms.toy_bigram import NAN, Bigram, pad, policy_of, row_of


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
    algorithm = PolicyGradient(trust="clip", kl=2.0, kl_estimator="k1", entropy=0.1)
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
    metrics = PolicyGradient().fit(policy_of(learner), rows)
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
    constant = 4 if average == "constant" else 1
    for kind in (PolicyGradient, RunsAll):
        learner = Bigram(adam=True, seed=4)
        rows = mixed_rows(learner)
        if advantages is not None:
            for row in rows:
                row.advantage[:] = 0  # nothing to learn at all; the optimizer must still step (momentum, decay)
        metrics.append(kind(average=average, constant=constant, epochs=3, minibatches=2).fit(policy_of(learner), rows))
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


# -- fields ----------------------------------------------------------------------------------------------------------


def test_advantage_metrics_are_over_trained_tokens():
    rows = [row_of([0, 1, 1], [0, 1, 1], advantage=1.0), row_of([0, 1], [0, 1], advantage=-2.0)]
    _, noted = PolicyGradient().prepare(policy_of(Bigram()), rows)
    assert noted["advantage/mean"] == pytest.approx(0.0)
    assert noted["advantage/std"] == pytest.approx(math.sqrt(2))  # of 1, 1, -2


@pytest.mark.parametrize(
    "fields",
    [
        {"dual_clip": 1.0, "trust": "clip"},
        {"clip_low": -0.1, "trust": "clip"},
        {"kl_estimator": "k4", "kl": 0.1},
        {"ratio": "word"},
        {"trust": "blind"},
        {"anchor": "ship"},
        {"mismatch": "guess"},
        {"mismatch_high": -1.0, "mismatch": "icepop"},
        {"advantage": "median"},
        {"truncated": "drop"},
        {"kl_average": "mean", "kl": 0.1},
        {"cap": 0.0, "trust": "cispo"},
        {"std_floor": 0.0, "advantage": "std"},
        {"decay": 1.0, "advantage": "running"},
        {"observe": -1.0},
    ],
)
def test_values_that_cannot_work_are_refused(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        PolicyGradient(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cap": 4.0}, 'cap is read by trust="cispo" only'),
        ({"clip_high": 0.28}, 'clip_high is read by trust="clip" only'),
        ({"dual_clip": 3.0, "trust": "clip", "ratio": "geometric"}, "dual_clip is read by"),
        ({"tau_low": 2.0}, 'tau_low is read by trust="sapo" only'),
        ({"delta": 0.1, "trust": "clip"}, 'delta is read by trust="tv" only'),
        ({"reward_cap": 2.0}, 'reward_cap is read by advantage="ngrpo" only'),
        ({"std_floor": 1.0}, "std_floor is read by"),
        ({"constant": 8.0}, 'constant is read by average="constant" or kl_average="constant" only'),
        ({"decay": 0.5}, 'decay is read by advantage="running" only'),
        ({"mismatch_low": 0.5, "mismatch": "sequence"}, "mismatch_low is read by"),
        ({"mismatch_high": 2.0}, "mismatch_high is read by"),
        ({"kl_in": "reward"}, "kl_in is read by kl above 0 only"),
        ({"kl": 0.1, "kl_in": "reward", "kl_estimator": "k2"}, "kl_estimator is read by kl above 0 in the loss only"),
        ({"kl": 0.1, "kl_in": "reward", "kl_gradient": "naive"}, "kl_gradient is read by"),
        ({"ratio": "none", "trust": "clip"}, 'ratio is "none"'),
        ({"ratio": "none", "anchor": "start"}, "anchor is read by"),
        ({"ratio": "geometric", "trust": "cispo"}, "clips in its own way"),
        ({"ratio": "sequence", "trust": "tv"}, "compares each token with its sampler"),
        ({"anchor": "start", "trust": "tv"}, "compares each token with its sampler"),
        ({"anchor": "start", "trust": "sapo"}, "not made for a decoupled ratio"),
        ({"mismatch": "truncate"}, "twice"),
        ({"mismatch": "icepop", "mismatch_low": 6.0}, "mismatch_low=6 and mismatch_high=5, which is nothing"),
        ({"mismatch": "geometric", "mismatch_high": 0.9}, "mismatch_low=0.99 and mismatch_high=0.9"),
    ],
)
def test_a_field_that_nothing_reads_is_refused(fields, said):
    with pytest.raises(UserError, match=said):
        PolicyGradient(**fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PPO, {"advantage": "std"}),
        (PPO, {"std_floor": 0.1}),
        (PPO, {"value_clip": 0.0}),
        (VinePPO, {"reward_cap": 2.0}),
        (VinePPO, {"decay": 0.5}),
        (GDPO, {"reward_cap": 2.0}),
    ],
)
def test_a_credit_of_its_own_refuses_fields_of_the_rules_it_does_not_use(kind, fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        kind(**fields)
    assert GDPO(std_floor=0.1).std_floor == 0.1


def test_a_presets_own_default_is_no_slip():
    assert GSPO(trust="none").clip_low == 3e-4
    assert PolicyGradient(kl=0.1, kl_in="reward", kl_estimator="k1").streams == ("policy",)
    with pytest.raises(UserError, match="clip_low"):
        GSPO(trust="none", clip_low=0.1)


def test_tolerated_lag_follows_the_rules():
    assert PolicyGradient(ratio="none").max_lag == 0
    assert PolicyGradient().max_lag == PolicyGradient(trust="clip").max_lag == 2
    assert PolicyGradient(trust="tv").max_lag == PolicyGradient(trust="cispo").max_lag == 8
