"""The tree distance against a plain recursion over forests, and within its bounds."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.rewards.treedistance import Nodes, TooLargeError, distance

Tree = tuple[str, tuple[Any, ...]]
LETTERS = "abcd"
# 0.9 from b to c, but 0.3 + 0.2 by way of a: no triangle inequality, as with normalised text distances
PRICES = {"ab": 0.3, "ac": 0.2, "bc": 0.9, "ad": 1.0, "bd": 1.0, "cd": 0.0625}


def price(x: str, y: str) -> float:
    return 0.0 if x == y else PRICES["".join(sorted((x, y)))]


def costs(a: Sequence[str], b: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([[price(x, y) for y in b] for x in a])


def nodes(tree: Tree) -> Nodes:
    labels: list[str] = []
    sizes: list[int] = []

    def walk(t: Tree) -> int:
        size = 1 + sum(walk(c) for c in t[1])
        labels.append(t[0])
        sizes.append(size)
        return size

    walk(tree)
    return Nodes(labels, sizes)


def count(forest: tuple[Tree, ...]) -> int:
    return sum(1 + count(t[1]) for t in forest)


@functools.lru_cache(maxsize=200_000)
def plain(f: tuple[Tree, ...], g: tuple[Tree, ...]) -> float:
    """The recursion as it stands in textbooks, on the last trees of two forests."""
    if not f or not g:
        return float(count(f) + count(g))
    (x, below_x), (y, below_y) = f[-1], g[-1]
    return min(
        plain(f[:-1] + below_x, g) + 1,
        plain(f, g[:-1] + below_y) + 1,
        plain(f[:-1], g[:-1]) + plain(below_x, below_y) + price(x, y),
    )


trees = st.recursive(
    st.sampled_from(LETTERS).map(lambda x: (x, ())),
    lambda inner: st.tuples(st.sampled_from(LETTERS), st.lists(inner, max_size=4).map(tuple)),
    max_leaves=7,
)


@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_any_two_trees(a: Tree, b: Tree) -> None:
    assert distance(nodes(a), nodes(b), costs) == pytest.approx(plain((a,), (b,)), abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(trees, st.data())
def test_trees_that_share_most_of_their_subtrees(a: Tree, data: st.DataObject) -> None:
    """Edits of a tree, which the fast path for equal edges has much to do with."""

    def edited(t: Tree) -> Tree:
        kind = data.draw(st.sampled_from(["keep", "keep", "rename", "drop", "double", "wrap"]))
        children = tuple(edited(c) for c in t[1])
        if kind == "drop" and children:
            children = children[1:]
        elif kind == "double" and children:
            children = (children[0], *children)
        elif kind == "wrap":
            children = (("a", children),)
        return ("b" if kind == "rename" else t[0], children)

    b = edited(a)
    assert distance(nodes(a), nodes(b), costs) == pytest.approx(plain((a,), (b,)), abs=1e-9)


def rows(rng: random.Random, depth: int, width: int) -> Tree:
    children = () if depth == 0 else tuple(rows(rng, depth - 1, width) for _ in range(rng.randint(0, width)))
    return (rng.choice(LETTERS), children)


@pytest.mark.parametrize("seed", range(12))
def test_regular_trees_like_those_of_tables(seed: int) -> None:
    rng = random.Random(seed)
    a, b = rows(rng, 3, 3), rows(rng, 3, 3)
    far = distance(nodes(a), nodes(b), costs)
    assert far == pytest.approx(plain((a,), (b,)), abs=1e-9)
    assert far == pytest.approx(distance(nodes(b), nodes(a), costs), abs=1e-9)


def chain(n: int) -> Nodes:
    return Nodes(["a"] * n, list(range(1, n + 1)))


def comb(n: int, letter: str = "a", *, left: bool) -> Nodes:
    """n nodes on a path, each but the last with a leaf beside the path: before it, or after it."""
    labels, sizes = [letter], [1]
    if left:
        for _ in range(n):
            labels += [letter, letter]
            sizes += [1, sizes[-1] + 2]
        return Nodes(labels, sizes)
    labels = [letter] * (2 * n + 1)
    return Nodes(labels, [1] * (n + 1) + [3 + 2 * i for i in range(n)])


def test_known_distances() -> None:
    assert distance(chain(1), chain(1), costs) == 0
    assert distance(chain(7), chain(3), costs) == 4
    star = Nodes(["a"] * 5, [1, 1, 1, 1, 5])
    assert distance(chain(5), star, costs) == 6  # a root and one leaf are kept
    assert distance(comb(4, left=True), comb(4, left=True), costs) == 0
    assert distance(comb(4, left=True), comb(4, "d", left=True), costs) == 9
    turned = distance(comb(3, left=True), comb(3, left=False), costs)
    assert turned == distance(comb(3, left=False), comb(3, left=True), costs)
    assert 0 < turned <= 6


def test_deep_trees_need_no_recursion() -> None:
    assert distance(chain(100_000), chain(99_990), costs) == 10


@pytest.mark.parametrize("left", [True, False])
def test_work_is_bounded(left: bool) -> None:
    """What is refused is refused at once; what is taken ends soon, and the deep side may lean either way."""
    began = time.process_time()
    with pytest.raises(TooLargeError):
        distance(comb(3000, left=left), comb(3000, "b", left=left), costs)
    with pytest.raises(TooLargeError):
        distance(comb(900, left=True), comb(900, "b", left=False), costs)
    assert time.process_time() - began < 3
    # all of one side's nodes can be renamed, at 1 each, and 400 are to be inserted
    assert distance(comb(300, left=left), comb(500, "d", left=left), costs) == 1001
