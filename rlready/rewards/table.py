"""TEDS: how alike two tables are, as HTML, by the edit distance of their trees.

Zhong, ShafieiBavani and Jimeno Yepes, "Image-based table recognition: data, model, and evaluation" (arXiv 1911.10683),
sec. 5: TEDS(a, b) = 1 - distance(a, b) / max(|a|, |b|), where |.| counts the nodes of a tree. Inserting and deleting a
node costs 1. Renaming costs 1 where tag, colspan or rowspan differ; for two cells that agree in these it costs the edit
distance of their contents over the longer one's length; else 0. Structure-only TEDS leaves the contents out. The
distance is exact (`treedistance`), and which tree an HTML text is stands in `table_html`.

Trees without depth in common can differ by more than the larger one's size; TEDS is then 0, not negative. PubTabNet's
program divides by the number of elements within the table, those inside cells counted in, instead of |.|; for numbers
that are to be set beside its own, say `nodes="program"`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlready.errors import UserError, did_you_mean
from rlready.rewards.answers import strip_thoughts
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.table_html import Cell, NoTableError, Space, Table, TableError, read_table
from rlready.rewards.treedistance import MAX_PAIRS, TooLargeError, distance
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["grade_teds", "grade_teds_structure", "read_table", "table", "table_distance", "teds", "verify_table"]

NodeRule = Literal["tree", "program"]
MAX_TEXT_WORK = 1_000_000_000
"""Words of 64 bits in the comparison of all cells' contents with each other; about as many nanoseconds."""
_CACHED = 200_000


def table_distance(a: Table, b: Table) -> float:
    """The edit distance of two tables' trees.

    Raises:
        TooLargeError: the tables are too large, or their contents too long, to be compared in bounded time.
    """
    return distance(a.nodes, b.nodes, _renaming)


def teds(prediction: str | Table, gold: str | Table, *, structure: bool = False, nodes: NodeRule = "tree") -> float:
    """The similarity of two tables, in [0, 1]; 1 where their trees are equal, and only there.

    Args:
        prediction: HTML with a table in it, or a table that was read.
        gold: the same.
        structure: leave the cells' contents out (of texts; a table that was read is taken as it is).
        nodes: what is divided by; see the module.

    Raises:
        TableError: a text has no table, or one that is too large.
        TooLargeError: the two cannot be compared in bounded time.
    """
    a, b = (read_table(t, structure=structure) if isinstance(t, str) else t for t in (prediction, gold))
    return _similarity(table_distance(a, b), a, b, nodes)


def _similarity(distance: float, a: Table, b: Table, nodes: NodeRule) -> float:
    if distance == 0:
        return 1.0
    size = max(len(a), len(b)) if nodes == "tree" else max(a.elements, b.elements, 1)
    return max(0.0, 1.0 - distance / size)


def verify_table(
    prediction: str,
    gold: Any,
    *,
    structure: bool = False,
    space: Space = "keep",
    nodes: NodeRule = "tree",
    right_at: float = 1.0,
) -> Graded:
    """Score a table by TEDS. The first table of each text counts, outside of thoughts.

    Args:
        prediction: a response with the table as HTML.
        gold: HTML with the right table.
        structure: leave the cells' contents out.
        space: "keep": white space in cells counts like any other character, as in PubTabNet; "collapse": as browsers
            show it, so that indented HTML is the same table.
        nodes: what is divided by; see the module.
        right_at: least TEDS that is right; at 1 only equal trees are.

    Returns:
        The score is TEDS, also of a wrong table. No table is no answer. A table that is too large to be compared in
        bounded time is wrong and scores 0; where it is the gold that is too large, or no table, the grader failed.
        Parts: `teds`, `distance`, and `nodes` of the prediction's tree.

    Raises:
        UserError: a rule or threshold is none.
    """
    _check(space, nodes, right_at)
    if not isinstance(gold, str):
        return failed(f"the gold table is {short(gold)}, not HTML")
    try:
        wanted = _gold(gold, structure, space) if len(gold) <= _CACHED else _read(gold, structure, space)
    except TableError as error:
        return failed(f"the gold cannot be read as a table: {error}")
    visible = strip_thoughts(prediction)
    if not visible.strip():
        return no_answer("there is no answer")
    try:
        given = _read(visible, structure, space)
    except NoTableError:
        return no_answer("the answer has no table in HTML")
    except TableError as error:
        return wrong(f"the answer is not graded: {error}")
    try:
        far = table_distance(given, wanted)
    except TooLargeError as error:
        reason = f"the tables are too large to be compared in bounded time: {error}"
        return failed(reason) if len(wanted) ** 2 > MAX_PAIRS else wrong(reason)
    value = _similarity(far, given, wanted, nodes)
    parts = {"teds": value, "distance": far, "nodes": float(len(given))}
    name = "structure-only TEDS" if structure else "TEDS"
    if far == 0:
        return right("the tables' structure is the same" if structure else "the tables are the same", 1.0, parts)
    reason = f"{name} is {value:.4f}: distance {far:.4g}, {len(given):,} nodes given and {len(wanted):,} wanted"
    reason += "" if given.closed else "; the table's end is missing"
    return right(reason, value, parts) if value >= right_at else wrong(reason, value, parts)


def table(
    column: str = "html",
    *,
    structure: bool = False,
    space: Space = "keep",
    nodes: NodeRule = "tree",
    right_at: float = 1.0,
) -> RewardFn:
    """Reward a table by TEDS against the one in `task.data[column]`; see `verify_table`.

    Raises:
        UserError: a rule or threshold is none.
    """
    _check(space, nodes, right_at)

    def table(task: Task, trajectory: Trajectory) -> Score:
        gold = task.data.get(column)
        graded = verify_table(
            answer_text(trajectory), gold, structure=structure, space=space, nodes=nodes, right_at=right_at
        )
        return graded.as_score()

    return declare(table, name="table", columns=[column])


def grade_teds(record: Record) -> Graded:
    """TEDS of a record; fields `space`, `nodes` and `right_at` are those of `verify_table`."""
    return _grade(record, structure=False)


def grade_teds_structure(record: Record) -> Graded:
    """Structure-only TEDS of a record; fields as in `grade_teds`."""
    return _grade(record, structure=True)


def _grade(record: Record, *, structure: bool) -> Graded:
    return verify_table(
        prediction(record),
        field(record, "reference"),
        structure=structure,
        space=option(record, "space", "keep", str),
        nodes=option(record, "nodes", "tree", str),
        right_at=option(record, "right_at", 1.0, int, float),
    )


def _check(space: str, nodes: str, right_at: float) -> None:
    if space not in ("keep", "collapse"):
        raise did_you_mean("value of space", str(space), ("keep", "collapse"))
    if nodes not in ("tree", "program"):
        raise did_you_mean("value of nodes", str(nodes), ("tree", "program"))
    if not isinstance(right_at, (int, float)) or not 0 < right_at <= 1 or math.isnan(right_at):
        raise UserError(f"right_at={right_at!r} must be above 0 and at most 1.")


def _read(text: str, structure: bool, space: Space) -> Table:
    return read_table(text, structure=structure, space=space)


_gold = functools.lru_cache(maxsize=64)(_read)


def _renaming(a: Sequence[Any], b: Sequence[Any]) -> NDArray[np.float64]:
    """What renaming costs between labels; contents are compared once for each pair of different ones."""
    costs = np.ones((len(a), len(b)))
    forms_a, forms_b = _by_form(a), _by_form(b)
    work = 0
    for form in forms_a.keys() & forms_b.keys():
        rows, columns = forms_a[form], forms_b[form]
        if len(form) == 1:  # no cells: one label a tag
            costs[rows[0], columns[0]] = 0.0
            continue
        left, above = [a[i].content for i in rows], [b[j].content for j in columns]
        work += sum(map(len, left)) * sum(map(len, above)) // 64
        if work > MAX_TEXT_WORK:
            raise TooLargeError("the contents of their cells are too long")
        costs[np.ix_(rows, columns)] = _contents(left, above)
    return costs


def _by_form(labels: Sequence[Any]) -> dict[tuple[Any, ...], list[int]]:
    """Labels by what must agree for renaming to cost less than 1."""
    forms: dict[tuple[Any, ...], list[int]] = {}
    for i, label in enumerate(labels):
        form = (label.tag, label.colspan, label.rowspan) if isinstance(label, Cell) else (label,)
        forms.setdefault(form, []).append(i)
    return forms


def _contents(a: Sequence[str | tuple[str, ...]], b: Sequence[str | tuple[str, ...]]) -> NDArray[np.float64]:
    """Edit distances over the longer one's length."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    far = cdist(a, b, scorer=Levenshtein.distance, dtype=np.int32)
    longer = np.maximum.outer([len(x) for x in a], [len(x) for x in b])
    return np.asarray(far / np.maximum(longer, 1), dtype=np.float64)
