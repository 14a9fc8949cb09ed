"""The edit distance of two ordered labelled trees, exact: deleting and inserting cost 1, renaming what the caller says.

The recursion is that of Zhang and Shasha (1989, "Simple fast algorithms for the editing distance between trees and
related problems", SIAM J. Comput. 18(6), sec. 4), arranged so that numpy does the work:

- what the trees have in common at their edges is left out first. Equal first trees, or equal last trees, of two
  forests are mapped to each other by some cheapest mapping, and so are two roots whose labels are equal. (Exchange
  argument: no node left of another may be mapped right of its image, so only one of the two copies of an equal first
  tree has nodes that are mapped elsewhere; mapping the copies to each other instead costs no more.) Neither needs the
  triangle inequality, which normalised text distances do not keep;
- a leaf against a subtree is known in closed form: it is mapped to the cheapest node;
- what is counted is what a mapping saves against deleting and inserting everything. Then deletions and insertions add
  nothing, and of one row of a forest table all entries are computed at once, the last step being a running maximum;
- the subtrees that stand beside each other (the rows of a table) are compared at once.

Time is the product of both trees' sums of keyroots' sizes; `distance` refuses what is above a bound before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Costs", "Nodes", "TooLargeError", "distance"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Costs = Callable[[Sequence[Any], Sequence[Any]], Floats]
"""What renaming costs, between 0 and 2: labels [m] and [n], each without repeats, to [m, n]; equal labels cost 0."""

MAX_PAIRS = 4_000_000
"""Nodes of one tree times nodes of the other: the size of the tables in memory."""
MAX_CELLS = 150_000_000
"""Entries of all forest tables together."""
MAX_WORK = 2_000_000
"""The sum of keyroots' sizes of one tree, of which its index arrays have a few."""
MAX_STEPS = 150_000
"""Rows of forest tables that are computed one after another."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A tree as lists: in postorder, each node's label and how many nodes its subtree has."""

    labels: Sequence[Hashable]
    sizes: Sequence[int]


class TooLargeError(ValueError):
    """Two trees whose distance is not known in bounded time."""


def distance(a: Nodes, b: Nodes, costs: Costs) -> float:
    """The least cost of turning tree `a` into tree `b`.

    Args:
        a: its nodes.
        b: its nodes.
        costs: of renaming; symmetric.

    Raises:
        TooLargeError: what is left after the fast paths is above the bounds on time or memory.
    """
    (low_a, high_a), (low_b, high_b) = _differing(a, b)
    if low_a >= high_a or low_b >= high_b:
        return float(high_a - low_a + high_b - low_b)
    if (high_a - low_a + 1) * (high_b - low_b + 1) > MAX_PAIRS:
        raise TooLargeError(f"{high_a - low_a:,} and {high_b - low_b:,} nodes differ")
    one = _Shape.of(a.labels[low_a:high_a], a.sizes[low_a:high_a])
    two = _Shape.of(b.labels[low_b:high_b], b.sizes[low_b:high_b])
    if one.work(mirrored=True) * two.work(mirrored=True) < one.work() * two.work():
        one, two = one.mirrored(), two.mirrored()
    if max(one.work(), two.work()) > MAX_WORK or one.work() * two.work() > MAX_CELLS:
        raise TooLargeError(f"{high_a - low_a:,} and {high_b - low_b:,} nodes, deeply nested, differ")
    groups_one, groups_two = one.groups(), two.groups()
    if _steps(groups_two, groups_one) < _steps(groups_one, groups_two):
        one, two, groups_one, groups_two = two, one, groups_two, groups_one
    if _steps(groups_one, groups_two) > MAX_STEPS:
        raise TooLargeError(f"{high_a - low_a:,} and {high_b - low_b:,} nodes, most deeply nested, differ")
    gains = _gains(one, two, costs)
    trees = np.zeros(gains.shape)  # [i, j] the most saved between the subtrees of i and j
    _leaves(one, two, gains, trees)
    _leaves(two, one, gains.T, trees.T)
    for rows in groups_one:
        for columns in groups_two:
            _forests(rows, columns, gains, trees)
    return len(one.sizes) + len(two.sizes) - float(trees[-1, -1])


def _differing(a: Nodes, b: Nodes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Ranges, in postorder, of the forests that are left when equal edges are taken away."""
    ids: dict[Hashable, int] = {}
    kin_a, sign_a = _signs(a, ids)
    kin_b, sign_b = _signs(b, ids)
    trees_a, trees_b = [len(a.labels) - 1], [len(b.labels) - 1]
    while True:
        first, last = 0, 0
        most = min(len(trees_a), len(trees_b))
        while first < most and sign_a[trees_a[first]] == sign_b[trees_b[first]]:
            first += 1
        while last < most - first and sign_a[trees_a[-1 - last]] == sign_b[trees_b[-1 - last]]:
            last += 1
        trees_a = trees_a[first : len(trees_a) - last]
        trees_b = trees_b[first : len(trees_b) - last]
        alone = len(trees_a) == len(trees_b) == 1
        if not alone or a.labels[trees_a[0]] != b.labels[trees_b[0]]:
            return _range(trees_a, a.sizes), _range(trees_b, b.sizes)
        trees_a, trees_b = kin_a[trees_a[0]], kin_b[trees_b[0]]


def _range(trees: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    return (trees[0] - sizes[trees[0]] + 1, trees[-1] + 1) if trees else (0, 0)


def _signs(tree: Nodes, ids: dict[Hashable, int]) -> tuple[list[list[int]], list[int]]:
    """Each node's children, and a number for its subtree that equal subtrees share."""
    kin = _kin(tree.sizes)
    signs: list[int] = []
    for label, children in zip(tree.labels, kin, strict=True):
        key: Hashable = (label, tuple([signs[c] for c in children])) if children else (label,)
        signs.append(ids.setdefault(key, len(ids)))
    return kin, signs


def _kin(sizes: Sequence[int]) -> list[list[int]]:
    """Each node's children, in order."""
    kin: list[list[int]] = []
    open_trees: list[int] = []
    for i, size in enumerate(sizes):
        if size == 1:
            kin.append([])
        else:
            first = len(open_trees)
            left = size - 1
            while left > 0:
                first -= 1
                left -= sizes[open_trees[first]]
            kin.append(open_trees[first:])
            del open_trees[first:]
        open_trees.append(i)
    return kin


_ROOT = object()


@dataclass(frozen=True)
class _Group:
    """Keyroots that are compared at once: none is within another, and their sizes differ by less than a factor of 2.

    Attributes:
        roots: [k] their indices.
        size: the largest size m.
        node: [k, m] index of each one's r-th node in postorder; past its end any node.
        start: [k, m] where, counted from the subtree's first node, the subtree of that node begins.
        left: [k, m] whether that node is on the path to the subtree's first node.
    """

    roots: Ints
    size: int
    node: Ints
    start: Ints
    left: NDArray[np.bool_]


@dataclass(frozen=True)
class _Shape:
    """A forest under one root, in postorder.

    Attributes:
        labels: of the nodes, the root last.
        sizes: of the subtrees.
        kin: the children of each node.
    """

    labels: list[Any]
    sizes: list[int]
    kin: list[list[int]]

    @classmethod
    def of(cls, labels: Sequence[Any], sizes: Sequence[int]) -> _Shape:
        sizes = [*sizes, len(sizes) + 1]
        return cls([*labels, _ROOT], sizes, _kin(sizes))

    def work(self, *, mirrored: bool = False) -> int:
        """The sum of the sizes of keyroots that are no leaves: of the root, and of all but first (last) children."""
        sizes, total = self.sizes, self.sizes[-1]
        for children in self.kin:
            for child in children[:-1] if mirrored else children[1:]:
                if sizes[child] > 1:
                    total += sizes[child]
        return total

    def groups(self) -> list[_Group]:
        """Keyroots that are no leaves, inner ones first."""
        sizes = self.sizes
        keyroots = {len(sizes) - 1}.union(*(children[1:] for children in self.kin if len(children) > 1))
        rank = [0] * len(sizes)  # how many keyroots are nested within this node, itself among them
        buckets: dict[tuple[int, int], list[int]] = {}
        for i, children in enumerate(self.kin):
            if children:
                inner = max([rank[c] for c in children])
                if i in keyroots:
                    inner += 1
                    buckets.setdefault((inner, sizes[i].bit_length()), []).append(i)
                rank[i] = inner
        where = np.asarray(sizes, dtype=np.int64)
        return [_group(buckets[key], where) for key in sorted(buckets)]

    def mirrored(self) -> _Shape:
        """The same with children in reverse order, whose keyroots are others."""
        n = len(self.sizes)
        begin, place = [0] * n, [0] * n
        for i in range(n - 1, -1, -1):  # a parent before its children
            place[i] = begin[i] + self.sizes[i] - 1
            at = begin[i]
            for child in reversed(self.kin[i]):
                begin[child] = at
                at += self.sizes[child]
        labels: list[Any] = [None] * n
        sizes = [0] * n
        for i, at in enumerate(place):
            labels[at], sizes[at] = self.labels[i], self.sizes[i]
        return _Shape(labels, sizes, _kin(sizes))


def _group(roots: list[int], sizes: Ints) -> _Group:
    at = np.asarray(roots, dtype=np.int64)
    size = int(sizes[at].max())
    first = at - sizes[at] + 1
    steps = np.arange(size)
    node = np.minimum(first[:, None] + steps, len(sizes) - 1)
    start = node - sizes[node] + 1 - first[:, None]
    inside = steps < sizes[at][:, None]
    return _Group(at, size, node, np.clip(start, 0, steps), (start == 0) & inside)


def _steps(rows: list[_Group], columns: list[_Group]) -> int:
    """How many rows of tables are computed one after another."""
    return sum(group.size for group in rows) * len(columns)


def _gains(a: _Shape, b: _Shape, costs: Costs) -> Floats:
    """What mapping a node to a node saves, [nodes of a, nodes of b]: a deletion and an insertion, less the renaming.

    The roots are mapped to each other, and to nothing else.
    """
    known_a, known_b = dict.fromkeys(a.labels[:-1]), dict.fromkeys(b.labels[:-1])
    table = np.zeros((len(known_a) + 1, len(known_b) + 1))
    table[:-1, :-1] = np.maximum(2.0 - costs(list(known_a), list(known_b)), 0.0)
    table[-1, -1] = 2.0
    at_a, at_b = ({label: i for i, label in enumerate(known)} for known in (known_a, known_b))
    rows = np.asarray([*(at_a[label] for label in a.labels[:-1]), len(known_a)])
    columns = np.asarray([*(at_b[label] for label in b.labels[:-1]), len(known_b)])
    gains: Floats = table[rows].take(columns, axis=1)
    return gains


def _leaves(a: _Shape, b: _Shape, gains: Floats, trees: Floats) -> None:
    """A leaf of a against a subtree of b saves what it does against that subtree's best node."""
    leaves = np.flatnonzero(np.asarray(a.sizes) == 1)
    best = np.ascontiguousarray(gains[leaves].T)  # [nodes of b, leaves of a]
    for j, children in enumerate(b.kin):
        if children:
            np.maximum(best[j], best[children].max(axis=0), out=best[j])
    trees[leaves] = best.T


def _forests(rows: _Group, columns: _Group, gains: Floats, trees: Floats) -> None:
    """The forest tables of each keyroot of a against each of b; fills in their left paths in `trees`.

    `table[r, x, y, c]` is the most saved between the first r nodes of x and the first c of y. It is the largest of the
    entry above, the entry to the left, and the one where the subtrees of r and c begin plus what these save; where both
    stand on left paths, of the entry before and what mapping r to c saves.
    """
    k, n, width = len(rows.roots), len(columns.roots), columns.size
    table = np.zeros((rows.size + 1, k, n, width + 1))
    (_one_by_one if k == 1 else _all_at_once)(rows, columns, gains, trees, table)
    which_a, r = np.nonzero(rows.left)
    which_b, c = np.nonzero(columns.left)
    i, j = rows.node[which_a, r], columns.node[which_b, c]
    trees[i[:, None], j] = table[r[:, None] + 1, which_a[:, None], which_b, c + 1]


def _one_by_one(rows: _Group, columns: _Group, gains: Floats, trees: Floats, table: Floats) -> None:
    """Fill the table of one keyroot of a; these are the long ones, so little is done in each step."""
    nodes, starts, on_path = rows.node[0], rows.start[0].tolist(), rows.left[0].tolist()
    n, width = columns.node.shape
    if n == 1:
        layers, begin, below = table[:, 0, 0], columns.start[0], columns.node[0]
    else:
        layers, begin, below = table[:, 0], np.arange(n)[:, None] * (width + 1) + columns.start, columns.node
    saved = trees[nodes].take(below, axis=1)
    left = columns.left.reshape(below.shape)
    flat = table.reshape(rows.size + 1, -1)
    row = layers[0]
    for r, (start, found) in enumerate(zip(starts, saved, strict=True)):
        above, row = row, layers[r + 1]
        found += flat[start].take(begin)
        if on_path[r]:
            np.copyto(found, above[..., :-1] + gains[nodes[r]].take(below), where=left)
        np.maximum(found, above[..., 1:], out=row[..., 1:])
        np.maximum.accumulate(row, axis=-1, out=row)


def _all_at_once(rows: _Group, columns: _Group, gains: Floats, trees: Floats, table: Floats) -> None:
    """Fill the tables of several keyroots of a, row by row."""
    k, n, width = len(rows.roots), len(columns.roots), columns.size
    layer = k * n * (width + 1)
    begin = np.arange(k * n).reshape(k, n, 1) * (width + 1) + columns.start
    flat = table.reshape(-1)
    for r in range(rows.size):
        node = rows.node[:, r, None, None]
        found = flat.take(begin + (rows.start[:, r] * layer)[:, None, None])
        found += trees[node, columns.node]
        both = rows.left[:, r, None, None] & columns.left
        if both.any():
            np.copyto(found, table[r, ..., :-1] + gains[node, columns.node], where=both)
        row = table[r + 1]
        np.maximum(found, table[r, ..., 1:], out=row[..., 1:])
        np.maximum.accumulate(row, axis=-1, out=row)
