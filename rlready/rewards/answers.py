r"""Where the answer stands in a completion.

Explicit marks win, the last one first read: `\boxed{...}`, `<answer>...</answer>`, `#### ...` at the start of a
line, and "the answer is ...". What stands inside `<think>...</think>` is thought, not answer; a thought that was
never closed leaves no answer. A tool call is no answer either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlready.scoring import answer_text, last_turn
from rlready.types import Trajectory

__all__ = ["Answer", "answer_text", "boxed", "find_answer", "read_answer", "strip_thoughts"]

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_PHRASE = re.compile(r"\banswer\b(?:[ \t]+is)?[ \t]*[:=]?[ \t]*([^\n]+)", re.IGNORECASE)
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer part of a completion.

    Attributes:
        text: the answer; empty where there is none.
        marked: True where an explicit mark said that this is the answer.
        cut: True where the completion was cut off by its length cap.
        visible: everything outside the thoughts.
    """

    text: str
    marked: bool
    cut: bool
    visible: str


def strip_thoughts(text: str) -> str:
    """The text outside `<think>` blocks; nothing after a block that was not closed.

    A closing tag without an opening one ends a thought whose opening tag was part of the prompt.
    """
    head, closed, tail = text.rpartition("</think>")
    if closed:
        before = head.partition("<think>")[0] if "<think>" in head else ""
        text = before + tail
    return text.partition("<think>")[0]


def boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}` or `\fbox{...}`, braces matched; None where there is none."""
    best: tuple[int, int] | None = None
    opened: list[int] = []  # where the content of a box begins, or -1 for another brace
    for match in _BRACE.finditer(text):  # once through the text, however many boxes are never closed
        sign = match[0]
        if sign == "}":
            start = opened.pop() if opened else -1
            if start >= 0 and (best is None or start > best[0]):
                best = (start, match.start())
        elif sign == "{" or len(sign) > 2:
            opened.append(-1 if sign == "{" else match.end())
    return None if best is None else text[best[0] : best[1]].strip()


def find_answer(text: str, *, cut: bool = False) -> Answer:
    """Find the answer in a completion; without a mark, the whole visible text is the answer."""
    visible = _CALL.sub("", strip_thoughts(text)).strip()
    inner = boxed(visible)
    if inner is not None:
        return Answer(inner, True, cut, visible)
    for mark in (_TAG, _HASHES):
        if mark is _TAG and "</answer>" not in visible.lower():  # many that are never closed take long to look for
            continue
        found = mark.findall(visible)
        if found:
            return Answer(found[-1].strip(), True, cut, visible)
    phrases = _PHRASE.findall(visible)
    if phrases:
        return Answer(phrases[-1].strip().strip("*").strip(), True, cut, visible)
    return Answer(visible, False, cut, visible)


def read_answer(trajectory: Trajectory) -> Answer:
    """The answer of a trajectory: that of its last turn that is not a probe."""
    turn = last_turn(trajectory)
    return find_answer(answer_text(trajectory), cut=turn is not None and turn.stop == "length")
