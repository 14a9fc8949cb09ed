"""Rows to padded micro-batches, and the positions of them that a loss looks at.

Rows are right-padded, so positions are right and a causal mask hides the padding. Only tokens with weight in some
stream are *live*: heads are computed for them alone, and whatever stands at other positions (a NaN from a broken
grader, say) is replaced by 0 before anything is computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlready.policy.base import Batch
from rlready.policy.tiny.heads import Supports
from rlready.policy.tiny.sharing import in_order
from rlready.types import FloatArray, IntArray, Row

_LEAST = 512
"""Tokens below which a micro-batch is mostly calls, which threads cannot make at once."""


@dataclass(slots=True)
class Live:
    """The tokens of a micro-batch [B, T] that are to be predicted, M of them.

    Attributes:
        row, column: where each of them stands, [M].
        target: the same as a flat index into B*T, [M].
        tokens: the tokens, [M].
        temperature: of each token, [M]; None where it is 1 everywhere.
        supports: which ids each token could have been; None where all could.
    """

    row: Tensor
    column: Tensor
    target: Tensor
    tokens: Tensor
    temperature: Tensor | None
    supports: Supports | None


def cut(rows: Sequence[Row], micro_tokens: int) -> list[list[int]]:
    """Rows of each micro-batch, for a model that reads them padded: of similar length, `micro_tokens` at most.

    A row always fits, and so do the rows of one unit (`Row.unit`), which stay together.
    """
    units = sorted(
        (sorted(unit, key=lambda i: -len(rows[i])) for unit in _units(rows)), key=lambda unit: -len(rows[unit[0]])
    )
    out: list[list[int]] = []
    for unit in units:
        if not out or len(rows[out[-1][0]]) * (len(out[-1]) + len(unit)) > micro_tokens:
            out.append([])
        out[-1] += unit
    return out


def cut_shared(rows: Sequence[Row], micro_tokens: int, workers: int = 1) -> list[list[int]]:
    """Rows of each micro-batch, for a model that reads what rows share once: neighbours in the order of their tokens.

    The micro-batches are of about equal size, `micro_tokens` or a little more (a unit is not cut). Their number is a
    multiple of `workers`, unless they would be too small for that.
    """
    if not rows:
        return []
    lengths = np.asarray([len(row) for row in rows])
    place = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(place.shape, np.int64)
    tokens[place] = np.concatenate([row.tokens for row in rows])
    order, shared = in_order(tokens, lengths)
    rank, new = np.empty_like(order), np.empty_like(order)
    rank[order], new[order] = np.arange(len(rows)), lengths[order] - shared
    units = sorted((sorted(unit, key=rank.__getitem__) for unit in _units(rows)), key=lambda unit: int(rank[unit[0]]))
    sizes = np.asarray([new[unit].sum() for unit in units])
    total = max(1, int(sizes.sum()))
    workers = max(1, min(workers, total // _LEAST))
    count = -(-total // (micro_tokens * workers)) * workers
    piece = np.minimum(((np.cumsum(sizes) - 0.5 * sizes) * count / total).astype(np.int64), count - 1)
    return [[i for unit in np.flatnonzero(piece == k) for i in units[unit]] for k in np.unique(piece)]


def _units(rows: Sequence[Row]) -> list[list[int]]:
    """Rows that must share a micro-batch."""
    units: dict[tuple[str, int], list[int]] = {}
    for i, row in enumerate(rows):
        units.setdefault(("unit", row.unit) if row.unit >= 0 else ("row", i), []).append(i)
    return list(units.values())


def pad(rows: Sequence[Row], denominators: Mapping[str, float]) -> tuple[Batch, Tensor]:
    """Rows as tensors [B, T], and where they are live, [B, T] bool.

    Raises:
        ValueError: a row weighs its first token, which nothing predicts.
    """
    lengths = np.asarray([len(row) for row in rows])
    shape = (len(rows), int(lengths.max()))
    place = np.flatnonzero(np.arange(shape[1]) < lengths[:, None])

    def fill(full: NDArray[Any], arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
        given = [np.zeros(n, full.dtype) if a is None else a for a, n in zip(arrays, lengths.tolist(), strict=True)]
        full.ravel()[place] = np.concatenate(given)
        return full

    names = list(dict.fromkeys(name for row in rows for name in row.weights))
    weights = {name: fill(np.zeros(shape, np.float32), [row.weights.get(name) for row in rows]) for name in names}
    live = np.zeros(shape, bool)
    for weight in weights.values():
        live |= weight != 0
    if live[:, 0].any():
        bad = int(np.flatnonzero(live[:, 0])[0])
        raise ValueError(f"Row {bad} of the micro-batch gives its first token a weight, but nothing predicts it.")

    def floats(arrays: Sequence[FloatArray | None]) -> Tensor:
        return torch.from_numpy(np.where(live, fill(np.zeros(shape, np.float32), arrays), np.float32(0)))

    tokens = fill(np.zeros(shape, np.int64), [row.tokens for row in rows])
    temperature = fill(np.ones(shape, np.float32), [row.temperature for row in rows])
    temperature[~(live & (temperature > 0))] = 1.0  # 0 is greedy, whose log-probs are those at 1
    some_returns, some_values = any(r.returns is not None for r in rows), any(r.values is not None for r in rows)
    batch = Batch(
        rows=list(rows),
        tokens=torch.from_numpy(tokens),
        logprobs=floats([row.logprobs for row in rows]),
        advantage=floats([row.advantage for row in rows]),
        weights={name: torch.from_numpy(weight) for name, weight in weights.items()},
        denominators=denominators,
        temperature=torch.from_numpy(temperature),
        returns=floats([row.returns for row in rows]) if some_returns else None,
        values=floats([row.values for row in rows]) if some_values else None,
    )
    return batch, torch.from_numpy(live)


def everything(rows: Sequence[Row]) -> tuple[Batch, Tensor]:
    """Rows as tensors with every token live but the first of each row: for evaluation without a loss."""
    bare = [
        Row(row.tokens, {}, row.logprobs, row.advantage, row.temperature, None, None, row.support_of, row.supports)
        for row in rows
    ]
    batch, live = pad(bare, {})
    for i, row in enumerate(rows):
        live[i, 1 : len(row)] = True
        given = torch.from_numpy(np.asarray(row.temperature, dtype=np.float32))
        batch.temperature[i, : len(row)] = torch.where(given > 0, given, 1.0)
    return batch, live


def locate(batch: Batch, live: Tensor) -> Live | None:
    """What to predict; None where nothing is live.

    Args:
        batch: the rows.
        live: tokens to predict, [B, T] bool.
    """
    at = live.nonzero()
    if not len(at):
        return None
    row, column = at.unbind(-1)
    width = batch.tokens.shape[1]
    target = row * width + column
    temperature = batch.temperature.flatten()[target]
    return Live(
        row=row,
        column=column,
        target=target,
        tokens=batch.tokens.flatten()[target],
        temperature=None if torch.eq(temperature, 1).all() else temperature,
        supports=_supports(batch.rows, row.numpy(), column.numpy()),
    )


def _supports(rows: Sequence[Row], row: IntArray, column: IntArray) -> Supports | None:
    """Join the rows' supports; arrays are told apart by identity."""
    if all(r.support_of is None for r in rows):
        return None
    sets: list[IntArray] = []
    known: dict[int, int] = {}
    index = np.full(len(row), -1, np.int64)
    bounds = np.searchsorted(row, np.arange(len(rows) + 1))
    for i, r in enumerate(rows):
        if r.support_of is None or not r.supports:
            continue
        joined = np.empty(len(r.supports) + 1, np.int64)
        joined[-1] = -1
        for j, ids in enumerate(r.supports):
            joined[j] = known.setdefault(id(ids), len(sets))
            if joined[j] == len(sets):
                sets.append(ids)
        here = slice(bounds[i], bounds[i + 1])
        index[here] = joined[r.support_of[column[here]]]
    return Supports(torch.from_numpy(index), sets) if (index >= 0).any() else None
