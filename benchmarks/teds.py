"""TEDS on tables of 20 x 8 cells against the same score by the library `apted`, paired; whether values are equal.

Both sides start from HTML and end with a number. The other side is what public scorers do: lxml reads the HTML, `apted`
computes the tree edit distance with renaming as PubTabNet defines it. Its Levenshtein distance is rapidfuzz's, which is
ours too, tried with and without a memory of pairs of contents; the faster of the two counts, kind by kind. Needs
`pip install apted lxml`.

    python benchmarks/teds.py            # writes benchmarks/results/teds.json, prints the ratios
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from parts import write

from rlready.rewards import teds

WANTED = 20.0


class Node:
    """A node as `apted` wants it."""

    __slots__ = ("children", "label")

    def __init__(self, label: tuple[Any, ...]) -> None:
        """A node without children."""
        self.label, self.children = label, []  # type: ignore[var-annotated]


class Reader:
    """HTML to nodes by lxml; a cell's content is a list of characters and tags."""

    def __init__(self) -> None:
        """Make the parser."""
        from lxml import html

        self.html = html
        self.parser = html.HTMLParser(remove_comments=True)

    def __call__(self, text: str) -> tuple[Node, int]:
        """The first table's root and the number of its nodes."""
        page = self.html.fromstring(f"<html><body>{text}</body></html>", parser=self.parser)
        count = 0

        def tree(element: Any) -> Node:
            nonlocal count
            count += 1
            cell = element.tag in ("td", "th")
            spans = (int(element.get("colspan", "1")), int(element.get("rowspan", "1"))) if cell else ()
            node = Node((element.tag, spans, tokens(element)[1:-1] if cell else ()))
            if not cell:
                node.children = [tree(child) for child in element]
            return node

        def tokens(element: Any) -> tuple[str, ...]:
            out = [f"<{element.tag}>", *(element.text or "")]
            for child in element:
                out += [*tokens(child), *(child.tail or "")]
            return (*out, f"</{element.tag}>")

        return tree(page.find(".//table")), count


def by_apted(remember: bool) -> Callable[[str, str], float]:
    """The other side, with or without a memory of pairs of contents."""
    from apted import APTED, Config
    from rapidfuzz.distance import Levenshtein

    far: Callable[[Any, Any], float] = Levenshtein.normalized_distance
    if remember:
        far = functools.lru_cache(maxsize=200_000)(far)
    read = Reader()

    class Renaming(Config):
        """PubTabNet's."""

        def rename(self, a: Node, b: Node) -> float:
            """Content counts where tags and spans agree."""
            if a.label[:2] != b.label[:2]:
                return 1.0
            return far(a.label[2], b.label[2]) if a.label[2] or b.label[2] else 0.0

        def children(self, node: Node) -> list[Node]:
            """A node's children."""
            return node.children

    def score(prediction: str, gold: str) -> float:
        (a, size_a), (b, size_b) = read(prediction), read(gold)
        return max(0.0, 1.0 - APTED(a, b, Renaming()).compute_edit_distance() / max(size_a, size_b))

    return score


Grid = list[list[str]]


def grid(rng: random.Random, rows: int = 20, columns: int = 8) -> Grid:
    """Contents of a table: a column of names, others of numbers, some empty."""
    words = ["total", "revenue", "net", "gross", "of which", "other", "assets", "costs", "margin", "share"]

    def cell(column: int) -> str:
        if column == 0:
            return " ".join(rng.choices(words, k=rng.randint(1, 3)))
        return "" if rng.random() < 0.1 else f"{rng.uniform(-999, 9999):,.{rng.randint(0, 2)}f}"

    return [[cell(c) for c in range(columns)] for _ in range(rows)]


def markup(cells: Grid, *, head: int = 1, wide: Sequence[tuple[int, int]] = ()) -> str:
    """The HTML of a grid, the first rows as its head; `wide` cells are two columns wide."""
    lines = []
    for r, row in enumerate(cells):
        line = ""
        for c, text in enumerate(row):
            if (r, c - 1) not in wide:
                line += f"<td{' colspan=2' if (r, c) in wide else ''}>{f'<b>{text}</b>' if r < head else text}</td>"
        lines.append(f"<tr>{line}</tr>")
    return f"<table><thead>{''.join(lines[:head])}</thead><tbody>{''.join(lines[head:])}</tbody></table>"


def noisy(rng: random.Random, cells: Grid, share: float) -> Grid:
    """A share of the cells with one character too many."""
    return [[x + rng.choice("017abc") if rng.random() < share else x for x in row] for row in cells]


def pair(kind: str, rng: random.Random) -> tuple[str, str]:
    """A prediction and its gold."""
    cells = grid(rng)
    gold = markup(cells)
    if kind == "equal":
        return gold, gold
    if kind == "one cell wrong":
        return markup(
            noisy(rng, [list(row) for row in cells[:10]], 0.0) + noisy(rng, cells[10:11], 1.0) + cells[11:]
        ), gold
    if kind == "a tenth of the cells wrong":
        return markup(noisy(rng, cells, 0.1)), gold
    if kind == "every cell wrong":
        return markup(noisy(rng, cells, 1.0)), gold
    if kind == "two rows lost, a tenth wrong":
        lost = rng.sample(range(1, 20), 2)
        return markup([row for r, row in enumerate(noisy(rng, cells, 0.1)) if r not in lost]), gold
    if kind == "a column lost":
        return markup([row[:3] + row[4:] for row in cells]), gold
    if kind == "spans and sections differ":
        wide = [(rng.randrange(1, 20), rng.randrange(7)) for _ in range(6)]
        return markup(noisy(rng, cells, 0.1), head=2, wide=wide), gold
    return markup(grid(rng)), gold


KINDS = (
    "equal", "one cell wrong", "a tenth of the cells wrong", "every cell wrong", "two rows lost, a tenth wrong",
    "a column lost", "spans and sections differ", "unrelated tables",
)  # fmt: skip


def small(rng: random.Random) -> str:
    """A small table with anything in it, for the comparison of values."""
    cells = [[rng.choice(["", "a", "ab", "ba", "aba", "12", "x y"]) for _ in range(rng.randint(0, 4))]
             for _ in range(rng.randint(0, 5))]  # fmt: skip
    wide = [(rng.randrange(5), rng.randrange(4)) for _ in range(rng.randint(0, 2))]
    return markup(cells, head=rng.randint(0, 2), wide=wide)


def clock(work: Callable[[], float], repeat: int) -> tuple[float, float, float]:
    """Wall and processor seconds of one call, and what it gave."""
    wall, cpu, value = time.perf_counter(), time.process_time(), 0.0
    for _ in range(repeat):
        value = work()
    return (time.perf_counter() - wall) / repeat, (time.process_time() - cpu) / repeat, value


def measure(kind: str, pairs: int, sides: dict[str, Callable[[str, str], float]]) -> dict[str, Any]:
    """All sides on the same pairs, one after another."""
    rng = random.Random(f"teds {kind}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(pairs):
        prediction, gold = pair(kind, rng)
        for name, score in sides.items():
            work = functools.partial(score, prediction, gold)
            wall, cpu, value = clock(work, 5 if name == "rlready" else 1)
            seconds[name].append(wall)
            processor[name].append(cpu)
            values[name].append(value)
    best = min((name for name in sides if name != "rlready"), key=lambda name: statistics.median(processor[name]))
    return {
        "milliseconds": {name: 1000 * statistics.median(found) for name, found in processor.items()},
        "best of apted": best,
        "ratio": statistics.median(b / a for a, b in zip(processor["rlready"], processor[best], strict=True)),
        "ratio by the clock": statistics.median(b / a for a, b in zip(seconds["rlready"], seconds[best], strict=True)),
        "mean TEDS": statistics.fmean(values["rlready"]),
        "largest difference": max(abs(a - b) for a, b in zip(values["rlready"], values[best], strict=True)),
    }


def main() -> None:
    """Compare values on many small tables, then values and times on those of 20 x 8."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of tables a kind")
    parser.add_argument("--small", type=int, default=3000, help="pairs of small tables whose values are compared")
    args = parser.parse_args()
    sides = {"rlready": teds, "apted": by_apted(False), "apted with a memory": by_apted(True)}
    rng = random.Random("small tables")
    apart, deep = 0.0, sides["apted"]
    for _ in range(args.small):
        one, other = small(rng), small(rng)
        apart = max(apart, abs(teds(one, other) - deep(one, other)))
    kinds = {}
    for kind in KINDS:
        kinds[kind] = measure(kind, args.pairs, sides)
        print(f"{kind}: {kinds[kind]['ratio']:.0f}x, {kinds[kind]['milliseconds']}", flush=True)
    apart = max(apart, *(found["largest difference"] for found in kinds.values()))
    result = {
        "setting": {"rows": 20, "columns": 8, "pairs a kind": args.pairs, "pairs of small tables": args.small},
        "versions": {name: importlib.metadata.version(name) for name in ("apted", "rapidfuzz", "lxml", "numpy")},
        "wanted": WANTED,
        "largest difference": apart,
        "kinds": kinds,
    }
    write("teds", result)
    print(f"at least {min(found['ratio'] for found in kinds.values()):.1f}x; values differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
