"""Rows that share a prefix are computed together, and nothing that is learned changes by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.policy.base import Batch, Loss, Outputs
from rlready.policy.tiny.learner import TinyLearner
from rlready.policy.tiny.sharing import bundle, lay_out
from rlready.types import Row
from tests.policy.tiny_fixtures import model


def row(tokens: list[int], trained: int, group: int) -> Row:
    """A row whose last `trained` tokens have a weight."""
    n = len(tokens)
    weight = np.zeros(n, np.float32)
    weight[n - trained :] = 1.0
    advantage = np.linspace(-1, 1, n, dtype=np.float32)
    ids = np.asarray(tokens, np.int64)
    zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
    return Row(ids, {"policy": weight}, zeros, advantage, ones, group=group)


def loss(outputs: Outputs, batch: Batch) -> Loss:
    """A weighted sum with a nonlinear part, so that every token's number matters by itself."""
    terms = outputs.logprobs.exp() * batch.advantage + outputs.logprobs
    return Loss((batch.weights["policy"] * terms).sum() / batch.denominators["policy"], {})


def gradients(learner: TinyLearner, rows: list[Row]) -> dict[str, torch.Tensor]:
    """What one pass leaves in the weights."""
    learner.model.zero_grad()
    learner.forward_backward(rows, loss, {"policy": 7.0})
    return {name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None}


groups_of_rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, 22), min_size=1, max_size=14),
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(groups_of_rows)
def test_log_probabilities_and_gradients_are_those_of_rows_on_their_own(
    groups: list[tuple[list[int], list[list[int]]]],
) -> None:
    together = [row(prompt + own, len(own), g) for g, (prompt, each) in enumerate(groups) for own in each]
    apart = [replace(each, group=-1) for each in together]
    learner = TinyLearner(model(), micro_tokens=48)
    assert all(len(each.rows) == 1 for each in bundle(apart))
    for a, b in zip(learner.logprobs(together), learner.logprobs(apart), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    ours, theirs = gradients(learner, together), gradients(learner, apart)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=2e-4, rtol=1e-3)


def test_only_rows_that_share_enough_are_bundled_and_bundles_stay_short() -> None:
    prompt = list(range(10))
    rows = [row([*prompt, i, i], 2, group=0) for i in range(4)]  # shares 10 of 12 tokens
    rows += [row([0, *range(5 + i, 15 + i)], 2, group=1) for i in range(3)]  # shares 1 of 11
    rows += [row([*prompt, 20], 1, group=-1), row([*prompt, 21], 1, group=-1)]  # of no group
    assert {tuple(each.rows): each.size for each in bundle(rows)} == {
        (0, 1, 2, 3): 18, (4,): 11, (5,): 11, (6,): 11, (7,): 11, (8,): 11,
    }  # fmt: skip
    many = [row([*([1] * 100), *([i] * 60)], 60, group=0) for i in range(2, 10)]
    assert [each.rows for each in bundle(many)] == [[0, 1], [2, 3], [4, 5], [6, 7]]  # 100 + 2 x 60 tokens; 256 at most


def test_what_answers_share_is_computed_once_too() -> None:
    answers = [[5, 6, 7, 8], [5, 6, 7, 9], [4, 3], [5, 6, 7, 8]]
    (tree,) = bundle([row([1, 2, 3, *answer], len(answer), group=0) for answer in answers])
    assert tree.rows == [2, 0, 3, 1]  # in the order of their tokens
    assert tree.size == 3 + 2 + 4 + 0 + 1


def test_the_layout_of_a_bundle() -> None:
    rows = [row([5, 6], 1, -1), row([7, 8, 9, 1, 2], 2, 0), row([7, 8, 9, 3], 1, 0)]
    tokens = np.asarray([[5, 6, 0, 0, 0], [7, 8, 9, 1, 2], [7, 8, 9, 3, 0]])
    layout = lay_out(tokens, np.asarray([1, 4, 4]), bundle(rows))
    assert layout.inputs.tolist() == [[5, 0, 0, 0, 0], [7, 8, 9, 1, 3]]
    assert layout.positions.tolist() == [[0, 0, 0, 0, 0], [0, 1, 2, 3, 3]]
    sees = torch.isfinite(layout.mask[1, 0]).int().tolist()
    assert sees == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    assert layout.path[1, :4].tolist() == [5, 6, 7, 8]
    assert layout.path[2, :4].tolist() == [5, 6, 7, 9]


@pytest.mark.parametrize("values", [False, True])
def test_values_are_shared_too(values: bool) -> None:
    rows = [row([1, 2, 3, 4, 5, i], 1, group=0) for i in range(6, 9)]
    learner = TinyLearner(model())
    with torch.no_grad():
        assert learner.model.value is not None
        learner.model.value.weight.normal_()
    compute = learner.values if values else learner.logprobs
    alone = compute([replace(each, group=-1) for each in rows])
    for a, b in zip(compute(rows), alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
