"""Supervised learning from rows: the loss, which rows share a batch, and the loop. One step per batch.

The experience model and supervised fine-tuning both run on this; the latter brings its own way of averaging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlready.policy.base import Batch, Learner, Loss, Outputs, Policy, require_learner
from rlready.seeds import np_rng
from rlready.types import Row

OnStep = Callable[[int, int, dict[str, float]], bool | None]
"""Called after each step with (step from 1, steps in all, metrics); returning True ends the training."""

Descend = Callable[[Learner, list[Row]], dict[str, float]]
"""One optimizer step on the rows of a batch; returns its metrics."""

WINDOW = 512


def cross_entropy(outputs: Outputs, batch: Batch) -> Loss:
    """Cross-entropy of the stream "nll" in nats: the sum of -w log p over the tokens, by the stream's denominator."""
    total = -(batch.weights["nll"] * outputs.logprobs).sum() / batch.denominators["nll"]
    return Loss(total, {"nll": total.detach()})


def descend(learner: Learner, rows: list[Row]) -> dict[str, float]:
    """One step on the mean cross-entropy of a batch's weighted tokens; metrics are "nll" and the learner's own."""
    weight = sum(float(row.weights["nll"].sum(dtype=np.float64)) for row in rows)
    return learner.forward_backward(rows, cross_entropy, {"nll": weight or 1.0}) | learner.step()


def plan(lengths: Sequence[int], epochs: int, tokens: int, seed: int) -> list[list[int]]:
    """Which rows make up each batch: every row once per epoch, neighbours in length together, batches in random order.

    Rows are shuffled, cut into windows of about 512, and sorted by length within each, so that little is padded and the
    batches of two epochs still differ.

    Args:
        lengths: tokens per row.
        epochs: passes.
        tokens: padded tokens per batch, that is rows times the longest; a longer row is a batch of its own.
        seed: of the shuffles, each hashed from (seed, epoch).

    Returns:
        Indices into `lengths` per batch.
    """
    out: list[list[int]] = []
    for epoch in range(epochs):
        rng = np_rng(seed, "plan", epoch)
        order = rng.permutation(len(lengths))
        batches: list[list[int]] = []
        for window in np.array_split(order, max(1, len(order) // WINDOW)):
            batch: list[int] = []
            for i in sorted(window.tolist(), key=lambda i: lengths[i]):  # ascending, so row i is the longest so far
                if batch and lengths[i] * (len(batch) + 1) > tokens:
                    batches.append(batch)
                    batch = []
                batch.append(i)
            if batch:
                batches.append(batch)
        out += [batches[i] for i in rng.permutation(len(batches))]
    return out


def fit(
    policy: Policy,
    rows: Sequence[Row],
    batches: Sequence[Sequence[int]],
    *,
    descend: Descend = descend,
    on_step: OnStep | None = None,
) -> list[dict[str, float]]:
    """Take one step per batch, then hand the new weights to the sampler.

    Args:
        policy: with a learner.
        rows: with the stream "nll".
        batches: indices into `rows`, as `plan` gives them.
        descend: one optimizer step.
        on_step: progress; may end the training early.

    Returns:
        Each step's metrics.

    Raises:
        ValueError: the policy has no learner.
        FloatingPointError: a gradient was not finite; the sampler still has the weights of before.
    """
    learner = require_learner(policy)
    history: list[dict[str, float]] = []
    for step, batch in enumerate(batches, 1):
        history.append(descend(learner, [rows[i] for i in batch]))
        if on_step is not None and on_step(step, len(batches), history[-1]):
            break
    policy.sync()
    return history
