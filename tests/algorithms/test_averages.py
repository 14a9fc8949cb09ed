"""What a mean is over, by hand, and under gradient accumulation.

The matrix of rows, with the loss of each trained token (context is masked, weights 1):

    row  group  trajectory  losses        row mean
    A    0      0           1  2  3       2
    B    0      0           5             5            (trajectory 0 was rewritten once: two rows)
    C    0      1           10 20         15
    D    1      2           7             7

    token        (1+2+3+5+10+20+7) / 7                         = 48 / 7
    sequence     (2 + 5 + 15 + 7) / 4                          = 29 / 4
    trajectory   ((1+2+3+5)/4 + 15 + 7) / 3 = (2.75 + 22) / 3  = 8.25
    group        ((1+2+3+5+10+20)/6 + 7) / 2 = (41/6 + 7) / 2  = 83 / 12
    constant 8   48 / (8 x 3)                                  = 2
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.algorithms.base import Algorithm, denominators, reweigh, stream_sum, trajectories_of
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Batch, Loss, Outputs
from tests.algorithms.toy_bigram import Bigram, policy_of, row_of

LOSSES = [[1.0, 2.0, 3.0], [5.0], [10.0, 20.0], [7.0]]
OWNERS = [0, 0, 1, 2]
GROUPS = [0, 0, 0, 1]


def matrix():
    # Two context tokens, then the trained ones. A token's loss is carried in `advantage`, for the test's loss to read.
    return [
        row_of([0] * (2 + len(losses)), [0, 0] + [1] * len(losses), advantage=[0, 0, *losses], trajectory=t, group=g)
        for losses, t, g in zip(LOSSES, OWNERS, GROUPS, strict=True)
    ]


class Carried(PolicyGradient):
    """Its loss is the advantage column itself, times a parameter-dependent 1 (so that there is a gradient)."""

    def terms(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        one = torch.exp(outputs.logprobs - outputs.logprobs.detach())
        return {"policy": torch.where(batch.weights["policy"] > 0, batch.advantage, 0.0) * one}

    def loss(self, outputs: Outputs, batch: Batch) -> Loss:
        return Algorithm.loss(self, outputs, batch)


BY_HAND = [("token", 48 / 7), ("sequence", 29 / 4), ("trajectory", 8.25), ("group", 83 / 12), ("constant", 2.0)]


@pytest.mark.parametrize("micro", [1, 2, 3, 100])
@pytest.mark.parametrize(("average", "expected"), BY_HAND)
def test_mean_by_hand_whatever_the_microbatch(average, expected, micro):
    learner = Bigram(micro=micro)
    metrics = Carried(average=average, constant=8 if average == "constant" else 1).fit(policy_of(learner), matrix())
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("average", [name for name, _ in BY_HAND])
def test_accumulated_gradient_is_that_of_one_batch(average):
    algorithm = Carried(average=average, constant=8 if average == "constant" else 1)
    grads = []
    for micro in (1, 3, 100):
        learner = Bigram(micro=micro)
        rows = reweigh(matrix(), average)
        grads.append(
            learner.gradient(lambda: learner.forward_backward(rows, algorithm.loss, algorithm.weigh(rows)))  # noqa: B023
        )
    assert grads[0].abs().sum() > 0.1
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("minibatches", [1, 2, 3])
@pytest.mark.parametrize(("average", "expected"), BY_HAND)
def test_mean_of_minibatches_is_the_mean_of_the_update(average, expected, minibatches):
    """Denominators are the update's: a small minibatch's tokens weigh no more than a large one's."""
    metrics = Carried(average=average, constant=8 if average == "constant" else 1, minibatches=minibatches).fit(
        policy_of(Bigram()), matrix()
    )
    assert metrics["optimizer_steps"] == minibatches
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-6)


class Rank(Bigram):
    """One of two ranks: it knows what the other one's sums are."""

    other: dict[str, float] = {}  # noqa: RUF012

    def total(self, sums):
        return {name: sums.get(name, 0.0) + self.other.get(name, 0.0) for name in {*sums, *self.other}}


@pytest.mark.parametrize(("average", "expected"), BY_HAND)
def test_denominators_are_of_all_ranks(average, expected):
    """Rank 0 has the rows of group 0, rank 1 that of group 1: their losses, and gradients, add up to the whole's."""
    algorithm = Carried(average=average, constant=8 if average == "constant" else 1)
    parts = (matrix()[:3], matrix()[3:])
    sums = [algorithm.sizes(algorithm.reweigh(rows)) for rows in parts]
    total = 0.0
    for own, rows in enumerate(parts):
        learner = Rank()
        learner.other = sums[1 - own]
        total += algorithm.fit(policy_of(learner), rows)["loss/policy"]
    assert total == pytest.approx(expected, rel=1e-6)


def test_a_rank_without_any_weight_divides_by_the_others():
    learner = Rank()
    learner.other = {"policy": 4.0}
    assert Carried().fit(policy_of(learner), [row_of([0, 1], [0, 0])])["loss/policy"] == 0.0


def test_a_kl_may_have_an_average_of_its_own():
    # Policy over tokens, KL as a sum over each trajectory, then a mean over the three of them (VinePPO).
    algorithm = PolicyGradient(kl=0.1, kl_average="constant")
    rows = matrix()
    for row in rows:
        row.weights["kl"] = row.weights["policy"].copy()
    assert algorithm.weigh(algorithm.reweigh(rows)) == {"policy": 7.0, "kl": 3.0}
    algorithm = PolicyGradient(kl=0.1, kl_average="sequence", average="trajectory")
    scaled = algorithm.reweigh(rows)
    assert scaled[0].weights["policy"].tolist() == [0, 0, 0.25, 0.25, 0.25]
    assert scaled[0].weights["kl"].tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert algorithm.weigh(scaled) == pytest.approx({"policy": 3.0, "kl": 4.0})


def test_reweigh_gives_scaled_copies():
    rows = matrix()
    before = [row.weights["policy"].copy() for row in rows]
    scaled = reweigh(rows, "trajectory")
    for row, old in zip(rows, before, strict=True):
        assert np.array_equal(row.weights["policy"], old)
    assert scaled[0].weights["policy"].tolist() == [0, 0, 0.25, 0.25, 0.25]
    assert scaled[1].weights["policy"].tolist() == [0, 0, 0.25]
    assert scaled[2].weights["policy"].tolist() == [0, 0, 0.5, 0.5]


def test_fractional_weights_count_as_given():
    # One row, weights 1 and 3 on losses 10 and 20: every mode but "constant" gives (10 + 60) / 4 = 17.5.
    for average in ("token", "sequence", "trajectory", "group"):
        row = row_of([0, 0, 0], [0, 1, 3], advantage=[0, 10, 20])
        metrics = Carried(average=average).fit(policy_of(Bigram()), [row])
        assert metrics["loss/policy"] == pytest.approx(17.5)


def test_each_stream_has_its_own_denominator():
    # "policy" on three tokens of two rows, "kl" on one token of one row.
    a, b = row_of([0, 1, 1], [0, 1, 1]), row_of([0, 1], [0, 1])
    a.weights["kl"] = np.asarray([0, 0, 1], dtype=np.float32)
    b.weights["kl"] = np.zeros(2, dtype=np.float32)
    assert denominators([a, b], "token", 1.0) == {"kl": 1.0, "policy": 3.0}
    assert denominators(reweigh([a, b], "sequence"), "sequence", 1.0) == {"kl": 1.0, "policy": 2.0}


def test_a_stream_without_weight_is_zero_not_nan():
    row = row_of([0, 1], [0, 0])
    batch_loss = Carried().fit(policy_of(Bigram()), [row])["loss/policy"]
    assert denominators([row], "token", 1.0) == {"policy": 1.0}
    assert batch_loss == 0.0


def test_nan_outside_the_mask_cannot_reach_loss_or_gradient():
    values = torch.tensor([[float("nan"), 2.0, float("inf")]], requires_grad=True)
    batch = Batch([], *[torch.zeros(1, 3)] * 3, {"s": torch.tensor([[0.0, 1.0, 0.0]])}, {"s": 1.0}, torch.ones(1, 3))
    total = stream_sum("s", values, batch)
    total.backward()
    assert total.item() == 2.0
    assert values.grad is not None and values.grad.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_rows_of_a_trajectory_share_a_minibatch(minibatches):
    learner = Bigram()
    Carried(average="trajectory", minibatches=minibatches, seed=3).fit(policy_of(learner), matrix())
    assert learner.version == minibatches
    seen = [{row.trajectory for row in batch.rows} for batch in learner.seen]
    assert sum(len(s) for s in seen) == 3  # no trajectory appears in two minibatches


def test_more_minibatches_than_trajectories_is_not_an_error():
    learner = Bigram()
    metrics = Carried(minibatches=50, epochs=2).fit(policy_of(learner), matrix())
    assert metrics["optimizer_steps"] == learner.version == 6


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=8),
    micro=st.integers(1, 8),
    data=st.data(),
)
def test_trajectory_mean_for_any_cut_into_rows(lengths, micro, data):
    rows, losses = [], []
    for n, owner in lengths:
        x = data.draw(st.lists(st.floats(-5, 5, width=32), min_size=n, max_size=n))
        rows.append(row_of([0] * (n + 1), [0] + [1] * n, advantage=[0, *x], trajectory=owner))
        losses.append((owner, x))
    by_owner: dict[int, list[float]] = {}
    for owner, x in losses:
        by_owner.setdefault(owner, []).extend(x)
    expected = np.mean([np.mean(x) for x in by_owner.values()])
    metrics = Carried(average="trajectory").fit(policy_of(Bigram(micro=micro)), rows)
    assert metrics["loss/policy"] == pytest.approx(expected, abs=1e-5)
    assert len(trajectories_of(rows)) == len(by_owner)


def test_fields_that_cannot_work_are_refused():
    with pytest.raises(UserError, match="average"):
        Carried(average="mean")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="minibatches"):
        Carried(minibatches=0)
    with pytest.raises(UserError, match="constant"):
        Carried(constant=0)
