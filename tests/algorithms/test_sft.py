"""Supervised fine-tuning: the masked mean by hand, the order of batches, callbacks, held-out loss."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rlready.algorithms import SFT, nll
from rlready.algorithms.sft import RestEM
from rlready.errors import UserError
from rlready.types import Group, Row, Task, Trajectory, Turn, Verdict
from tests.algorithms.say_digit import learn, tiny
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


# -- rejection-sampling fine-tuning ----------------------------------------------------------------------------------


def answers(name, *each):
    """A group of trajectories, given as (completion, verdict)."""
    task = Task.of(name)
    made = [Trajectory(task, [Turn([0], list(ids))], reward=float(v is R), verdict=v) for ids, v in each]
    return Group(task, made)


R, W = Verdict.RIGHT, Verdict.WRONG


def said(groups):
    return [(g.task.prompt[0].text, [t.turns[0].completion_ids for t in g]) for g in groups]


def test_what_rest_em_keeps():
    groups = [
        answers("a", ([1], R), ([1], R), ([2], W), ([2, 3], R)),
        answers("b", ([1], W)),
        answers("a", ([1], R), ([3], R)),  # the same task again: its answers are counted together
    ]
    assert said(RestEM().kept(groups, key=0)) == [("a", [[1], [2, 3], [3]])]
    assert said(RestEM(distinct=False).kept(groups, key=0)) == [("a", [[1], [1], [2, 3], [1], [3]])]
    [(_, two)] = said(RestEM(per_task=2).kept(groups, key=0))
    assert len(two) == 2 and two == said(RestEM(per_task=2).kept(groups, key=0))[0][1]
    drawn = {str(said(RestEM(per_task=2).kept(groups, key=k))) for k in range(20)}
    assert len(drawn) == 3  # every pair of the three is drawn by some key


def test_a_wrong_or_failed_answer_is_never_learnt():
    group = answers("a", ([1], R), ([2], W), ([3], R))
    group.trajectories[2].failure = "the environment died"
    policy = tiny(0)
    policy.learner.freeze_reference()
    metrics = asyncio.run(RestEM().update(policy, [group]))
    assert metrics["right"] == metrics["kept"] == metrics["rows"] == 1


def weights(policy):
    return {name: tensor.clone() for name, tensor in policy.learner.weights().items()}


def test_every_iteration_starts_from_the_base():
    """A drifted policy ends where the base itself would have ended; without `from_base` it does not."""

    def after(drift, **fields):
        policy = tiny(0)
        policy.learner.freeze_reference()
        if drift:
            SFT().fit_rows(policy, [Row.from_segments([([1], 0.0), ([4, 5], 1.0)])], epochs=5)
        group = answers("a", ([1, 2], R), ([2], R))
        # The order of minibatches is hashed from the version, so there is one.
        asyncio.run(RestEM(minibatches=1, **fields).update(policy, [group]))
        return policy

    base, drifted = after(False), after(True)
    assert drifted.learner.version == base.learner.version + 5 == drifted.version
    for name, tensor in weights(base).items():
        assert torch.equal(tensor, weights(drifted)[name])
    kept = after(True, from_base=False)
    assert any(not torch.equal(tensor, weights(kept)[name]) for name, tensor in weights(base).items())


def test_the_base_outlives_a_checkpoint():
    policy, resumed = tiny(0), tiny(1)
    policy.learner.freeze_reference()
    group = answers("a", ([1, 2], R), ([2], R))
    asyncio.run(RestEM().update(policy, [group]))
    resumed.learner.load_state_dict(policy.learner.state_dict())
    for each in (policy, resumed):
        asyncio.run(RestEM().update(each, [answers("b", ([3], R), ([1], R))]))
    for name, tensor in weights(policy).items():
        assert torch.equal(tensor, weights(resumed)[name])


def test_without_right_answers_the_policy_stays():
    policy = tiny(0)
    policy.learner.freeze_reference()
    SFT().fit_rows(policy, [Row.from_segments([([1], 0.0), ([4, 5], 1.0)])])
    before = weights(policy)
    metrics = asyncio.run(RestEM().update(policy, [answers("a", ([1], W))]))
    assert metrics["right"] == metrics["kept"] == metrics["optimizer_steps"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(policy).items())


def test_without_a_base_it_says_so():
    with pytest.raises(UserError, match="freeze_reference"):
        asyncio.run(RestEM().update(tiny(0), [answers("a", ([1], R))]))


@pytest.mark.parametrize("fields", [{"per_task": 0}, {"only_right": False}])
def test_fields_of_rest_em_that_cannot_work_are_refused(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        RestEM(**fields)


@pytest.mark.parametrize("from_base", [True, False])
def test_rest_em_learns(from_base):
    first, last, metrics = learn(RestEM(from_base=from_base), 0, steps=15)
    assert first < 0.4 and last >= 0.7, (first, last)
    assert metrics["kept"] <= 6 * 10
