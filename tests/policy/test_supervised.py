"""The supervised loop: batches of similar length, the mean by hand, one step each, progress that may stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlready.policy.base import Batch, LossFn, Outputs, Policy
from rlready.policy.supervised import cross_entropy, fit, plan
from rlready.types import Row


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(0, 3), st.integers(1, 1000), st.integers(0, 9))
def test_plan_has_every_row_once_per_epoch_within_the_budget(
    lengths: list[int], epochs: int, tokens: int, seed: int
) -> None:
    batches = plan(lengths, epochs, tokens, seed)
    assert sorted(i for batch in batches for i in batch) == sorted(list(range(len(lengths))) * epochs)
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= tokens


def test_plan_pads_little_and_shuffles_by_epoch_and_seed() -> None:
    lengths = [5 + 7 * i % 90 for i in range(1300)]
    batches = plan(lengths, 3, 1000, seed=1)
    assert sum(max(lengths[i] for i in b) * len(b) for b in batches) < 1.15 * 3 * sum(lengths)
    assert plan([5000, 3], 1, 1000, seed=0) in ([[1], [0]], [[0], [1]])
    assert plan(lengths, 3, 1000, seed=1) == batches != plan(lengths, 3, 1000, seed=2)
    first, second = plan(lengths, 1, 1000, seed=1), batches[len(batches) // 3 : 2 * len(batches) // 3]
    assert batches[: len(first)] == first != second
    sizes = [lengths[batch[0]] for batch in first]
    assert sizes != sorted(sizes)  # no curriculum by length


class Constant:
    """A learner that gives every token log-probability -2, and remembers which rows it saw."""

    version = 0

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def forward_backward(
        self, rows: Sequence[Row], loss: LossFn, denominators: Mapping[str, float]
    ) -> dict[str, float]:
        self.seen.append([len(row) for row in rows])
        total = 0.0
        for row in rows:  # micro-batches of one
            tokens = torch.from_numpy(row.tokens)[None]
            full = torch.full(tokens.shape, -2.0)
            weights = {"nll": torch.from_numpy(row.weights["nll"])[None]}
            batch = Batch([row], tokens, full, full, weights, denominators, torch.ones(tokens.shape))
            total += float(loss(Outputs(full), batch).metrics["nll"])
        return {"nll": total}

    def step(self) -> dict[str, float]:
        self.version += 1
        return {"lr": 0.1}

    def weights(self) -> dict[str, Any]:
        return {}


class Loads:
    version = 0

    def load(self, state: Mapping[str, Any], version: int) -> None:
        self.version = version


def row(n: int, weight: float = 1.0) -> Row:
    return Row.from_segments([([0], 0.0), ([1] * (n - 1), weight)])


def run(rows: list[Row], batches: list[list[int]], on_step: Callable[..., Any] | None = None) -> Any:
    learner = Constant()
    policy = Policy(Loads(), None, learner)  # type: ignore[arg-type]
    return fit(policy, rows, batches, on_step=on_step), learner, policy


def test_loss_is_the_mean_over_the_weighted_tokens_of_the_whole_batch() -> None:
    history, _, _ = run([row(3), row(5, 0.5), row(4, 0.0)], [[0, 1, 2], [2]])
    assert history[0] == {"nll": pytest.approx(2.0), "lr": 0.1}  # (2 tokens x 1 + 4 x 0.5) x 2 / 4
    assert history[1]["nll"] == 0.0  # nothing has weight: 0, not nan


def test_one_step_per_batch_then_the_sampler_has_the_weights() -> None:
    history, learner, policy = run([row(2), row(3), row(4)], [[2, 0], [1], [0]])
    assert learner.seen == [[4, 2], [3], [2]] and len(history) == 3 and policy.version == 3


def test_progress_may_stop_it() -> None:
    told: list[tuple[int, int]] = []

    def on_step(step: int, steps: int, metrics: dict[str, float]) -> bool:
        told.append((step, steps))
        return step == 2

    history, _, policy = run([row(2)], [[0]] * 5, on_step)
    assert told == [(1, 5), (2, 5)] and len(history) == 2 and policy.version == 2


def test_cross_entropy_by_hand() -> None:
    outputs = Outputs(torch.tensor([[0.0, -1.0, -3.0]]))
    weights = {"nll": torch.tensor([[0.0, 1.0, 0.5]])}
    batch = Batch([], torch.zeros(1, 3), outputs.logprobs, outputs.logprobs, weights, {"nll": 5.0}, torch.ones(1, 3))
    assert cross_entropy(outputs, batch).total.item() == pytest.approx((1 + 1.5) / 5)


def test_a_fixed_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no learner"):
        fit(Policy(Loads(), None), [row(2)], [[0]])  # type: ignore[arg-type]
