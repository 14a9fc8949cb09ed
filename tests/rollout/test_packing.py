"""Packing: nothing is lost, budgets hold, and what is saved on long-tailed lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.policy.tiny.batching import cut
from rlready.recipes.magistral.tables import long_tail, padding_shares
from rlready.rollout.packing import in_order, pack, padding, similar
from rlready.types import Row

LENGTHS = st.lists(st.integers(1, 50), max_size=60)


def test_longest_first_into_the_first_with_room() -> None:
    assert pack([3, 9, 4, 6, 1], 10) == [[1, 4], [3, 2], [0]]
    assert in_order([3, 9, 4, 6, 1], 10) == [[0], [1], [2, 3], [4]]
    assert in_order([3, 3, 9, 1], 12, padded=True) == [[0, 1], [2], [3]]
    assert similar([3, 9, 4, 6, 1], 12) == [[1], [3, 2], [0, 4]]
    assert pack([20, 5], 10) == [[0], [1]]


def test_padding_by_hand() -> None:
    lengths = [4, 2, 2]
    assert padding(lengths, [[0, 1], [2]]) == pytest.approx(1 - 8 / 10)
    assert padding(lengths, [[0, 1], [2]], budget=8) == pytest.approx(1 - 8 / 16)
    assert padding([20, 4], [[0], [1]], budget=8) == pytest.approx(1 - 24 / 28)
    assert padding([], []) == 0.0


@given(LENGTHS, st.integers(1, 80))
def test_every_sequence_once_and_budgets_hold(lengths: list[int], budget: int) -> None:
    for batches, padded in (
        (pack(lengths, budget), False),
        (in_order(lengths, budget), False),
        (in_order(lengths, budget, padded=True), True),
        (similar(lengths, budget), True),
    ):
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        for batch in batches:
            sizes = [lengths[i] for i in batch]
            assert len(batch) == 1 or (max(sizes) * len(batch) if padded else sum(sizes)) <= budget
        assert 0 <= padding(lengths, batches, None if padded else budget) < 1


@given(LENGTHS, st.integers(50, 80))
def test_first_fit_leaves_at_most_one_batch_half_empty(lengths: list[int], budget: int) -> None:
    held = [sum(lengths[i] for i in batch) for batch in pack(lengths, budget)]
    assert sum(2 * h <= budget for h in held) <= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [2048, 8192])
def test_at_least_a_tenth_less_padding_on_long_tailed_lengths(seed: int, budget: int) -> None:
    share = padding_shares(long_tail(seed), budget)
    assert share["packed, greedy"] <= 0.9 * share["packed, in order"]
    assert share["padded, similar lengths"] <= 0.9 * share["padded, in order"]


def test_the_learners_cut_as_similar_does() -> None:
    lengths = long_tail(1, 64)
    rows = [Row.from_segments([(range(n), 1.0)]) for n in lengths]
    assert cut(rows, 4096) == similar(lengths, 4096)
    assert np.sum(lengths) == sum(len(row) for row in rows)


def test_a_budget_must_be_positive() -> None:
    for rule in (pack, in_order, similar):
        with pytest.raises(UserError, match="at least 1"):
            rule([1], 0)
