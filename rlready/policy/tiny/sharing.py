"""Rows that begin alike: what they share is computed once.

The rows of a group start with the same prompt, and often with the same first words of an answer; the prompts of a
batch may begin with the same instructions. The state behind a token depends on the tokens up to it alone, so a
micro-batch is computed as the forest of its rows' tokens: each row adds the tokens that it does not share with the row
before it, in the order of their tokens. All layers but attention see packed tokens [N, ...], without padding.

Attention takes the tokens that a row adds as queries, and all of the row's tokens as keys, wherever they were added.
Rows that add about as many tokens make a *rectangle*, a few of which serve a micro-batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlready.types import IntArray

_MOST_QUERIES = 256
"""Rows that add more tokens are cut: what comes later need not be looked at by what comes before."""

_CALL = 8192
"""What a further rectangle costs, in pairs of query and key."""


class Rectangle(NamedTuple):
    """Queries and keys of R rows that attend together, as indices of the N packed tokens.

    TorchScript reads these annotations, so this module does not postpone them.

    Attributes:
        queries: Q of each row, [R*Q]; the first token where a row has none.
        into: where what they find belongs, [R*Q]; N where a row has none.
        idle: places among R*Q where a row has no query.
        keys: K of each row, [R*K]; the first token where a row has none.
        mask: added to the scores, [R, 1, Q, 1, K]: a query sees its own token and those before it.
    """

    queries: Tensor
    into: Tensor
    idle: Tensor
    keys: Tensor
    mask: Tensor


@dataclass(slots=True)
class Forest:
    """A micro-batch as the model reads it, and what is wanted of it.

    Attributes:
        tokens: packed, [N] int64.
        positions: of each in its row, [N].
        rectangles: what attends to what; every token is a query of one.
        need: the tokens behind which a state is wanted, each once.
        last: the rectangles of those alone, for the last block. (Some others may be among their queries.)
        state: for each state that was asked for, [M], its index in `need`.
    """

    tokens: Tensor
    positions: Tensor
    rectangles: list[Rectangle]
    need: Tensor
    last: list[Rectangle]
    state: Tensor


def in_order(rows: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """The order of rows by their tokens, and how many tokens each then shares with the one before it, [B] both.

    Args:
        rows: padded tokens, [B, T].
        ends: tokens of each row that count, [B].
    """
    read = np.where(np.arange(rows.shape[1]) < ends[:, None], rows, -1).astype(">i4")
    names = [row.tobytes() for row in read]
    order = np.asarray(sorted(range(len(rows)), key=names.__getitem__), np.int64)
    read, ends = read[order], ends[order]
    differs = np.ones((len(rows) - 1, rows.shape[1] + 1), bool)
    np.not_equal(read[1:], read[:-1], out=differs[:, :-1])
    shared = np.zeros(len(rows), np.int64)
    shared[1:] = np.minimum(differs.argmax(1), np.minimum(ends[1:], ends[:-1]))
    return order, shared


def plant(rows: IntArray, row: IntArray, column: IntArray) -> Forest:
    """The forest of a micro-batch, as far as it must be read.

    Args:
        rows: padded tokens, [B, T].
        row: and `column`: behind which tokens a state is wanted, [M] each, at least one.
        column: see `row`.
    """
    ends = np.zeros(len(rows), np.int64)
    np.maximum.at(ends, row, column + 1)
    order, shared = in_order(rows, ends)
    tokens, ends = rows[order], ends[order]
    new = ends - shared
    owner = np.repeat(np.arange(len(rows)), new)  # the row, in order, that adds each packed token
    position = np.arange(len(owner)) - (np.cumsum(new) - new - shared)[owner]
    path = np.zeros(rows.shape, np.int64)  # the packed token at each place of a row
    path[owner, position] = np.arange(len(owner))
    for k in np.flatnonzero(shared).tolist():
        path[k, : shared[k]] = path[k - 1, : shared[k]]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    need, state = np.unique(path[rank[row], column], return_inverse=True)
    begin = ends.copy()
    np.minimum.at(begin, owner[need], position[need])
    given = (tokens[owner, position], position, need, state)
    packed, at, needed, states = map(torch.from_numpy, given)
    return Forest(packed, at, _rectangles(path, shared, ends), needed, _rectangles(path, begin, ends), states)


def _rectangles(path: IntArray, begin: IntArray, end: IntArray) -> list[Rectangle]:
    """What attends to what, where each row's queries stand from `begin` to `end`."""
    count = int(path.max()) + 1
    return [_rectangle(path, count, *piece) for piece in _pieces(begin, end)]


def _pieces(begin: IntArray, end: IntArray) -> list[tuple[IntArray, IntArray, IntArray]]:
    """Rows, and the places at which their queries begin and end, of each rectangle."""
    cuts = -(-(end - begin) // _MOST_QUERIES)
    row = np.repeat(np.arange(len(end)), cuts)
    part = np.arange(len(row)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    first = begin[row] + part * _MOST_QUERIES
    last = np.minimum(first + _MOST_QUERIES, end[row])
    return [(row[each], first[each], last[each]) for each in _alike(last - first, last)]


def _alike(queries: IntArray, keys: IntArray) -> list[IntArray]:
    """Put rows together so that little is padded: cut them in two by one of both numbers, as long as it pays."""
    out: list[IntArray] = []
    left = [np.arange(len(queries))]
    while left:
        rows = left.pop()
        count = np.arange(1, len(rows))
        best, saved = 0, -np.inf
        for number in (queries, keys):
            order = rows[np.argsort(-number[rows])]
            q, k = queries[order], keys[order]
            whole = len(order) * q.max() * k.max()
            head = count * np.maximum.accumulate(q)[:-1] * np.maximum.accumulate(k)[:-1]
            tail = (count * np.maximum.accumulate(q[::-1])[:-1] * np.maximum.accumulate(k[::-1])[:-1])[::-1]
            gain = whole - head - tail
            if len(gain) and gain.max() > saved:
                best, saved, kept = int(gain.argmax()) + 1, gain.max(), order
        if saved > _CALL:
            left += [kept[:best], kept[best:]]
        else:
            out.append(rows)
    return out


def _rectangle(path: IntArray, count: int, row: IntArray, first: IntArray, last: IntArray) -> Rectangle:
    """One rectangle.

    Args:
        path: the packed token at each place of a row, [B, T].
        count: N.
        row: [R].
        first: the place at which each row's queries begin, [R].
        last: and end, [R].
    """
    at = first[:, None] + np.arange((last - first).max())
    asks = at < last[:, None]
    token = path[row[:, None], np.minimum(at, path.shape[1] - 1)]
    keys = path[row, : last.max()]
    hidden: NDArray[np.bool_] = np.arange(keys.shape[1]) > at[:, :, None]
    return Rectangle(
        torch.from_numpy(np.where(asks, token, 0).ravel()),
        torch.from_numpy(np.where(asks, token, count).ravel()),
        torch.from_numpy(np.flatnonzero(~asks)),
        torch.from_numpy(keys.ravel()),
        torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None, :, None]),
    )
