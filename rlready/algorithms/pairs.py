"""Pairs of answers as rows: given ones, and what a fit knows of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlready.errors import UserError
from rlready.policy.base import Learner, Renderer, Which, over_ranks
from rlready.types import FloatArray, IntArray, Message, Row

Doubles = NDArray[np.float64]
PAIR = "pair"
"""The stream whose weights say which tokens make up a completion."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A better and a worse answer to the same prompt, each as rows: one, or several where contexts were rewritten.

    Attributes:
        chosen: the better; the tokens with weight in the stream "nll" are the answer.
        rejected: the worse, likewise.
    """

    chosen: tuple[Row, ...]
    rejected: tuple[Row, ...]

    @classmethod
    def of(cls, renderer: Renderer, prompt: str | Sequence[Message], chosen: str, rejected: str) -> Pair:
        """A pair of texts, end tokens included: `Pair.of(policy.renderer, "2+2=", "4", "5")`."""
        messages = (Message.user(prompt),) if isinstance(prompt, str) else prompt
        context = renderer.render(messages)
        better, worse = (
            Row.from_segments([(context, 0.0), (renderer.encode_completion(text), 1.0)]) for text in (chosen, rejected)
        )
        return cls((better,), (worse,))


@dataclass
class Table:
    """What one fit knows of its pairs.

    Attributes:
        rows: by unit; their `trajectory` numbers the completions.
        pairs: by unit, [P, 2] numbers of a better and a worse completion.
        reference: log-likelihood of each completion under the reference, [K], nats.
        lengths: what log-likelihoods are divided by, [K]: tokens, or 1.
        better: numbers of the completions that are the better one of a pair.
    """

    rows: list[list[Row]]
    pairs: list[IntArray]
    reference: Doubles
    lengths: Doubles
    better: set[int]

    @classmethod
    def of(
        cls, learner: Learner, rows: Sequence[Row], pairs: list[IntArray], count: int, which: Which, normalised: bool
    ) -> Table:
        """Take rows, whose unit is an index into `pairs`, and ask the reference for their log-probs."""
        by_unit: dict[int, list[Row]] = defaultdict(list)
        reference, lengths = np.zeros(count), np.zeros(count)
        for row, logprobs in zip(rows, learner.logprobs(rows, which=which) if rows else [], strict=True):
            by_unit[row.unit].append(row)
            reference[row.trajectory] += likelihood(row, logprobs)
            lengths[row.trajectory] += float(row.weights[PAIR].sum(dtype=np.float64))
        if (lengths == 0).any():
            raise UserError(
                f"Completion {int(np.argmin(lengths))} of the pairs has no token with weight; check the masks."
            )
        better = {int(i) for each in pairs for i in each[:, 0]}
        divisors = lengths if normalised else np.ones(count)
        return cls([by_unit[unit] for unit in range(len(pairs))], pairs, reference, divisors, better)

    def divisors(self, learner: Learner, units: Iterable[int], pieces: int = 1) -> dict[str, float]:
        """Pairs, and tokens to imitate, of some units (on all ranks), by the number of pieces."""
        chosen = [int(unit) for unit in units]
        rows = [row for unit in chosen for row in self.rows[unit]]
        sums = {
            PAIR: float(sum(len(self.pairs[unit]) for unit in chosen)),
            "nll": float(sum(row.weights["nll"].sum(dtype=np.float64) for row in rows if "nll" in row.weights)),
        }
        return {name: (size or 1.0) / max(1, pieces) for name, size in over_ranks(learner, sums).items()}

    def imitate(self) -> None:
        """Add the stream "nll" on the better completions."""
        for unit, rows in enumerate(self.rows):
            self.rows[unit] = [
                replace(
                    row, weights=row.weights | {"nll": row.weights[PAIR] * np.float32(row.trajectory in self.better)}
                )
                for row in rows
            ]


def rows_of(pairs: Sequence[Pair]) -> tuple[list[Row], list[IntArray]]:
    """Numbered rows of given pairs, a unit each, and the numbers of each pair."""
    rows: list[Row] = []
    for unit, pair in enumerate(pairs):
        for side, given in enumerate((pair.chosen, pair.rejected)):
            for row in given:
                weights = {PAIR: row.weights["nll"]}
                rows.append(replace(row, weights=weights, trajectory=2 * unit + side, group=unit, unit=unit))
    return rows, [np.asarray([[2 * u, 2 * u + 1]], dtype=np.int64) for u in range(len(pairs))]


def likelihood(row: Row, logprobs: FloatArray) -> float:
    """Weighted log-likelihood of a row's completion, nats."""
    weight = row.weights[PAIR].astype(np.float64)
    return float((weight * np.where(weight > 0, logprobs, 0.0)).sum())
