"""Rows that begin alike, computed in one sequence: what they share is computed once.

The rows of a group start with the same prompt, and often with the same first words of an answer. A *bundle* of such
rows is the tree of their tokens, laid out as one sequence: each row adds what it does not share with the row before
it. A token's position is its place in its row, and a mask lets it see the tokens of its row alone, so every state is
what it would be in the row on its own (a test holds it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlready.types import IntArray, Row

_LEAST_SAVING = 0.2
"""Share of a group's tokens that sharing must save; below it the mask costs more than it brings."""

_MOST_TOKENS = 256
"""Longest bundle, unless its longest row is: attention within a bundle grows with the square of its length."""


@dataclass(slots=True)
class Bundle:
    """Rows computed in one sequence.

    Attributes:
        rows: their indices, in the order of their tokens, so that neighbours share most.
        size: tokens of the sequence.
    """

    rows: list[int]
    size: int


@dataclass(slots=True)
class Layout:
    """A micro-batch laid out for the model, [R, L] sequences.

    Attributes:
        inputs, positions: [R, L] int64; padding is 0 in both.
        mask: added to the attention scores, [R, 1, L, L].
        path: for each row of the batch, flat indices into R*L of the states behind its tokens, [B, T].
    """

    inputs: Tensor
    positions: Tensor
    mask: Tensor
    path: IntArray


def bundle(rows: Sequence[Row]) -> list[Bundle]:
    """Put the rows of a group together where they share enough; all other rows stand alone."""
    groups: dict[int, list[int]] = {}
    out: list[Bundle] = []
    for i, row in enumerate(rows):
        if row.group < 0:
            out.append(Bundle([i], len(row)))
        else:
            groups.setdefault(row.group, []).append(i)
    for members in groups.values():
        out += _tree([(i, rows[i].tokens) for i in members])
    return out


def _tree(members: Sequence[tuple[int, IntArray]]) -> list[Bundle]:
    """Bundles of one group's rows, given as (index, tokens)."""
    ordered = sorted(members, key=lambda each: each[1].tolist()) if len(members) > 1 else members
    lengths = [len(tokens) for _, tokens in ordered]
    most = max(_MOST_TOKENS, max(lengths) * 3 // 2)
    out: list[Bundle] = []
    for k, (i, tokens) in enumerate(ordered):
        added = lengths[k] - (_shared(ordered[k - 1][1], tokens) if k else 0)
        if not out or out[-1].size + added > most:
            out.append(Bundle([], 0))
            added = lengths[k]
        out[-1].rows.append(i)
        out[-1].size += added
    if sum(each.size for each in out) <= (1 - _LEAST_SAVING) * sum(lengths):
        return out
    return [Bundle([i], len(tokens)) for i, tokens in ordered]


def _shared(a: IntArray, b: IntArray) -> int:
    """Length of the common prefix."""
    shortest = min(len(a), len(b))
    differs = a[:shortest] != b[:shortest]
    return int(differs.argmax()) if differs.any() else shortest


def lay_out(tokens: IntArray, ends: IntArray, bundles: Sequence[Bundle]) -> Layout:
    """Lay out the rows of a micro-batch.

    Args:
        tokens: of the rows in the order of the bundles, right-padded, [B, T].
        ends: tokens of each row that the model must read, [B].
        bundles: of these rows; their `rows` are not looked at but for their number.
    """
    path = np.zeros(tokens.shape, np.int64)
    shared, sizes = np.zeros(len(tokens), np.int64), []
    row = 0
    for each in bundles:
        size = 0
        for k in range(len(each.rows)):
            end = int(ends[row])
            if k:
                before = int(ends[row - 1])
                shared[row] = _shared(tokens[row - 1, :before], tokens[row, :end])
                path[row, : shared[row]] = path[row - 1, : shared[row]]
            new = end - int(shared[row])
            path[row, shared[row] : end] = np.arange(size, size + new)
            size += new
            row += 1
        sizes.append(size)
    length = max(sizes)
    inputs = np.zeros((len(bundles), length), np.int64)
    positions = np.zeros_like(inputs)
    sees = np.zeros((len(bundles), length, length), dtype=bool)
    row = 0
    for r, each in enumerate(bundles):
        for _ in each.rows:
            start, end = int(shared[row]), int(ends[row])
            if end > start:
                at = path[row, :end]
                added = slice(int(at[start]), int(at[start]) + end - start)
                inputs[r, added] = tokens[row, start:end]
                positions[r, added] = np.arange(start, end)
                sees[r, added, at[:start]] = True
                sees[r, added, added] = np.tri(end - start, dtype=bool)
            path[row] += r * length
            row += 1
        sees[r, sizes[r] :, 0] = True  # padding must see something
    mask = torch.zeros(len(bundles), 1, length, length)
    mask.masked_fill_(torch.from_numpy(~sees).unsqueeze(1), -torch.inf)
    return Layout(torch.from_numpy(inputs), torch.from_numpy(positions), mask, path)
