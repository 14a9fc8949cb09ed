"""TEDS: known values, kinds with their twins, HTML as people write it, hostile input."""

from __future__ import annotations

import random
import time
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Verdict
from rlready.errors import UserError
from rlready.rewards import table_html
from rlready.rewards.kinds import KINDS
from rlready.rewards.table import read_table, table, table_distance, teds, verify_table
from rlready.rewards.table_html import Cell, NoTableError, Table, TableError
from rlready.rewards.treedistance import TooLargeError
from tests.rewards.public_cases import each_case

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@each_case("teds")
def test_case(case: dict[str, Any]) -> None:
    graded = KINDS[case["kind"]].grade(case)
    assert (graded.verdict is R) == case["correct"], (case["note"], graded.reason)
    assert (graded.score == 1) == case["correct"]


def html(*rows: list[str], head: int = 0, tag: str = "td") -> str:
    cells = ["<tr>" + "".join(f"<{tag}>{c}</{tag}>" for c in row) + "</tr>" for row in rows]
    if head:
        cells = ["<thead>", *cells[:head], "</thead><tbody>", *cells[head:], "</tbody>"]
    return "<table>" + "".join(cells) + "</table>"


FOUR = html(["a", "b"], ["c", "d"])


@pytest.mark.parametrize(
    ("given", "wanted", "whole", "structure"),
    [
        (FOUR, FOUR, 1.0, 1.0),
        ("<table></table>", FOUR, 1 / 7, 1 / 7),
        ("<table></table>", "<table></table>", 1.0, 1.0),
        (html(["z", "b"], ["c", "d"]), FOUR, 6 / 7, 1.0),
        (html(["ab", "b"], ["c", "d"]), FOUR, 6.5 / 7, 1.0),  # one insertion in two characters
        (html(["a", "b"]), FOUR, 4 / 7, 4 / 7),
        (html(["a", "b"], ["c"]), FOUR, 6 / 7, 6 / 7),
        (html(["a", "b"], ["c", "d", "e"]), FOUR, 7 / 8, 7 / 8),
        (html(["c", "d"], ["a", "b"]), FOUR, 3 / 7, 1.0),
        (html(["", "b"], ["c", "d"]), FOUR, 6 / 7, 1.0),
        (html(["", ""], ["", ""]), html(["", ""], ["", ""]), 1.0, 1.0),
        (FOUR.replace("<tr>", "<tbody><tr>", 1), FOUR, 7 / 8, 7 / 8),  # sections count as they are written
        (FOUR.replace("td", "th"), FOUR, 3 / 7, 3 / 7),
        (FOUR.replace("<td>", '<td colspan="1">').replace("<tr>", "<tr class='x'>"), FOUR, 1.0, 1.0),
        (FOUR.replace("<td>", '<td colspan="2">', 1), FOUR, 6 / 7, 6 / 7),
        (FOUR.replace("<td>", '<td rowspan="2">', 1), FOUR, 6 / 7, 6 / 7),
        (FOUR.replace("<td>", '<td data-colspan="2" title="colspan=3">', 1), FOUR, 1.0, 1.0),
        (FOUR.replace("<td>", "<TD COLSPAN = 2 >", 1), FOUR.replace("<td>", "<td colspan='2'>", 1), 1.0, 1.0),
        (FOUR.replace("<td>", "<td colspan=x>", 1), FOUR, 1.0, 1.0),
        (FOUR.replace("<td>", "<td colspan=0>", 1), FOUR, 1.0, 1.0),
        (FOUR.replace(">a<", "><b>a</b><"), FOUR, 1 - 2 / 3 / 7, 1.0),  # two tags in three tokens
        (FOUR.replace(">a<", ">a<br><"), FOUR.replace(">a<", ">a<br/><"), 1.0, 1.0),
        (FOUR.replace(">a<", ">&lt;b&gt;<"), FOUR.replace(">a<", "><b><"), 1 - 1 / 7, 1.0),  # a tag is no text
        (FOUR.replace(">a<", ">&amp;<"), FOUR.replace(">a<", ">&<"), 1.0, 1.0),
        (FOUR.replace(">a<", "> a <"), FOUR, 1 - 2 / 3 / 7, 1.0),
        (html(["a"], tag="th"), html(["b"], tag="th"), 2 / 3, 1.0),  # what a header says counts
        ("<table><caption>x</caption></table>", "<table><caption>y</caption></table>", 1.0, 1.0),
        ("<table>" + "<div>" * 9, "<table>" + "<p></p>" * 9, 0.0, 0.0),  # nothing in common: not negative
    ],
)
def test_known_values(given: str, wanted: str, whole: float, structure: float) -> None:
    assert teds(given, wanted) == pytest.approx(whole, abs=1e-12)
    assert teds(wanted, given) == pytest.approx(whole, abs=1e-12)
    assert teds(given, wanted, structure=True) == pytest.approx(structure, abs=1e-12)
    graded = verify_table(given, wanted)
    assert graded.score == pytest.approx(whole, abs=1e-12)
    assert graded.verdict is (R if whole == 1 else W) and graded.reason


SAME = "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>"


@pytest.mark.parametrize(
    "text",
    [
        "<table><tr><td>a<td>b<tr><td>c<td>d</table>",
        "<TABLE>\n <TR>\n<TD>a</TD><TD>b</TD>\n</TR><tr><td>c</td><td>d</td></tr></TABLE>",
        "<table border=1 class='a>b'><!-- <td>x</td> --><tr><td>a</td><td>b</td><tr><td>c</td><td>d</td></tr>",
        "<!doctype html><html><body><p>Here:</p><table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr>"
        "</table><table><tr><td>other</td></tr></table></body></html>",
        "<!-- <table><tr><td>no</td></tr></table> -->" + SAME,
        "```html\n" + SAME + "\n```",
        "<think><table></table></think>" + SAME,
        SAME[:-8],
        SAME.replace("<td>a", "<td title='>'>a"),
        SAME.replace("</td>", "</td></td></b></p>"),
        SAME.replace("<td>a</td>", "<td>a</td>loose text"),
        SAME.replace("<td>a", "<td id=\"x\" \n class='y'>a"),
        SAME.replace("<td>a", "<td>&#97;"),
        "1 < 2 <3 </ < " + SAME,
    ],
)
def test_ways_to_write_the_same_table(text: str) -> None:
    graded = verify_table(text, SAME)
    assert (graded.verdict, graded.score) == (R, 1.0), graded.reason


def test_cells_and_their_contents() -> None:
    found = read_table(
        "<table><thead><tr><th rowspan=2>H &eacute;<td colspan='3'>x <b>y<i>z</b> w<br></td></tr></thead>"
        "<tr><td/><td><table><tr><td>in</td></tr></table>out</td></tr></table>"
    )
    cells = [label for label in found.nodes.labels if isinstance(label, Cell)]
    assert cells == [
        Cell("th", 1, 2, "H é"),
        Cell("td", 3, 1, (*"x ", "<b>", "y", "<i>", "z", "</i>", "</b>", *" w", "<br>", "</br>")),
        Cell("td", 1, 1, ""),
        Cell("td", 1, 1, ("<table>", "<tr>", "<td>", *"in", "</td>", "</tr>", "</table>", *"out")),
    ]
    assert [x for x in found.nodes.labels if isinstance(x, str)] == ["tr", "thead", "tr", "table"]
    assert list(found.nodes.sizes) == [1, 1, 3, 4, 1, 1, 3, 8]
    assert len(found) == 8 and found.closed


def test_white_space_as_browsers_show_it() -> None:
    pretty = "<table>\n <tr>\n  <td>\n   a  b\n  </td>\n  <td> <b>c</b>\n </td>\n </tr>\n</table>"
    plain = "<table><tr><td>a b</td><td><b>c</b></td></tr></table>"
    assert verify_table(pretty, plain).verdict is W
    assert verify_table(pretty, plain, space="collapse").verdict is R
    assert verify_table(plain.replace("a b", "ab"), plain, space="collapse").verdict is W


def test_nodes_as_the_published_program_counts_them() -> None:
    """Elements within the table, those of cells counted in and the table itself not."""
    given, wanted = html(["z", "b"], ["c", "d"]), FOUR.replace(">b<", "><b>b</b><")
    assert teds(FOUR, given, nodes="program") == pytest.approx(1 - 1 / 6)
    far = 1 + 2 / 3
    assert teds(given, wanted, nodes="program") == pytest.approx(1 - far / 7)
    assert teds(given, wanted) == pytest.approx(1 - far / 7)


@pytest.mark.parametrize(
    ("given", "wanted", "verdict", "word"),
    [
        ("", FOUR, N, "no answer"),
        ("<think>" + FOUR, FOUR, N, "no answer"),
        ("I see no table.", FOUR, N, "no table"),
        ("| a | b |", FOUR, N, "no table"),
        (FOUR, "", F, "gold"),
        (FOUR, None, F, "gold"),
        (FOUR, "no table", F, "gold"),
        ("", "no table", F, "gold"),
        (FOUR, "<table>" * 30_000, F, "gold"),
        (FOUR[:-30], FOUR, W, "end is missing"),
        ("<table>" + "<tr><td>" * 15_000, FOUR, W, "20,000 elements"),
        (FOUR + "x" * 2_000_000, FOUR, W, "2,000,000 characters"),
    ],
)
def test_verdicts(given: str, wanted: Any, verdict: Verdict, word: str) -> None:
    graded = verify_table(given, wanted)
    assert graded.verdict is verdict and word in graded.reason
    assert graded.as_score().verdict is verdict


def test_options_are_checked_and_used() -> None:
    near = html(["z", "b"], ["c", "d"])
    assert verify_table(near, FOUR, right_at=0.8).verdict is R
    assert verify_table(near, FOUR, right_at=0.9).verdict is W
    for wrong in ({"right_at": 0}, {"right_at": float("nan")}, {"space": "trim"}, {"nodes": "all"}):
        with pytest.raises(UserError):
            verify_table(FOUR, FOUR, **wrong)  # type: ignore[arg-type]
        with pytest.raises(UserError):
            table(**wrong)  # type: ignore[arg-type]
    record = {"prediction": " " + near, "reference": FOUR, "right_at": 0.8}
    assert KINDS["teds"].grade(record).verdict is R
    with pytest.raises(UserError, match="reference"):
        KINDS["teds"].grade({"prediction": near})


def _hostile() -> dict[str, str]:
    return {
        "deep": "<table>" + "<div>" * 100_000,
        "cells in cells": "<table><tr><td>" * 100_000,
        "rows": "<table>" + "<tr><td>x" * 100_000,
        "large": "<table>" + "<tr><td>x</td></tr>" * 520_000,
        "comb": "<table>" + "<div><i></i>" * 1900,
        "other comb": "<table>" + "<div>" * 900 + "<i></i></div>" * 900,
        "less than": "<table>" + "<" * 300_000,
        "open tags": "<table>" + "<a " * 600_000,
        "open quotes": "<table>" + '<a "' * 480_000,
        "mixed quotes": "<table>" + '<a \'">"' * 280_000,
        "comments": "<!--" * 480_000,
        "scripts": "<table><script>" * 130_000,
        "end tags": "<table>" + "<b>" * 9000 + "</i>" * 200_000,
        "entities": "<table><tr><td>" + "&" * 900_000,
        "digits": "<table><tr><td>&#" + "9" * 900_000 + ";",
        "attribute": "<table><td colspan" + " " * 1_900_000 + ">",
        "equals": "<table><td colspan=" + "= " * 900_000 + ">",
        "colspan": "<table><tr><td colspan=1000000000>x<td colspan=" + "9" * 100_000 + ">y",
        "tags": "<table><tr><td>" + "".join(f"<x{i}>" for i in range(15_000)),
        "spans": "<table>" + "".join(f"<td rowspan={i}>" for i in range(1900)),
        "thoughts": "<think>" * 280_000,
    }


@pytest.mark.parametrize("name", list(_hostile()))
def test_hostile_tables_end_soon_and_are_never_right(name: str) -> None:
    rng = random.Random(0)
    gold = html(*[[str(rng.random()) for _ in range(8)] for _ in range(20)])
    began = time.process_time()
    graded = verify_table(_hostile()[name], gold)
    assert time.process_time() - began < 4
    assert graded.verdict in (W, N) and graded.score < 0.2 and graded.reason


def test_long_contents_are_refused_before_they_are_compared() -> None:
    one, other = html(["ab" * 200_000]), html(["ba" * 300_000])
    began = time.process_time()
    graded = verify_table(one, other)
    assert graded.verdict is W and "too long" in graded.reason
    with pytest.raises(TooLargeError):
        teds(one, other)
    assert verify_table(one, one).verdict is R
    assert time.process_time() - began < 2


def test_a_gold_beyond_the_bounds_is_the_graders_failure() -> None:
    gold, other = (html(*[[f"{sign}{i}"] for i in range(1200)]) for sign in "ab")
    assert verify_table(other, gold).verdict is F
    assert verify_table(gold, gold).verdict is R
    assert verify_table(gold.replace("a7<", "b7<"), gold).score == pytest.approx(1 - 0.5 / 2401)


# The reference: an edit distance of tables as the definition has it, by the plain recursion over forests.


def _plain(a: Table, b: Table) -> float:
    def forest(t: Table) -> tuple[Any, ...]:
        done: list[tuple[Any, int]] = []
        for label, size in zip(t.nodes.labels, t.nodes.sizes, strict=True):
            below, left = [], size - 1
            while left:
                tree, n = done.pop()
                below.append(tree)
                left -= n
            done.append(((label, tuple(reversed(below))), size))
        return (done[0][0],)

    def far(x: Any, y: Any) -> int:
        row = list(range(len(y) + 1))
        for i, c in enumerate(x, 1):
            corner, row[0] = row[0], i
            for j, d in enumerate(y, 1):
                corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (c != d))
        return row[-1]

    def price(x: Any, y: Any) -> float:
        if not isinstance(x, Cell) or not isinstance(y, Cell):
            return float(x != y)
        if x[:3] != y[:3]:
            return 1.0
        return far(x.content, y.content) / max(len(x.content), len(y.content), 1)

    def size(f: Any) -> int:
        return sum(1 + size(t[1]) for t in f)

    @cache
    def distance(f: Any, g: Any) -> float:
        if not f or not g:
            return float(size(f) + size(g))
        (x, below_x), (y, below_y) = f[-1], g[-1]
        return min(
            distance(f[:-1] + below_x, g) + 1,
            distance(f, g[:-1] + below_y) + 1,
            distance(f[:-1], g[:-1]) + distance(below_x, below_y) + price(x, y),
        )

    return distance(forest(a), forest(b))


def cells(words: list[str]) -> st.SearchStrategy[str]:
    spans = st.sampled_from(["", "", "", " colspan=2", " rowspan=2"])
    return st.builds(lambda tag, span, word: f"<{tag}{span}>{word}</{tag}>", st.sampled_from(["td", "td", "th"]), spans,
                     st.sampled_from(words))  # fmt: skip


WORDS = ["", "a", "ab", "aba", "ba", "<b>a</b>", "a<br>b", "12"]
some_rows = st.lists(st.lists(cells(WORDS), max_size=3).map(lambda r: "<tr>" + "".join(r) + "</tr>"), max_size=3)
tables = st.builds(
    lambda head, body, cut: f"<table>{'<thead>' + ''.join(head) + '</thead>' if cut else ''}{''.join(body)}</table>",
    some_rows,
    some_rows,
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(tables, tables, st.booleans())
def test_equal_to_the_definition(one: str, other: str, structure: bool) -> None:
    a, b = read_table(one, structure=structure), read_table(other, structure=structure)
    wanted = _plain(a, b)
    assert table_distance(a, b) == pytest.approx(wanted, abs=1e-9)
    value = teds(one, other, structure=structure)
    assert value == pytest.approx(max(0.0, 1 - wanted / max(len(a), len(b))), abs=1e-9)
    assert (value == 1) == (a.nodes == b.nodes)  # elements within cells are no nodes of it


PIECES = [
    "<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th>", "<thead>", "</tbody>", "<td colspan=", "'2'", ">",
    "<", "</", "<!--", "-->", "<!", "<?", "<b>", "</b>", "<br/>", "<p>", "<script>", "</script>", "&amp;", "&#x", "&",
    '"', "a", " ", "\n", "<caption>", "<table", "</td", "<think>", "</think>", "\x00", "\ud800", "é",
]  # fmt: skip
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join)


@settings(max_examples=400, deadline=None)
@given(soup, soup)
def test_any_text_is_graded(one: str, other: str) -> None:
    graded = verify_table(one, other)
    assert graded.reason and (graded.verdict is F or 0 <= graded.score <= 1)
    try:
        a = read_table(one)
    except NoTableError:
        assert graded.verdict in (N, F)
        return
    assert a.nodes.sizes[-1] == len(a.nodes.labels) == len(a)
    if "think>" not in one:  # what stands before the end of a thought is none of the answer
        assert verify_table("<table></table>" + one, one).verdict in (R, W)
    assert teds(one, one) == 1


@settings(max_examples=200, deadline=None)
@given(soup)
def test_well_formed_tables_are_read_as_lxml_reads_them(extra: str) -> None:
    lxml = pytest.importorskip("lxml.html")
    import html as entities

    safe = entities.escape("".join(c for c in extra if c.isprintable() and not "\ud800" <= c <= "\udfff"))
    head = f"<thead><tr><td>{safe}</td><td><b>x{safe}</b>y<br></td></tr></thead>"
    text = f"<table>{head}<tr><td rowspan=2>z</td></tr></table>"
    element = lxml.fromstring(f"<html><body>{text}</body></html>").find(".//table")

    def tokens(node: Any) -> list[str]:
        out = [f"<{node.tag}>", *(node.text or "")]
        for child in node:
            out += tokens(child)
        return [*out, f"</{node.tag}>", *((node.tail or "") if node.tag != "td" else "")]

    read = [tuple(label.content) for label in read_table(text).nodes.labels if isinstance(label, Cell)]
    assert read == [tuple(tokens(td)[1:-1]) for td in element.iter("td")]


def test_limits_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_html, "MAX_NODES", 7)
    read_table(FOUR)
    with pytest.raises(TableError, match="7 elements"):
        read_table(FOUR.replace("</table>", "<tr></tr></table>"))
