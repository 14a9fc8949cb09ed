"""Rows that begin alike are computed together, and nothing that is learned changes by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.policy.base import Batch, Loss, Outputs
from rlready.policy.tiny import sharing
from rlready.policy.tiny.batching import cut_shared
from rlready.policy.tiny.learner import TinyLearner
from rlready.policy.tiny.model import TinyModel
from rlready.policy.tiny.sharing import Forest, plant
from rlready.types import Row
from tests.policy.tiny_fixtures import model, plain_states


def row(tokens: list[int], trained: int, group: int = -1, unit: int = -1) -> Row:
    """A row whose last `trained` tokens have a weight."""
    n = len(tokens)
    weight = np.zeros(n, np.float32)
    weight[n - trained :] = 1.0
    advantage = np.linspace(-1, 1, n, dtype=np.float32)
    ids = np.asarray(tokens, np.int64)
    zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
    return Row(ids, {"policy": weight}, zeros, advantage, ones, group=group, unit=unit)


def loss(outputs: Outputs, batch: Batch) -> Loss:
    """A weighted sum with a nonlinear part, so that every token's number matters by itself."""
    terms = outputs.logprobs.exp() * batch.advantage + outputs.logprobs
    return Loss((batch.weights["policy"] * terms).sum() / batch.denominators["policy"], {})


def gradients(learner: TinyLearner, rows: list[Row]) -> dict[str, torch.Tensor]:
    """What one pass leaves in the weights."""
    learner.model.zero_grad()
    learner.forward_backward(rows, loss, {"policy": 7.0})
    return {name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None}


def plainly(made: TinyModel, rows: list[Row]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Log-probs and gradients of the same loss, row by row, by autograd alone."""
    found, total = [], torch.zeros((), dtype=torch.float64)
    for each in rows:
        tokens = torch.from_numpy(each.tokens)
        logits = plain_states(made, tokens[:-1]) @ made.output.T
        logprobs = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        weight, advantage = torch.from_numpy(each.weights["policy"][1:]), torch.from_numpy(each.advantage[1:])
        total = total + (weight * (logprobs.exp() * advantage + logprobs)).sum() / 7.0
        found.append(logprobs.detach())
    names, parameters = zip(*made.named_parameters(), strict=True)
    grads = torch.autograd.grad(total, parameters, allow_unused=True)
    return found, {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}


some_groups = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=14),
        st.lists(
            st.tuples(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=9)),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=4,
)
"""Prompts, and their answers; a part of an answer may be context as well. Few ids, so that much is shared."""


def rows_of(groups: list[tuple[list[int], list[tuple[list[int], list[int]]]]]) -> list[Row]:
    return [
        row(prompt + context + own, len(own), group)
        for group, (prompt, answers) in enumerate(groups)
        for context, own in answers
    ]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@settings(max_examples=15, deadline=None)
@given(groups=some_groups, micro=st.sampled_from([1, 24, 10_000]), most=st.sampled_from([3, 256]))
def test_log_probabilities_and_gradients_are_those_of_rows_on_their_own(
    kv_heads: int, groups: list[tuple[list[int], list[tuple[list[int], list[int]]]]], micro: int, most: int
) -> None:
    rows = rows_of(groups)
    made = model(kv_heads=kv_heads).double()
    learner = TinyLearner(made, micro_tokens=micro)
    logprobs, wanted = plainly(made, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_MOST_QUERIES", most)
        patch.setattr(sharing, "_CALL", most // 8)
        found, got = learner.logprobs(rows), gradients(learner, rows)
    for a, b in zip(found, logprobs, strict=True):
        np.testing.assert_allclose(a[1:], b, atol=1e-6)
    assert got.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name], grad, atol=1e-6, rtol=1e-5)


@given(some_groups, st.integers(1, 6), st.sampled_from([0, 8192]))
def test_every_token_asks_once_and_sees_its_row_up_to_itself(
    groups: list[tuple[list[int], list[tuple[list[int], list[int]]]]], most: int, call: int
) -> None:
    rows = rows_of(groups)
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for i, each in enumerate(rows):
        tokens[i, : len(each)] = each.tokens
    asked = [(i, t) for i, each in enumerate(rows) for t in range(len(each))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_MOST_QUERIES", most)
        patch.setattr(sharing, "_CALL", call)
        forest = plant(tokens, *np.asarray(asked).T)
    context = {int(n): tuple(tokens[i, : t + 1]) for (i, t), n in zip(asked, forest.need[forest.state], strict=True)}
    assert len(context) == len(set(context.values())) == len(forest.tokens)  # what is shared is there once
    assert [int(n) for n in forest.positions] == [len(context[n]) - 1 for n in range(len(context))]
    assert seen_by(forest) == context


def seen_by(forest: Forest) -> dict[int, tuple[int, ...]]:
    """The ids that each token sees, itself last."""
    out: dict[int, tuple[int, ...]] = {}
    for each in forest.rectangles:
        count, _, queries, _, keys = each.mask.shape
        into, at = each.into.view(count, queries), each.keys.view(count, keys)
        assert set((into == len(forest.tokens)).flatten().nonzero().flatten().tolist()) == set(each.idle.tolist())
        for r in range(count):
            for q in range(queries):
                token = int(into[r, q])
                if token == len(forest.tokens):
                    continue
                assert token not in out
                out[token] = tuple(forest.tokens[at[r][torch.isfinite(each.mask[r, 0, q, 0])]].tolist())
    return out


def test_a_forest_by_hand() -> None:
    rows = np.asarray([[7, 8, 9, 1, 2], [5, 6, 0, 0, 0], [7, 8, 9, 3, 0], [5, 6, 0, 0, 0]])
    forest = plant(rows, np.asarray([0, 0, 1, 2, 3]), np.asarray([2, 3, 0, 3, 0]))
    assert forest.tokens.tolist() == [5, 7, 8, 9, 1, 3]  # the last 2 and the 6 need not be read
    assert forest.positions.tolist() == [0, 0, 1, 2, 3, 3]
    assert forest.need[forest.state].tolist() == [3, 4, 0, 5, 0]
    (every,), (last,) = forest.rectangles, forest.last
    assert sorted(every.into.tolist()) == [0, 1, 2, 3, 4, 5] + [6] * 6
    assert sorted(last.into.tolist()) == [0, 3, 4, 5, 6, 6]


def test_long_and_short_rows_are_not_padded_to_each_other() -> None:
    lengths = [400, 390, 380] + [10] * 200
    rows = np.zeros((len(lengths), 400), np.int64)
    for i, n in enumerate(lengths):
        rows[i, :n] = np.arange(i, i + n)
    forest = plant(rows, np.arange(len(lengths)), np.asarray(lengths) - 1)
    pairs = sum(each.mask.numel() for each in forest.rectangles)
    causal = sum(n * (n + 1) // 2 for n in lengths)
    assert pairs < 2 * causal
    assert max(each.mask.shape[2] for each in forest.rectangles) <= 256


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(-1, 3)), max_size=12),
    st.integers(1, 60),
)
def test_micro_batches_hold_every_row_once_and_whole_units(shape: list[tuple[list[int], int]], micro: int) -> None:
    rows = [row(tokens, 0, unit=unit) for tokens, unit in shape]
    pieces = cut_shared(rows, micro)
    assert sorted(i for piece in pieces for i in piece) == list(range(len(rows)))
    for unit in {each.unit for each in rows} - {-1}:
        assert sum(any(rows[i].unit == unit for i in piece) for piece in pieces) == 1
    most = Counter({-1: max([len(each) for each in rows], default=0)})
    for each in rows:
        most[each.unit] += len(each) if each.unit >= 0 else 0
    for piece in pieces:
        prefixes = {tuple(rows[i].tokens[: n + 1]) for i in piece for n in range(len(rows[i]))}
        assert len(prefixes) <= micro + max(most.values())


def test_micro_batches_keep_together_what_shares() -> None:
    prompts = [[i] * 50 for i in range(8)]
    rows = [row([*prompt, k], 1, group) for k in range(4) for group, prompt in enumerate(prompts)]
    assert [sorted(piece) for piece in cut_shared(rows, 108)] == [
        [i + 8 * k for k in range(4) for i in (j, j + 1)] for j in (0, 2, 4, 6)
    ]


def test_values_are_shared_too() -> None:
    rows = [row([1, 2, 3, 4, 5, i], 1, group=0) for i in range(6, 9)]
    learner = TinyLearner(model())
    with torch.no_grad():
        assert learner.model.value is not None
        learner.model.value.weight.normal_()
    for each, found in zip(rows, learner.values(rows), strict=True):
        np.testing.assert_allclose(found, learner.values([replace(each, group=-1)])[0], atol=1e-5)
