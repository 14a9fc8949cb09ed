"""The program in a response."""

from __future__ import annotations

import re

from rlready.rewards.answers import strip_thoughts

_OPEN = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
_NAMES = {
    "python": ("python", "py", "python3"),
    "ocaml": ("ocaml", "ml"),
    "fortran": ("fortran", "f90"),
    "julia": ("julia", "jl"),
}


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text that are closed: the word after the opening fence, and the content."""
    blocks: list[tuple[str, str]] = []
    fence, label = "", ""
    held: list[str] = []
    for line in text.split("\n"):
        if fence:
            mark = line.strip()
            if mark and set(mark) == {fence[0]} and len(mark) >= len(fence):
                blocks.append((label, "\n".join(held) + "\n"))
                fence = ""
            else:
                held.append(line)
            continue
        opened = _OPEN.fullmatch(line)
        if opened:
            fence, label, held = opened[1], opened[2].lower(), []
    return blocks


def find_program(text: str, language: str = "", *, bare: bool = False) -> str:
    """The program in a response: its last closed fenced block, outside of thoughts; "" where there is none.

    Args:
        text: the response.
        language: its name; where blocks are marked as being in this language, the last of those is taken.
        bare: a text without any fence is a program itself.
    """
    said = strip_thoughts(text)
    blocks = fenced_blocks(said)
    if not blocks:
        return said if bare and "```" not in said else ""
    names = _NAMES.get(language, (language,))
    marked = [content for label, content in blocks if label in names]
    return marked[-1] if marked else blocks[-1][1]
