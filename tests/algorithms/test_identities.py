"""Methods that are one another in a special case, and what may not change an update."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.algorithms import (
    CISPO,
    DPPO,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    NGRPO,
    RLOO,
    SAPO,
    DrGRPO,
    Reinforce,
    algorithm,
)
from rlready.algorithms.base import run_weights
from rlready.algorithms.policy_gradient import PolicyGradient
from rlready.algorithms.presets import PassK
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.types import Group, Task, Trajectory, Turn
from tests.algorithms.toy_bigram import Bigram, Bound, group_of, policy_of, row_of, with_behaviour

OWN = ["reinforce", "rloo", "grpo", "drgrpo", "dapo", "gspo", "luspo", "gmpo", "reinforce++", "maxrl", "ngrpo", "passk",
       "cispo", "sapo", "dppo", "magistral"]  # fmt: skip


def step(algo, rows, learner=None):
    """How far one optimizer step of size 1 moves the table."""
    learner = learner or Bound(lr=1.0)
    before = learner.table.detach().clone()
    algo.fit(policy_of(learner), rows)
    return learner.table.detach() - before


def drawn(seed, lengths, gap=0.3, trajectories=None):
    """Rows of so many tokens with random advantages, sampled by something `gap` away from the learner."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, n in enumerate(lengths):
        tokens = rng.integers(0, 4, n + 1).tolist()
        advantage = float(rng.normal())
        owner = i if trajectories is None else trajectories[i]
        rows.append(row_of(tokens, [0] + [1] * n, advantage=advantage, trajectory=owner, group=owner // 2))
    for row, logprobs in zip(rows, Bigram().logprobs(rows), strict=True):
        noise = np.where(row.weights["policy"] > 0, rng.normal(scale=gap, size=len(row)), 0)
        row.logprobs = (logprobs + noise).astype(np.float32)
    return rows


def advantages(algo, *rewards):
    group = group_of(*rewards)
    asyncio.run(algo.credit([group], policy_of(Bigram())))
    return [t.turns[0].advantage for t in group]


@given(st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_gspo_of_one_token_is_grpo(seed):
    rows = drawn(seed, [1] * 6)
    mine = step(GSPO(clip_low=0.2, clip_high=0.2), rows)
    torch.testing.assert_close(mine, step(GRPO(), rows))
    assert mine.abs().sum() > 0
    longer = drawn(seed, [4] * 6)
    assert not torch.allclose(step(GSPO(trust="none"), longer), step(GRPO(trust="none"), longer), atol=1e-4)


@given(st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_gmpo_of_one_token_is_a_clip_in_log_space(seed):
    """e^min(log r, .4) = min(r, e^.4): PPO's clip with other widths."""
    rows = drawn(seed, [1] * 6, gap=0.6)
    clip = GRPO(clip_low=1 - np.exp(-0.4), clip_high=np.exp(0.4) - 1)
    torch.testing.assert_close(step(GMPO(), rows), step(clip, rows))


def test_gmpo_without_clip_is_gspo_without_clip():
    rows = drawn(3, [3, 1, 5])
    torch.testing.assert_close(step(GMPO(trust="none"), rows), step(GSPO(trust="none"), rows))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_rloo_is_dr_grpo_scaled(rewards):
    n = len(rewards)
    scaled = [n / (n - 1) * a for a in advantages(DrGRPO(), *rewards)]
    assert advantages(RLOO(), *rewards) == pytest.approx(scaled, abs=1e-9)


@given(st.integers(2, 40))
def test_ngrpo_of_an_all_wrong_group(n):
    assert advantages(NGRPO(), *[0.0] * n) == pytest.approx([-1 / np.sqrt(n)] * n)
    assert advantages(NGRPO(), *[1.0] * n) == [0.0] * n  # the virtual answer is no better


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_pass_k_sums_to_the_lead_of_the_best(rewards):
    a = advantages(PassK(), *rewards)
    first, second = sorted(rewards)[-1], sorted(rewards)[-2]
    assert sum(a) == pytest.approx(first - second) and sum(x > 0 for x in a) <= 1 and min(a) >= 0


def test_luspo_is_gspo_times_length():
    """Answers of equal length: LUSPO is that length times GSPO. Of several: each answer's loss times its own."""
    rows = drawn(1, [3, 3, 3])
    torch.testing.assert_close(step(LUSPO(), rows), 3 * step(GSPO(), rows))
    rows = drawn(2, [2, 5, 1])
    parts = [step(GSPO(), [row]) for row in rows]
    expected = sum(n * part for n, part in zip((2, 5, 1), parts, strict=True)) / 3
    torch.testing.assert_close(step(LUSPO(), rows), expected)


def test_on_policy_all_trust_regions_take_the_same_step():
    rows = drawn(5, [2, 4, 3], gap=0.0)
    plain = step(PolicyGradient(ratio="none"), rows)
    for algo in (PolicyGradient(), PolicyGradient(trust="clip"), CISPO(), SAPO(average="token"), DPPO(behaviour=0)):
        torch.testing.assert_close(step(algo, rows), plain, atol=1e-6, rtol=1e-5)


def test_cispo_is_importance_weighted_reinforce_below_its_cap():
    rows = drawn(6, [2, 4, 3])
    torch.testing.assert_close(step(CISPO(), rows), step(PolicyGradient(), rows), atol=1e-7, rtol=1e-5)
    assert not torch.allclose(step(CISPO(cap=0.5), rows), step(PolicyGradient(), rows), atol=1e-4)


def test_reinforce_with_groups_of_one_task_is_dr_grpo():
    assert advantages(Reinforce(), 1.0, 0.0, 0.5) == pytest.approx(advantages(DrGRPO(), 1.0, 0.0, 0.5))


@pytest.mark.parametrize("name", OWN)
def test_ratio_is_one_on_policy(name):
    learner = Bound()
    groups = [group_of(1.0, 0.0, 0.5, learner=learner, name=n, tokens=k) for n, k in (("a", 2), ("b", 3))]
    metrics = asyncio.run(algorithm(name).update(policy_of(learner), groups))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-6) == metrics["ratio/max"]
    assert metrics["clip/fraction"] == pytest.approx(0, abs=1e-6)
    assert metrics["mismatch/kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["grad_norm"] > 0


# -- what changes nothing --------------------------------------------------------------------------------------------

RULES = {name: {} for name in OWN} | {
    "start": {"anchor": "start", "mismatch": "truncate"},
    "masks": {"mismatch": "geometric", "mismatch_low": 0.8, "mismatch_high": 1.25, "opsm": 0.05, "veto": 0.5},
    "kl": {"kl": 0.1, "kl_average": "constant", "behaviour": 0.1, "entropy": 0.1},
    "group": {"average": "group"},
}


def rules(name):
    return PolicyGradient(**RULES[name]) if name not in OWN else algorithm(name)


def with_streams(rows, algo):
    for row in rows:
        row.weights = {stream: row.weights["policy"].copy() for stream in algo.streams}
        row.version = np.where(row.weights["policy"] > 0, 0, -1)
    return rows


@pytest.mark.parametrize("name", RULES)
def test_micro_batches_and_padding_change_nothing(name):
    algo = rules(name)
    owners = [0, 1, 1, 2, 3, 3]
    moves = []
    for micro in (1, 2, 100):
        rows = with_streams(drawn(11, [3, 1, 4, 2, 5, 2], trajectories=owners), algo)
        moves.append(step(algo, rows, Bound(lr=1.0, micro=micro)))
    assert moves[0].abs().sum() > 1e-3
    for other in moves[1:]:
        torch.testing.assert_close(other, moves[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_masked_nan_poisons_nothing(name):
    """Nan in every column of context and padding (`toy_bigram.pad` adds the latter), and none in the step."""
    algo = rules(name)
    clean = with_streams(drawn(12, [3, 1, 4]), algo)
    dirty = with_streams(drawn(12, [3, 1, 4]), algo)
    for row in dirty:
        for column in (row.logprobs, row.advantage):
            column[row.weights["policy"] == 0] = np.nan
    torch.testing.assert_close(step(algo, dirty), step(algo, clean))


@pytest.mark.parametrize("average", ["token", "sequence", "trajectory", "group", "constant"])
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_minibatches_never_change_a_tokens_weight(average, data):
    """Without curvature (a linear loss on a frozen ratio) m minibatches move the table by m times one batch's step.

    So the sum of the minibatches' gradients is the whole gradient, times m: each token weighs the same in both.
    """
    owners = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=8))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=len(owners), max_size=len(owners)))
    minibatches = data.draw(st.integers(1, 5))
    algo = Frozen(average=average, constant=3.0 if average == "constant" else 1.0)
    rows = drawn(data.draw(st.integers(0, 99)), lengths, trajectories=owners)
    whole = step(algo, rows)
    cut = Frozen(average=average, constant=3.0 if average == "constant" else 1.0, minibatches=minibatches, seed=1)
    pieces = min(minibatches, len(set(owners)))
    torch.testing.assert_close(step(cut, rows), pieces * whole, rtol=1e-6, atol=1e-9)


class Frozen(PolicyGradient):
    """Its gradient is the same at every table: advantage times the number of times a token follows another."""

    def terms(self, outputs, batch):
        before = torch.cat([batch.tokens[:, :1], batch.tokens[:, :-1]], 1)
        logits = Frozen.learner.table[before, batch.tokens]
        return {"policy": -torch.where(batch.weights["policy"] > 0, batch.advantage, 0.0) * logits}

    def fit(self, policy, rows):
        Frozen.learner = policy.learner
        return super().fit(policy, rows)

    learner: Bigram


def test_packing_order_changes_nothing():
    rows = drawn(13, [3, 1, 4, 2])
    torch.testing.assert_close(step(GRPO(), rows), step(GRPO(), rows[::-1]), rtol=1e-9, atol=1e-12)


def test_a_rewritten_context_does_not_change_a_sequence_ratio():
    """An episode of two turns is one row, or, its context rewritten with the same last token, two: the same ratio."""
    task = Task.of("t")

    def groups(rewritten):
        first = Turn([0], [1, 2])
        second = Turn([3, 2] if rewritten else [0, 1, 2, 2], [3, 1], parent=None if rewritten else 0)
        trajectories = [Trajectory(task, [first, second], reward=1.0), Trajectory(task, [Turn([0], [3])], reward=0.0)]
        with_behaviour(Bigram(), trajectories)
        for trajectory in trajectories:
            for turn in trajectory.turns:
                turn.logprobs = [x - 0.1 * (i + 1) for i, x in enumerate(turn.logprobs)]
        return [Group(task, trajectories)]

    seen = []
    for rewritten in (False, True):
        learner = Bound(lr=1.0, micro=1)
        before = learner.table.detach().clone()
        metrics = asyncio.run(GSPO(trust="none").update(policy_of(learner), groups(rewritten)))
        seen.append((learner.table.detach() - before, metrics["ratio/mean"], metrics["rows"]))
    torch.testing.assert_close(seen[0][0], seen[1][0], atol=1e-6, rtol=1e-5)
    assert seen[0][1] == pytest.approx(seen[1][1]) and (seen[0][2], seen[1][2]) == (2, 3)


@pytest.mark.parametrize("algo", [GSPO(trust="none"), GMPO(), GRPO(opsm=0.01, trust="none")])
def test_a_transformer_keeps_a_trajectory_together(algo):
    """Rows of a trajectory that share nothing, in micro-batches as small as can be, or in one: the same gradient."""
    task = Task.of("t")
    gradients = []
    for micro in (1, 10_000):
        policy = TinyPolicy.create(
            ChatRenderer(word_tokenizer(["a b c d"])), TinyConfig(dim=16, layers=1, heads=2, max_len=16), 0
        )
        policy.learner.micro_tokens = micro
        trajectories = []
        for i in range(4):
            turns = [Turn([1, 2], [3, 4, 2][: 1 + i % 3]), Turn([4, 3, 1 + i % 2], [2, 3, 3, 1][: 4 - i])]
            trajectories.append(Trajectory(task, turns, reward=float(i % 2)))
        with_behaviour(policy.learner, trajectories)
        for i, trajectory in enumerate(trajectories):
            for turn in trajectory.turns:
                turn.logprobs = [x + 0.1 * (i - 1.5) + 0.05 * t for t, x in enumerate(turn.logprobs)]
        asyncio.run(algo.credit([group := Group(task, trajectories)], policy))
        rows, _ = algo.prepare(policy, algo.compile([group]))
        assert len(rows) == 8
        rows = algo.reweigh(rows)
        policy.learner.forward_backward(rows, algo.loss, algo.weigh(rows) | run_weights(rows))
        gradients.append(torch.cat([p.grad.flatten() for p in policy.learner.model.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
