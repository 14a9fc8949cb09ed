"""Rows to padded micro-batches, and the positions of them that a loss looks at.

Rows are right-padded, so positions are right and a causal mask hides the padding. Only tokens with weight in some
stream are *live*: heads are computed for them alone, and whatever stands at other positions (a NaN from a broken
grader, say) is replaced by 0 before anything is computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlready.policy.base import Batch
from rlready.policy.tiny.heads import Supports
from rlready.policy.tiny.sharing import Bundle, bundle, lay_out
from rlready.types import FloatArray, IntArray, Row


@dataclass(slots=True)
class Live:
    """The tokens of a micro-batch [B, T] that are to be predicted, M of them.

    Attributes:
        inputs: what the model reads, cut behind the last predicting token, [R, L] int64: a row of the batch each, or
            bundles of rows, see `sharing`.
        source: flat index into R*L of the state that predicts each token (the one before it), [M].
        target: flat index into B*T of each token, [M].
        tokens: the tokens, [M].
        temperature: of each token, [M]; None where it is 1 everywhere.
        supports: which ids each token could have been; None where all could.
        positions, mask: where bundles are read, [R, L] and [R, 1, L, L].
    """

    inputs: Tensor
    source: Tensor
    target: Tensor
    tokens: Tensor
    temperature: Tensor | None
    supports: Supports | None
    positions: Tensor | None = None
    mask: Tensor | None = None


def cut(rows: Sequence[Row], micro_tokens: int, bundles: Sequence[Bundle] | None = None) -> list[list[Bundle]]:
    """Bundles of each micro-batch: of similar size, `micro_tokens` at most with padding.

    One bundle always fits, and so do the bundles of one unit (`Row.unit`), which stay together.

    Args:
        rows: of a minibatch.
        micro_tokens: padded tokens per micro-batch.
        bundles: of these rows; None shares what they have in common.
    """
    units = sorted(_units(rows, bundle(rows) if bundles is None else bundles), key=lambda unit: -unit[0].size)
    out: list[list[Bundle]] = []
    for unit in units:
        if not out or out[-1][0].size * (len(out[-1]) + len(unit)) > micro_tokens:
            out.append([])
        out[-1] += unit
    return out


def _units(rows: Sequence[Row], bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """Bundles that must share a micro-batch, the largest of each unit first."""
    if all(row.unit < 0 for row in rows):
        return [[each] for each in bundles]
    owner: dict[int, list[Bundle]] = {}  # by unit; a bundle with rows of two units joins them
    alone: list[list[Bundle]] = []
    for each in bundles:
        names = {rows[i].unit for i in each.rows} - {-1}
        if not names:
            alone.append([each])
            continue
        merged = list({id(owner[name]): owner[name] for name in names if name in owner}.values())
        joined = [*(other for unit in merged for other in unit), each]
        held = {rows[i].unit for other in joined for i in other.rows} - {-1}
        owner |= dict.fromkeys(held, joined)
    joint = list({id(unit): unit for unit in owner.values()}.values())
    return alone + [sorted(unit, key=lambda each: -each.size) for unit in joint]


def members(bundles: Sequence[Bundle]) -> list[int]:
    """Indices of the rows of some bundles, in order."""
    return [i for each in bundles for i in each.rows]


def pad(rows: Sequence[Row], denominators: Mapping[str, float]) -> tuple[Batch, Tensor]:
    """Rows as tensors [B, T], and where they are live, [B, T] bool.

    Raises:
        ValueError: a row weighs its first token, which nothing predicts.
    """
    shape = (len(rows), max(len(row) for row in rows))
    names = list(dict.fromkeys(name for row in rows for name in row.weights))
    weights = {name: np.zeros(shape, np.float32) for name in names}
    for i, row in enumerate(rows):
        for name, weight in row.weights.items():
            weights[name][i, : len(row)] = weight
    live = np.zeros(shape, bool)
    for weight in weights.values():
        live |= weight != 0
    if live[:, 0].any():
        bad = int(np.flatnonzero(live[:, 0])[0])
        raise ValueError(f"Row {bad} of the micro-batch gives its first token a weight, but nothing predicts it.")

    def floats(arrays: Sequence[FloatArray | None]) -> Tensor:
        full = np.zeros(shape, np.float32)
        for i, array in enumerate(arrays):
            if array is not None:
                full[i, : len(array)] = array
        return torch.from_numpy(np.where(live, full, np.float32(0)))

    tokens = np.zeros(shape, np.int64)
    temperature = np.ones(shape, np.float32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row.tokens
        temperature[i, : len(row)] = row.temperature
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


def locate(batch: Batch, live: Tensor, bundles: Sequence[Bundle]) -> Live | None:
    """Where to compute; None where nothing is live.

    Args:
        batch: rows in the order of the bundles.
        live: tokens to predict, [B, T] bool.
        bundles: of these rows.
    """
    at = live.nonzero()
    if not len(at):
        return None
    row, column = at.unbind(-1)
    width, length = batch.tokens.shape[1], int(column.max())
    target = row * width + column
    inputs, source, positions, mask = batch.tokens[:, :length], row * length + column - 1, None, None
    if len(bundles) < len(batch.tokens):
        ends = np.zeros(len(batch.tokens), np.int64)
        np.maximum.at(ends, row.numpy(), column.numpy())
        layout = lay_out(batch.tokens.numpy(), ends, bundles)
        inputs, positions, mask = layout.inputs, layout.positions, layout.mask
        source = torch.from_numpy(layout.path[row.numpy(), column.numpy() - 1])
    temperature = batch.temperature.flatten()[target]
    return Live(
        inputs=inputs,
        source=source,
        target=target,
        tokens=batch.tokens.flatten()[target],
        temperature=None if torch.eq(temperature, 1).all() else temperature,
        supports=_supports(batch.rows, row.numpy(), column.numpy()),
        positions=positions,
        mask=mask,
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
