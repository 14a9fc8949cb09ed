r"""One score in a judge's reply in words, read strictly: what is ambiguous is no score.

Marks, the strongest first; the strongest kind that is there decides, whatever else the reply says:

1. `[[4]]` or `\boxed{4}`
2. `<score>4</score>` (also rating, grade)
3. the one JSON object with "score" (rating, grade, overall) in it
4. "final score: 4", "overall rating is 4/5"
5. "score: 4", "rating: 4 out of 5"
6. "4/5", "4 out of 5", where the reply has no other number
7. a reply that is a number and nothing else

All marks of that kind must say the same. A number with a doubt behind it ("9/10 or maybe 8", "7-8", "7 to 8"), a mark
without a number ("Score: N/A"), a percentage, a number with a decimal comma, and a score outside its scale are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rlready.rewards.answers import strip_thoughts
from rlready.rewards.jsons import find_json
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.verdict import Graded, failed, right, short, wrong

__all__ = ["JudgeError", "grade_judge_score", "read_score"]

MAX_CHARACTERS = 200_000
_NUMBER = r"[-+\u2212]?\d{1,12}(?:\.\d{1,12})?(?![\w%]|[.,]\d|\s?%)"
_SCALED = rf"({_NUMBER})(?:\s{{0,3}}(?:/|out\sof|of)\s{{0,3}}({_NUMBER}))?"
_WHOLE = re.compile(rf"[\s*_`'\"(]*{_SCALED}[\s*_`'\".!)]*(?:points?[\s.!]*)?", re.IGNORECASE)
_HEAD = re.compile(rf"[\s*_`'\"(\[]*{_SCALED}", re.IGNORECASE)
_BRACKETS = re.compile(r"\[\[([^\[\]]{0,60})\]\]|\\boxed\s?\{([^{}]{0,60})\}")
_TAGS = re.compile(r"<(score|rating|grade)>([^<>]{0,60})</\1>", re.IGNORECASE)
_MARKS = re.compile(
    r"\b(?:(final|overall|total)[\s*_]{0,4})?(?:score|rating|grade)s?\b(?!\s*(?:of\s)?(?:from|between)\b)"
    r"[\s*_\"'`)\]]{0,6}(:|=|\bis\b|\bof\b|[-\u2013](?=\s))?(?:[\s*_]{0,4}(?:is|of|would\sbe)\b)?([^\n]{0,200})",
    re.IGNORECASE,
)
_FRACTION = re.compile(rf"(?<![\w.,/])({_NUMBER})\s{{0,3}}(?:/|out\sof)\s{{0,3}}({_NUMBER})(?!\s?/)", re.IGNORECASE)
_ANY_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DOUBT = re.compile(
    r"^[\s*_`'\")\]]{0,6}(?:[-\u2013\u2014~/,]|\.\.|to\b|or\b|and\b|through\b|plus\b)[\s*_]{0,4}(?:(?:maybe|perhaps|possibly|even)\s)?"
    r"[-+\u2212]?\d|\b(?:or|maybe|perhaps|possibly|probably|rather|between|actually|no)\b[^\n.;\d]{0,30}\d",
    re.IGNORECASE,
)
_KEYS = ("score", "rating", "grade", "overall", "overall_score", "final_score", "overall_rating", "final_rating")


class JudgeError(ValueError):
    """A judge's reply in which no score, or none without doubt, can be read."""


def read_score(reply: str, *, low: float | None = None, high: float | None = None) -> float:
    """The score that a reply gives.

    Args:
        reply: what the judge wrote; thoughts in `<think>` do not count.
        low: least score there is.
        high: greatest score there is.

    Raises:
        JudgeError: there is none, several differ, or it is out of range.
    """
    if len(reply) > MAX_CHARACTERS:
        raise JudgeError(f"the reply has more than {MAX_CHARACTERS:,} characters")
    text = strip_thoughts(reply).strip()
    if not text:
        raise JudgeError("the reply is empty")
    for read in (_bracketed, _tagged, _json, _marked, _fractions, _bare):
        found = list(read(text))
        if found:
            break
    else:
        raise JudgeError("the reply has no score")
    if len({value for value, _ in found}) > 1:
        given = ", ".join(f"{value:g}" for value, _ in found[:4])
        raise JudgeError(f"the reply gives several scores: {given}")
    value, scales = found[0][0], {scale for _, scale in found if scale is not None}
    if len(scales) > 1:
        raise JudgeError("the reply gives one score on several scales")
    scale = scales.pop() if scales else None
    if scale is not None and not 0 <= value <= scale:
        raise JudgeError(f"the score {value:g} is not within its scale of {scale:g}")
    if scale is not None and high is not None and scale != high:
        raise JudgeError(f"the score is out of {scale:g}, not out of {high:g}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise JudgeError(f"the score {value:g} is out of range")
    return value


Found = Iterable[tuple[float, float | None]]


def _number(text: str) -> float:
    return float(text.replace("\u2212", "-")) + 0.0


def _scaled(match: re.Match[str], first: int = 1) -> tuple[float, float | None]:
    scale = match[first + 1]
    return _number(match[first]), None if scale is None else _number(scale)


def _exactly(text: str) -> tuple[float, float | None]:
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise JudgeError(f"the mark holds {short(text)}, which is no score")
    return _scaled(match)


def _bracketed(text: str) -> Found:
    return [_exactly(m[1] if m[1] is not None else m[2]) for m in _BRACKETS.finditer(text)]


def _tagged(text: str) -> Found:
    return [_exactly(m[2]) for m in _TAGS.finditer(text)]


def _json(text: str) -> Found:
    found = find_json(text, "object")
    if found.found == "broken" and text.lstrip("`json \n").startswith("{"):
        raise JudgeError(f"the reply's JSON is malformed: {found.why}")
    if found.found != "value" or not isinstance(found.value, dict):
        return []
    values = [found.value[key] for key in _KEYS if key in found.value]
    if not values:
        return []
    if found.count > 1 or len(values) > 1:
        raise JudgeError("the reply has several JSON values, or several scores in one")
    if isinstance(values[0], bool) or not isinstance(values[0], (int, float)):
        raise JudgeError(f"the score is {short(values[0])}, not a number")
    if abs(values[0]) > 1e12:
        raise JudgeError("the score is out of range")
    return [(float(values[0]), None)]


def _marked(text: str) -> Found:
    strong: list[tuple[float, float | None]] = []
    plain: list[tuple[float, float | None]] = []
    refused = ""
    for match in _MARKS.finditer(text):
        number = _HEAD.match(match[3])
        if number is None:
            if match[2] in (":", "="):
                refused = refused or f"the mark holds {short(match[3].strip())}, which is no score"
            continue
        if _DOUBT.search(match[3][number.end() :]):
            raise JudgeError(f"the score is in doubt: {short(match[0])}")
        (strong if match[1] else plain).append(_scaled(number))
    if refused and not strong:
        raise JudgeError(refused)
    return strong or plain


def _fractions(text: str) -> Found:
    found = list(_FRACTION.finditer(text))
    if not found:
        return []
    rest = _FRACTION.sub(" ", text)
    values = {match[1] for match in found}
    other = next((m[0] for m in _ANY_NUMBER.finditer(rest) if m[0] not in values), None)
    if other is not None:
        raise JudgeError(f"besides {found[0][0]} the reply has the number {short(other)}")
    return [_scaled(match) for match in found]


def _bare(text: str) -> Found:
    match = _WHOLE.fullmatch(text)
    return [] if match is None else [_scaled(match)]


def grade_judge_score(record: Record) -> Graded:
    """Whether a judge's recorded reply (`prediction`) gives the score `reference`; fields `low` and `high` bound it.

    A reply without a readable score means that the judge failed. A reference of None, or "null", says that nothing
    can be read in the reply.
    """
    low, high = (option(record, key, None, int, float) for key in ("low", "high"))
    wanted = _reference(field(record, "reference"))
    if isinstance(wanted, str):
        return failed(wanted)
    reply = prediction(record)
    if not strip_thoughts(reply).strip():
        return failed("the judge failed: the reply is empty")
    try:
        value = read_score(reply, low=low, high=high)
    except JudgeError as error:
        if wanted is None:
            return right(f"no score can be read, as it should be: {error}")
        return failed(f"the judge failed: {error}")
    if wanted is None:
        return wrong(f"the score {value:g} is read where none should be")
    if value == wanted:
        return right(f"the score is {value:g}", parts={"score": value})
    return wrong(f"the score is {value:g}, not {wanted:g}", parts={"score": value})


def _reference(value: Any) -> float | str | None:
    """The score that is wanted, None where none is, or what is wrong with the reference."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("null", "none")):
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e12:
        return float(value)
    if not isinstance(value, str):
        return f"the reference {short(value)} is no score"
    try:
        return read_score(value)
    except JudgeError as error:
        return f"the reference {short(value)} is no score: {error}"
