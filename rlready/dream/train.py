"""Making and training the small transformer of an experience model: shuffled batches of similar length, a step each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rlready.dream.format import SPECIALS, DreamFormat
from rlready.policy.base import Batch, Loss, OptimizerConfig, Outputs, Policy
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.seeds import np_rng
from rlready.types import Row

Progress = Callable[[int, int, dict[str, float]], None]


def nll(outputs: Outputs, batch: Batch) -> Loss:
    """Cross-entropy of the weighted tokens, a mean over the whole minibatch."""
    total = -(batch.weights["nll"] * outputs.logprobs).sum() / batch.denominators["nll"]
    return Loss(total, {"nll": total.detach()})


def plan(lengths: Sequence[int], epochs: int, tokens: int, seed: int) -> list[list[int]]:
    """Which rows make up each batch: every row once per epoch, neighbours in length together, batches in random order.

    Args:
        lengths: tokens per row.
        epochs: passes.
        tokens: padded tokens per batch; a longer row is a batch of its own.
        seed: of the shuffles.
    """
    out: list[list[int]] = []
    for epoch in range(epochs):
        rng = np_rng(seed, "plan", epoch)
        order = rng.permutation(len(lengths))
        batches: list[list[int]] = []
        for window in np.array_split(order, max(1, len(order) // 512)):
            widest, batch = 0, list[int]()
            for i in sorted(window.tolist(), key=lambda i: lengths[i]):
                widest = max(widest, lengths[i])
                if batch and widest * (len(batch) + 1) > tokens:
                    batches.append(batch)
                    widest, batch = lengths[i], []
                batch.append(i)
            if batch:
                batches.append(batch)
        out += [batches[i] for i in rng.permutation(len(batches))]
    return out


def sft(
    policy: Policy, rows: Sequence[Row], batches: Sequence[Sequence[int]], progress: Progress | None
) -> dict[str, float]:
    """Take one step per batch; return the loss in nats per trained token at the start and over the last tenth.

    Raises:
        ValueError: the policy has no learner.
    """
    if policy.learner is None:
        raise ValueError("This policy has no learner, so it cannot be fitted.")
    losses: list[float] = []
    for step, batch in enumerate(batches, 1):
        chosen = [rows[i] for i in batch]
        weight = float(sum(row.weights["nll"].sum() for row in chosen))
        metrics = policy.learner.forward_backward(chosen, nll, {"nll": max(weight, 1.0)})
        metrics |= policy.learner.step()
        losses.append(metrics["nll"])
        if progress is not None:
            progress(step, len(batches), metrics)
    policy.sync()
    tail = losses[-max(1, len(losses) // 10) :]
    return {"fit/first_loss": losses[0], "fit/loss": float(np.mean(tail)), "fit/steps": float(len(losses))}


def new_policy(
    form: DreamFormat, shape: TinyConfig, *, lr: float, warmup: int, steps: int, longest: int, seed: int
) -> TinyPolicy:
    """A fresh model for a layout.

    Args:
        form: gives the vocabulary.
        shape: of the transformer; vocabulary and length are set here.
        lr: peak learning rate; it falls along a cosine to a twentieth.
        warmup: steps of warm-up.
        steps: steps in all.
        longest: tokens of the longest training row; dreams may grow half as long again.
        seed: of the initial weights.
    """
    tokenizer = word_tokenizer(form.words, SPECIALS)
    if tuple(tokenizer.token(i) for i in range(len(tokenizer))) != form.tokens:
        raise ValueError("The tokenizer numbers the layout's words in another order than the layout.")
    room = max(shape.max_len, -(-3 * longest // 128) * 64)
    shape = replace(shape, vocab_size=len(tokenizer), max_len=room, value_head=False)
    optimizer = OptimizerConfig(lr=lr, warmup=min(warmup, steps // 4), schedule="cosine", total=steps, final=0.05)
    renderer = ChatRenderer(tokenizer, bos="<s>", turn="<card>", end="<go>")
    return TinyPolicy.create(renderer, shape, seed=seed, optimizer=optimizer)
