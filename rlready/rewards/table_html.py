"""The first table in a text of HTML, as a tree; any text is read, in time that grows with its length only.

The tree is that of PubTabNet (arXiv 1911.10683, sec. 5): the table, its sections, rows and cells as they are written
(no `tbody` is made up), a cell with its spans and its content. The content of a cell is a list of characters and tags;
tags within it are written without attributes. Text outside the cells is no part of the tree.

Two things are as the standard of HTML has them and PubTabNet's program has not: a `th` is a cell, so what a header says
counts; and a span that is no number is 1. End tags that HTML lets one leave out (`</td>`, `</tr>`, sections) are
understood, comments are dropped, entities are read, and what stays open is closed at the end of the text.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlready.rewards.treedistance import Nodes

__all__ = ["MAX_CHARACTERS", "MAX_NODES", "Cell", "NoTableError", "Space", "Table", "TableError", "read_table"]

MAX_CHARACTERS = 2_000_000
MAX_NODES = 20_000

Space = Literal["keep", "collapse"]
"""White space in cells: every character counts, or, as browsers show it, runs count as one and edges as none."""

_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>"']++|"[^"]*+"|'[^']*+')*+)>""")
_LOOSE_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)([^>]*+)>""")
_ATTRIBUTE = re.compile(r"""([^\s"'>/=]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?+""")
_NUMBER = re.compile(r"""["']?\s*+\+?(\d++)""", re.ASCII)
_SPACES = re.compile(r"[ \t\n\r\f]+")
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
})  # fmt: skip
_RAW = frozenset({"script", "style"})
_SECTIONS = frozenset({"thead", "tbody", "tfoot"})
_CELLS = frozenset({"td", "th"})
_ENDS_ITSELF = frozenset({"p", "li", "dt", "dd", "option"})


class TableError(ValueError):
    """A text that is not read as a table; the message says why."""


class NoTableError(TableError):
    """A text without a table."""


class Cell(NamedTuple):
    """The label of a cell.

    Attributes:
        tag: "td" or "th".
        colspan: columns it stands in.
        rowspan: rows it stands in.
        content: characters and tags: one text, or a tuple of them where there are tags.
    """

    tag: str
    colspan: int
    rowspan: int
    content: str | tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table's tree.

    Attributes:
        nodes: labels and sizes in postorder, the table itself last; a label is a `Cell`, or the tag of another node.
        elements: elements within the table, those within cells counted in and the table not: what PubTabNet's program
            divides by.
        closed: whether the table's end tag is there.
    """

    nodes: Nodes
    elements: int
    closed: bool

    def __len__(self) -> int:
        """Nodes of the tree, the table among them."""
        return len(self.nodes.sizes)


def read_table(text: str, *, structure: bool = False, space: Space = "keep") -> Table:
    """Read the first table of a text.

    Args:
        text: HTML, or a text with HTML in it.
        structure: leave the cells' contents out.
        space: how white space in cells counts.

    Raises:
        NoTableError: there is none.
        TableError: the text or the table is too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise TableError(f"the text has more than {MAX_CHARACTERS:,} characters")
    builder = _Builder(structure, space == "collapse")
    for kind, name, rest in _tokens(text):
        if kind == "text":
            builder.text(rest)
        elif kind == "open":
            builder.open(name, rest)
        else:
            builder.close(name)
        if builder.done:
            break
    return builder.table()


Token = tuple[Literal["text", "open", "close"], str, str]


def _tokens(text: str) -> Iterator[Token]:
    """Texts and tags in order. Every character is looked at a bounded number of times, whatever is not closed."""
    at, tag = 0, _TAG
    while True:
        found = text.find("<", at)
        if found < 0:
            if at < len(text):
                yield "text", "", text[at:]
            return
        if found > at:
            yield "text", "", text[at:found]
        match = tag.match(text, found)
        if match is None and tag is _TAG and _starts_tag(text, found):
            tag = _LOOSE_TAG  # a quote is never closed: from here on quotes mean nothing
            match = tag.match(text, found)
        if match is not None:
            at = match.end()
            name = match[2].lower()
            if match[1]:
                yield "close", name, ""
                continue
            yield "open", name, match[3]
            if name in _RAW and not match[3].endswith("/"):
                end = re.compile(f"</{name}", re.IGNORECASE).search(text, at)
                stop = end.start() if end else len(text)
                if stop > at:
                    yield "text", "", text[at:stop]
                at = stop
        elif text.startswith("<!--", found):
            end_at = text.find("-->", found + 4)
            at = len(text) if end_at < 0 else end_at + 3
        elif text.startswith(("<!", "<?"), found):
            end_at = text.find(">", found)
            at = len(text) if end_at < 0 else end_at + 1
        elif _starts_tag(text, found):
            return  # the text ends within a tag
        else:
            yield "text", "", "<"
            at = found + 1


def _starts_tag(text: str, at: int) -> bool:
    first = text[at + 1 : at + 2]
    if first == "/":
        first = text[at + 2 : at + 3]
    return first.isascii() and first.isalpha()


class _Builder:
    """The tree while it is read: a stack of open elements, from the table inwards.

    Nested tables open a scope each; in a scope, rows and cells end what HTML says that they end.
    """

    def __init__(self, structure: bool, collapse: bool) -> None:
        self.structure, self.collapse = structure, collapse
        self.labels: list[Cell | str] = []
        self.sizes: list[int] = []
        self.stack: list[tuple[str, int]] = []  # name, and how many nodes there were when it was opened
        self.places: dict[str, list[int]] = {}  # where on the stack elements of a name are
        self.scopes: list[int] = []  # where on the stack tables are
        self.cell_at = -1  # where on the stack the cell is; -1 outside of cells
        self.spans = (1, 1)
        self.content: list[str | tuple[str]] = []  # texts, and tags as tuples of one
        self.tagged = False
        self.elements = 0
        self.done = False
        self.closed = False

    def text(self, text: str) -> None:
        if self.cell_at >= 0 and not self.structure:
            if "&" in text:
                with contextlib.suppress(ValueError):  # the number of a character, of more digits than Python reads
                    text = html.unescape(text)
            self.content.append(text)

    def open(self, name: str, rest: str) -> None:
        if not self.stack and name != "table":
            return
        if name in _CELLS:
            self._end(*_CELLS)
        elif name == "tr":
            self._end(*_CELLS, "tr")
        elif name in _SECTIONS:
            self._end(*_CELLS, "tr", *_SECTIONS, "caption", "colgroup")
        elif name in _ENDS_ITSELF and self.stack[-1][0] == name:
            self._pop(len(self.stack) - 1)
        self.elements += 1
        if self.elements > MAX_NODES:
            raise TableError(f"the table has more than {MAX_NODES:,} elements")
        empty = name in _VOID or rest.endswith("/")
        if self.cell_at >= 0:
            self._tag(f"<{name}>")
        elif name in _CELLS:
            self.cell_at = len(self.stack)
            self.spans = _spans(rest)
            self.content, self.tagged = [], False
        self.stack.append((name, len(self.sizes)))
        self.places.setdefault(name, []).append(len(self.stack) - 1)
        if name == "table":
            self.scopes.append(len(self.stack) - 1)
        if empty:
            self.closed = len(self.stack) == 1
            self._pop(len(self.stack) - 1)

    def close(self, name: str) -> None:
        at = self._place(name)
        if at is not None:
            if at == 0:
                self.closed = True
            self._pop(at)

    def table(self) -> Table:
        if not self.stack and not self.done:
            raise NoTableError("there is no table")
        self._pop(0)
        return Table(Nodes(tuple(self.labels), tuple(self.sizes)), self.elements - 1, self.closed)

    def _place(self, name: str) -> int | None:
        """Where the innermost open element of a name is, within the innermost table."""
        places = self.places.get(name)
        return places[-1] if places and self.scopes and places[-1] >= self.scopes[-1] else None

    def _end(self, *names: str) -> None:
        """Close the outermost of the elements of these names, one of each at most, with all that is within it."""
        places = [at for at in map(self._place, names) if at is not None]
        if places:
            self._pop(min(places))

    def _pop(self, keep: int) -> None:
        """Close elements until the stack has `keep` of them."""
        while len(self.stack) > keep:
            name, before = self.stack.pop()
            at = len(self.stack)
            self.places[name].pop()
            if self.scopes and self.scopes[-1] == at:
                self.scopes.pop()
            if self.cell_at >= 0 and at > self.cell_at:
                self._tag(f"</{name}>")
                continue
            if at == self.cell_at:
                self.cell_at = -1
                self.labels.append(Cell(name, *self.spans, self._content()))
            else:
                self.labels.append(name)
            self.sizes.append(len(self.sizes) - before + 1)
        if not self.stack:
            self.done = True

    def _tag(self, tag: str) -> None:
        if not self.structure:
            self.content.append((tag,))
            self.tagged = True

    def _content(self) -> str | tuple[str, ...]:
        if not self.tagged:
            text = "".join(piece for piece in self.content if isinstance(piece, str))
            return _SPACES.sub(" ", text).strip(" ") if self.collapse else text
        out: list[str] = []
        for piece in self.content:
            out.extend(_SPACES.sub(" ", piece) if self.collapse and isinstance(piece, str) else piece)
        if self.collapse:
            while out and out[-1] == " ":
                out.pop()
            start = next((i for i, token in enumerate(out) if token != " "), 0)
            out = out[start:]
        return tuple(out)


def _spans(attributes: str) -> tuple[int, int]:
    """Columns and rows that a cell stands in; a number too large to be one is as large as any other such."""
    if "span" not in attributes.lower():
        return 1, 1
    found: dict[str, int] = {}
    for match in _ATTRIBUTE.finditer(attributes):
        name = match[1].lower()
        if name in ("colspan", "rowspan") and name not in found:
            number = _NUMBER.match(match[2] or "")
            found[name] = int(number[1].lstrip("0")[:18] or "0") if number else 1
    return found.get("colspan", 1) or 1, found.get("rowspan", 1)
