"""Supervised fine-tuning: the masked mean by hand, the order of batches, callbacks, held-out loss."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rlready.algorithms import SFT, nll
from rlready.errors import UserError
from rlready.types import Row, Verdict
from tests.algorithms.toy_bigram import Bigram, clone, group_of, policy_of


def segments():
    # Context 0 1, learn 2 3, tool reply 0 (masked), learn 1 at half weight.
    return Row.from_segments([([0, 1], 0.0), ([2, 3], 1.0), ([0], 0.0), ([1], 0.5)])


def test_masked_mean_over_segments_by_hand():
    learner = Bigram()
    logp = torch.log_softmax(learner.table.detach(), -1)
    expected = -(logp[1, 2] + logp[2, 3] + 0.5 * logp[0, 1]).item() / 2.5
    assert nll(policy_of(learner), [segments()]) == pytest.approx(expected, rel=1e-6)
    [metrics] = SFT().fit_rows(policy_of(learner), [segments()])
    assert metrics["loss/nll"] == pytest.approx(expected, rel=1e-6)


def test_masked_tokens_have_no_gradient():
    learner = Bigram(lr=1.0)
    before = learner.table.detach().clone()
    SFT().fit_rows(policy_of(learner), [segments()])
    moved = (learner.table.detach() - before).abs().sum(1) > 0
    assert moved.tolist() == [
        True,
        True,
        True,
        False,
    ]  # contexts 1, 2 and 0 predict learnt tokens; 3 predicts a masked one


def order_of(seed, epochs=1):
    learner = Bigram()
    rows = [Row.from_segments([([0, i % 4] + [1] * i, 1.0)]) for i in range(8)]
    SFT().fit_rows(policy_of(learner), rows, epochs=epochs, batch_tokens=1, seed=seed)
    return [len(batch.rows[0]) for batch in learner.seen]


def test_order_is_hashed_from_seed_and_epoch():
    assert order_of(1) == order_of(1) and order_of(1) != order_of(2)
    twice = order_of(1, epochs=2)
    assert sorted(twice[:8]) == sorted(twice[8:]) and twice[:8] != twice[8:]
    assert twice[:8] != order_of(2)[:8] and twice[8:] != order_of(2)  # seeds are not shifted copies of each other


def test_progress_is_reported_and_can_stop():
    seen: list[tuple[int, int]] = []
    rows = [segments() for _ in range(5)]

    def on_step(step, total, metrics):
        seen.append((step, total))
        assert metrics["loss/nll"] > 0 and metrics["grad_norm"] > 0
        return step == 3

    learner = Bigram()
    policy = policy_of(learner)
    history = SFT().fit_rows(policy, rows, batch_tokens=1, epochs=2, on_step=on_step)
    assert seen == [(1, 10), (2, 10), (3, 10)] and len(history) == 3
    assert policy.version == learner.version == 3


def test_it_learns_what_it_is_shown():
    learner = Bigram(adam=True, lr=0.1)
    policy = policy_of(learner)
    train = [Row.from_segments([([i % 4], 0.0), ([(i + 1) % 4, (i + 2) % 4], 1.0)]) for i in range(16)]
    before = nll(policy, train)
    SFT().fit_rows(policy, train, epochs=40, batch_tokens=12)
    assert nll(policy, train) < 0.1 < before


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_accumulation_is_one_big_batch(average):
    tables = []
    rows = [segments(), Row.from_segments([([0], 0.0), ([1, 2, 3, 3, 3], 1.0)]), Row.from_segments([([3, 1], 1.0)])]
    for micro in (1, 100):
        learner = Bigram(micro=micro)
        SFT(average=average).fit_rows(policy_of(learner), rows, batch_tokens=1000, epochs=2)
        tables.append(learner.table.detach())
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-12, atol=1e-12)


def test_all_masked_is_said():
    with pytest.raises(UserError, match="none of the 2 rows has a token with weight"):
        SFT().fit_rows(policy_of(Bigram()), [Row.from_segments([([0, 1], 0.0)])] * 2)
    with pytest.raises(UserError, match="none of the 0 rows"):
        SFT().fit_rows(policy_of(Bigram()), [])


def test_held_out_loss_of_nothing_is_nan_not_zero():
    assert np.isnan(nll(policy_of(Bigram()), [Row.from_segments([([0, 1], 0.0)])]))


def test_only_right_clones_successes_alone():
    right, every = Bigram(), Bigram()
    group = group_of(1.0, 0.0)
    for t in group.trajectories:
        t.verdict = Verdict.RIGHT if t.reward else Verdict.WRONG
        t.turns[0].logprobs = []  # demonstrations have none, and need none
    only = clone(right)
    asyncio.run(SFT(only_right=True).update(policy_of(only), [group]))
    asyncio.run(SFT().update(policy_of(every), [group]))
    moved = lambda m, token: (m.table.detach() - right.table.detach())[0, token].item()  # noqa: E731
    assert moved(only, 1) > 0 > moved(only, 2)  # the failure's token 2 is only what the success pushes aside
    assert moved(every, 1) > 0 and moved(every, 2) > 0
