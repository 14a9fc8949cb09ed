"""Verifiers of text: the same text, or a text of a given pattern."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from rlready.errors import UserError
from rlready.rewards.answers import find_answer, read_answer, strip_thoughts
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


_LETTER = r"[\(\[]?\s*([A-Z])\s*[\)\]]?"
_REASON = "because|since|as|is|was|for|and|or|which|due|not"
_ALONE = re.compile(  # a capital that is no article or pronoun: "A cat", "I think"
    rf"(?<![A-Za-z0-9])(?:([B-HJ-Z])|([AI])(?!\s+(?!(?:{_REASON})\b)[a-z]))(?![A-Za-z0-9'])"
)
_BRACKETED = re.compile(r"[\(\[]\s*([A-Z])\s*[\)\]]|\*\*\s*([A-Z])\s*\*\*")


def verify_choice(completion: str, gold: Any, letters: str = "ABCD") -> Score:
    """Right where the completion names the gold letter, and no other, as its answer.

    The answer is what an explicit mark points at; else the whole text where it is a letter ("B", "(b)", "B."); else the
    only letter that stands in brackets or bold. A completion that names several letters there is wrong: naming every
    choice must not pay. `gold` is a letter or an index from 0.
    """
    letters = letters.upper()
    if isinstance(gold, int) and not isinstance(gold, bool):
        gold = letters[gold] if 0 <= gold < len(letters) else None
    wanted = gold.strip().strip("().").upper() if isinstance(gold, str) else ""
    if len(wanted) != 1 or wanted not in letters:
        return Score.failed(f"the gold choice {gold!r} is none of {', '.join(letters)}")
    found = find_answer(completion)
    if not found.text:
        return Score.no_answer()
    named = _named(found.text, found.marked)
    if not named:
        return Score.wrong() if found.marked else Score.no_answer()
    return Score.right() if named == {wanted} else Score.wrong()


def _named(text: str, marked: bool) -> set[str]:
    alone = re.fullmatch(rf"(?:option\s+)?{_LETTER}\s*[.:]?", text.strip("*$ \n"), re.IGNORECASE)
    if alone:
        return {alone.group(1).upper()}
    brackets = {a or b for a, b in _BRACKETED.findall(text)}
    if brackets or not marked:
        return brackets
    first = re.match(_LETTER + r"\s*[.:)]\s", text)  # "B. A long reason"
    return {first.group(1)} if first else {a or b for a, b in _ALONE.findall(text)}


def choice(column: str = "answer", *, letters: str = "ABCD") -> RewardFn:
    """Reward the right letter of a multiple choice; `task.data[column]` holds the letter or its index from 0."""

    def choice(task: Task, trajectory: Trajectory) -> Score:
        return verify_choice(answer_text(trajectory), task.data.get(column), letters)

    return declare(choice, name="choice", columns=[column])
