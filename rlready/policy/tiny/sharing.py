"""Rows that begin alike, computed in one sequence: what they share is computed once.

The rows of a group start with the same prompt, which is often longer than what was sampled. A *bundle* of such rows is
laid out as the shared prefix, followed by the rest of each row. Positions go on from the prefix in every rest, and a
mask keeps the rests from seeing each other, so every state is what it would be in the row on its own (a test holds it).
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
        rows: their indices.
        prefix: tokens that all of them begin with; the whole row where there is one only.
        size: tokens of the sequence.
    """

    rows: list[int]
    prefix: int
    size: int


@dataclass(slots=True)
class Layout:
    """A micro-batch laid out for the model, [R, L] sequences.

    Attributes:
        inputs, positions: [R, L] int64; padding is 0 in both.
        mask: added to the attention scores, [R, 1, L, L].
        prefix, shared, own: per row of the batch [B]. The state behind token c of a row stands at flat index
            `shared + c` where c < `prefix`, and at `own + c` elsewhere.
    """

    inputs: Tensor
    positions: Tensor
    mask: Tensor
    prefix: IntArray
    shared: IntArray
    own: IntArray

    def index(self, row: IntArray, token: IntArray) -> IntArray:
        """Flat index into R*L of the state behind a token, [M]."""
        found: IntArray = np.where(token < self.prefix[row], self.shared[row], self.own[row]) + token
        return found


def bundle(rows: Sequence[Row]) -> list[Bundle]:
    """Put the rows of a group together where they share enough; all other rows stand alone."""
    groups: dict[int, list[int]] = {}
    out: list[Bundle] = []
    for i, row in enumerate(rows):
        if row.group < 0:
            out.append(Bundle([i], len(row), len(row)))
        else:
            groups.setdefault(row.group, []).append(i)
    for members in groups.values():
        lengths = [len(rows[i]) for i in members]
        prefix = _common([rows[i].tokens for i in members], min(lengths)) if len(members) > 1 else 0
        if (len(members) - 1) * prefix < _LEAST_SAVING * sum(lengths) or prefix == 0:
            out += [Bundle([i], n, n) for i, n in zip(members, lengths, strict=True)]
            continue
        most = max(_MOST_TOKENS, max(lengths) * 3 // 2)
        current = Bundle([], prefix, prefix)
        for i, n in zip(members, lengths, strict=True):
            if current.rows and current.size + n - prefix > most:
                out.append(current)
                current = Bundle([], prefix, prefix)
            current.rows.append(i)
            current.size += n - prefix
        out.append(current)
    return out


def _common(tokens: Sequence[IntArray], shortest: int) -> int:
    """Length of the prefix that all have, at most `shortest`."""
    stacked = np.stack([each[:shortest] for each in tokens])
    differs = (stacked != stacked[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else shortest


def lay_out(tokens: IntArray, ends: IntArray, bundles: Sequence[Bundle]) -> Layout:
    """Lay out the rows of a micro-batch.

    Args:
        tokens: of the rows in the order of the bundles, right-padded, [B, T].
        ends: tokens of each row that the model must read, [B].
        bundles: of these rows; their `rows` are not looked at but for their number.
    """
    prefix, shared, own = (np.zeros(len(tokens), np.int64) for _ in range(3))
    begin, length = 0, 0
    for each in bundles:
        members = slice(begin, begin + len(each.rows))
        prefix[members] = min(each.prefix, int(ends[members].max()))
        rest = np.maximum(ends[members] - prefix[members], 0)
        own[members] = np.cumsum(rest) - rest
        length = max(length, int(prefix[begin] + rest.sum()))
        begin = members.stop
    inputs = np.zeros((len(bundles), length), np.int64)
    positions, segment = np.zeros_like(inputs), np.full_like(inputs, -1)
    row = 0
    for r, each in enumerate(bundles):
        start = int(prefix[row])
        inputs[r, :start] = tokens[row, :start]
        positions[r, :start] = np.arange(start)
        segment[r, :start] = 0
        for k in range(1, len(each.rows) + 1):
            end = max(int(ends[row]), start)
            at = slice(start + int(own[row]), end + int(own[row]))
            inputs[r, at] = tokens[row, start:end]
            positions[r, at] = np.arange(start, end)
            segment[r, at] = k
            shared[row] = r * length
            row += 1
    own += shared
    sees = (segment[:, None, :] == segment[:, :, None]) | (segment[:, None, :] == 0)
    sees &= np.tri(length, dtype=bool)
    mask = torch.zeros(len(bundles), 1, length, length)
    mask.masked_fill_(torch.from_numpy(~sees).unsqueeze(1), -torch.inf)
    return Layout(torch.from_numpy(inputs), torch.from_numpy(positions), mask, prefix, shared, own)
