"""A completion cut into steps, as token offsets. The pieces join back exactly.

A rule looks at text and gives the characters at which steps begin; each is then the token that holds that character.
So nothing is ever tokenised again, and a step that begins inside a token begins with that token. Rules (VinePPO,
arXiv 2410.01679, has the first two; the third and fourth are for vocabularies and answers without lines):

    line        a step is a line. Empty lines belong to the step before, leading ones to the first; the final answer,
                from its mark (`####` in GSM8K) on, belongs to the last step before it.
    math        newlines, and sentence ends followed by a capital, never inside maths or a LaTeX environment; pieces
                under 20 characters are merged with what follows, a short last one with what precedes it.
    separator   a step ends with a token that reads as the separator, such as `;` in a word-level vocabulary.
    every       a step is so many tokens.

An opened display or environment that is never closed (the answer was cut off) reaches to the end. A lone `$` with no
partner in its paragraph is a dollar.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlready.errors import UserError
from rlready.policy.base import Renderer

Decode = Callable[[Sequence[int]], str]
Kind = Literal["line", "math", "separator", "every"]
KINDS: tuple[Kind, ...] = ("line", "math", "separator", "every")

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BREAK = re.compile(r"\s*\n\s*|[.!?][\"'\u201d\u2019)\]]*\s+")
_OPEN = re.compile(r"\\\\|\\\$|\\begin\{([^{}]*)\}|\\\[|\\\(|\$\$|\$")
_DOLLAR = re.compile(r"\\.|\n[ \t]*\n|(\$)", re.DOTALL)
_UNFINISHED = "\ufffd"


class SplitError(ValueError):
    """A completion cannot be cut into steps; the message says why."""


@dataclass(frozen=True)
class StepRule:
    """How completions are cut.

    Attributes:
        kind: see the module's table.
        separator: text of the token that ends a step, for "separator".
        answer: what the final answer begins with, for "line" and "separator"; empty where it is a step of its own.
        least: shortest piece in characters, for "math".
        size: tokens per step, for "every".
    """

    kind: Kind = "line"
    separator: str = ""
    answer: str = "####"
    least: int = 20
    size: int = 8

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: a field has a value that cannot work.
        """
        if self.kind not in KINDS:
            raise UserError(f'Steps: kind="{self.kind}" is unknown; choose one of {", ".join(KINDS)}.')
        if self.kind == "separator" and not self.separator:
            raise UserError('Steps: kind="separator" needs separator=..., the text of the token that ends a step.')
        if self.size < 1 or self.least < 1:
            raise UserError(f"Steps: size={self.size} and least={self.least} must both be at least 1.")

    def starts(self, ids: Sequence[int], renderer: Renderer) -> list[int]:
        """Index of each step's first token, the first being 0. An end token belongs to the last step.

        Args:
            ids: a completion, [T].
            renderer: gives the text of tokens.

        Raises:
            SplitError: the completion is empty, or its tokens do not spell its text.
        """
        if not ids:
            raise SplitError("the completion has no tokens")
        body = list(ids[:-1] if ids[-1] in renderer.stop_ids else ids)
        if self.kind == "every":
            return list(range(0, max(len(body), 1), self.size))
        pieces = pieces_of(body, renderer.decode)
        if self.kind == "separator":
            return by_separator(pieces, self.separator, answer=self.answer)
        text = "".join(pieces)
        found = by_line(text, answer=self.answer) if self.kind == "line" else math(text, least=self.least)
        return on_tokens(found, pieces)


def by_line(text: str, *, answer: str = "####") -> list[int]:
    """Where the steps of a text begin, as characters: at its lines. The first is 0."""
    starts: list[int] = []
    for line in _LINE.finditer(text):
        words = line.group().lstrip()
        if starts and answer and words.startswith(answer):
            break
        if words:
            starts.append(line.start())
    return [0, *starts[1:]]


def math(text: str, *, least: int = 20) -> list[int]:
    """Where the steps of a text begin, as characters: at lines and sentences, never inside maths. The first is 0."""
    spans = maths(text)
    starts = [0]
    inside = 0
    for mark in _BREAK.finditer(text):
        cut = mark.end()
        if cut == len(text) or ("\n" not in mark.group() and not text[cut].isupper()):
            continue
        while inside < len(spans) and spans[inside][1] <= cut:
            inside += 1
        if inside < len(spans) and spans[inside][0] < cut:
            continue
        if len(text[starts[-1] : cut].strip()) >= least:
            starts.append(cut)
    if len(starts) > 1 and len(text[starts[-1] :].strip()) < least:
        starts.pop()
    return starts


def maths(text: str) -> list[tuple[int, int]]:
    r"""The stretches of a text that are maths or a LaTeX environment, as (first character, one past the last).

    `$..$` within a paragraph, `$$..$$`, `\(..\)`, `\[..\]`, `\begin{x}..\end{x}`, the latter nested.
    """
    out: list[tuple[int, int]] = []
    at = 0
    while (opening := _OPEN.search(text, at)) is not None:
        at = opening.end()
        mark = opening.group()
        if mark in ("\\\\", "\\$"):
            continue
        if mark == "$":
            end = _dollar(text, at)
            if end is None:
                continue
        elif mark.startswith("\\begin"):
            end = _environment(text, at, opening.group(1))
        else:
            close = {"\\[": "\\]", "\\(": "\\)", "$$": "$$"}[mark]
            found = text.find(close, at)
            end = len(text) if found < 0 else found + len(close)
        out.append((opening.start(), end))
        at = end
    return out


def _dollar(text: str, at: int) -> int | None:
    """One past the dollar that closes inline maths; None where the paragraph has none."""
    for found in _DOLLAR.finditer(text, at):
        if found.group(1):
            return found.end()
        if found.group()[0] == "\n":
            return None
    return None


def _environment(text: str, at: int, name: str) -> int:
    """One past the end of an environment; the text's end where it is never closed."""
    depth = 1
    for found in re.finditer(rf"\\(begin|end)\{{{re.escape(name)}\}}", text[at:]):
        depth += 1 if found.group(1) == "begin" else -1
        if depth == 0:
            return at + found.end()
    return len(text)


def by_separator(pieces: Sequence[str], separator: str, *, answer: str = "") -> list[int]:
    """Where steps begin, as tokens: after each token that reads as the separator. The first is 0.

    Args:
        pieces: the text of each token.
        separator: compared without the blanks around it; one that is all blank (a newline) need only be contained.
        answer: a step that begins with it belongs, with all that follows, to the step before.
    """
    blank = not separator.strip()
    starts = [0]
    for i, piece in enumerate(pieces[:-1]):
        if not (separator in piece if blank else piece.strip() == separator.strip()):
            continue
        if answer and "".join(pieces[i + 1 :]).lstrip().startswith(answer):
            break
        starts.append(i + 1)
    return starts


def pieces_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text of each token, so that they join to the text of all, [T].

    A token is read after the one before it, since some decoders put blanks between words. A character whose bytes are
    spread over several tokens belongs to the first of them; the others are empty.

    Raises:
        SplitError: the pieces do not join to the text of all.
    """
    ids = list(ids)
    out = [""] * len(ids)
    before = read = 0
    for i in range(len(ids)):
        now = decode(ids[before : i + 1])
        if now.endswith(_UNFINISHED) and i + 1 < len(ids):
            continue
        out[read] = now[len(decode(ids[before:read])) :]
        before, read = read, i + 1
    if "".join(out) != decode(ids):
        raise SplitError("the texts of its tokens, one after the other, are not its text")
    return out


def on_tokens(starts: Sequence[int], pieces: Sequence[str]) -> list[int]:
    """Characters at which steps begin to tokens: the one that holds the character. Steps within one token are one.

    Args:
        starts: characters, increasing, the first 0.
        pieces: the text of each token.
    """
    ends: list[int] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    out = [0]
    for start in starts[1:]:
        token = bisect_right(ends, start)
        if out[-1] < token < len(pieces):
            out.append(token)
    return out


def spans(starts: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Steps as (first token, one past the last) of a completion of so many tokens."""
    return list(zip(starts, [*starts[1:], length], strict=True))
