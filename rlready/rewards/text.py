"""Verifiers of text: the same text, or a text of a given pattern."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from rlready.errors import UserError
from rlready.rewards.answers import read_answer, strip_thoughts
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory


def normal(text: str, *, case: bool = False) -> str:
    """NFC form, runs of white space as one blank, trimmed; lower case unless `case` matters."""
    text = " ".join(unicodedata.normalize("NFC", text).split())
    return text if case else text.casefold()


def verify_exact(answer: str, gold: Any, *, case: bool = False) -> Score:
    """Right where the answer is the gold text, or one of a list of them, up to white space (and case).

    Numbers and bools as gold are compared by their text. An empty answer is no answer, even where the gold is empty; an
    empty gold makes the grader fail.
    """
    golds = gold if isinstance(gold, (list, tuple)) else [gold]
    if not golds or not all(isinstance(g, (str, int, float)) and str(g).strip() for g in golds):
        return Score.failed(f"the gold text {gold!r} is empty or no text")
    given = normal(answer, case=case)
    if not given:
        return Score.no_answer()
    return Score.right() if given in {normal(str(g), case=case) for g in golds} else Score.wrong()


def exact(column: str = "answer", *, case: bool = False, marked: bool = False) -> RewardFn:
    """Reward the gold text of `task.data[column]` (a text or a list of accepted texts).

    Args:
        column: where the gold is.
        case: whether case matters.
        marked: compare only what an explicit mark (see `rewards.answers`) points at; without a mark there is no answer.
    """

    def exact(task: Task, trajectory: Trajectory) -> Score:
        found = read_answer(trajectory)
        text = (found.text if found.marked else "") if marked else found.visible
        return verify_exact(text, task.data.get(column), case=case)

    return declare(exact, name="exact", columns=[column])


def verify_pattern(answer: str, pattern: str | re.Pattern[str], *, whole: bool = True) -> Score:
    """Right where the answer matches the regular expression: all of it, or (`whole=False`) some part.

    An empty answer is no answer, whatever the pattern allows. A pattern that does not compile makes the grader fail.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        return Score.failed(f"the pattern {pattern!r} is not a regular expression: {error}")
    if not answer.strip():
        return Score.no_answer()
    found = compiled.fullmatch(answer.strip()) if whole else compiled.search(answer)
    return Score.right() if found else Score.wrong()


def pattern(
    regex: str | None = None, *, column: str | None = None, whole: bool = True, thoughts: bool = False
) -> RewardFn:
    """Reward a completion of a given form.

    Args:
        regex: the pattern for all tasks, or
        column: the column that holds each task's pattern.
        whole: match all of the completion, not some part of it.
        thoughts: match with the `<think>` block in place (a format reward); otherwise outside it only.

    Raises:
        UserError: neither or both are given, or the pattern does not compile.
    """
    if (regex is None) == (column is None):
        raise UserError("rewards.pattern needs either a regular expression or column=, not both.")
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise UserError(f"rewards.pattern: {regex!r} is not a regular expression ({error}).") from None

    def pattern(task: Task, trajectory: Trajectory) -> Score:
        text = answer_text(trajectory)
        wanted = regex if column is None else task.data.get(column)
        if not isinstance(wanted, str) or not wanted:
            return Score.failed(f"the gold pattern {wanted!r} is empty or no text")
        return verify_pattern(text if thoughts else strip_thoughts(text), wanted, whole=whole)

    return declare(pattern, name="pattern", columns=[column] if column else [])
