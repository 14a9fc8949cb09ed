r"""Verifiers of numbers, exactly or within a tolerance.

What they read: integers, decimals, scientific notation, `a/b`, `\frac{a}{b}`, mixed numbers `1 1/2`, thousands commas,
signs, percent, a currency sign, a unit in words after the number. Comparison is between exact fractions: 0.5 equals
1/2, and 0.333 does not equal 1/3.

A gold that is no number makes the grader *fail*, so the task is excluded and counted; it is never paid and never wrong.
For expressions, sets, intervals, units and the rest of mathematics there is `rewards.math`.
"""

from __future__ import annotations

import math as _math
import re
from fractions import Fraction
from typing import Any

from rlready.errors import UserError
from rlready.rewards.answers import Answer, find_answer, read_answer
from rlready.scoring import RewardFn, declare
from rlready.types import Score, Task, Trajectory

_MAX_CHARS = 100
_MAX_EXPONENT = 300
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_POWER = r"(?:[eE][+-]?\d{1,4}|\s*(?:\\times|\\cdot|[x\u00d7*\u00b7])\s*10\^\{?[+-]?\d{1,4}\}?)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+){_POWER}?"
_PLAIN = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(_DECIMAL)
_FRAC = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_UNIT = re.compile(r"\s+(?:[A-Za-z]{2,}\.?|[A-Za-z]+/[A-Za-z]+|°[CF]?)(?:\s+[A-Za-z]+)*$")
_SCALES = frozenset(
    ("hundred thousand million billion trillion dozen percent half third quarter or and to").split()  # noqa: SIM905
)
_LAST = re.compile(rf"(?<![\w.])[-+\u2212]?\s*[$€£]?\s*{_DECIMAL}(?:\s*/\s*{_DECIMAL})?\s*%?")


def parse_number(text: str) -> tuple[Fraction, bool] | None:
    """Read one number.

    Returns:
        The exact value and whether it was written with a percent sign (the value is then the number before the sign);
        None where the text is not exactly one number.
    """
    text = text.strip()
    if not text or len(text) > _MAX_CHARS:
        return None
    if _PLAIN.fullmatch(text):  # by far the most frequent
        return Fraction(int(text)), False
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\%", "%").replace("\\!", "").replace("\\,", " ")
    text = text.replace("{,}", ",").replace("\\left", "").replace("\\right", "")
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}", r" \1", text).strip()
    text = text.strip("$").strip().rstrip(".").strip() if not re.search(r"\d\.$", text) else text.strip("$").rstrip(".")
    text = re.sub(r"^(?:[A-Za-z]\s*)?=\s*", "", text).strip()  # "x = 3"
    unit = _UNIT.search(text)
    if unit and not _SCALES & set(re.findall(r"[a-z]+", unit.group().lower())):
        text = text[: unit.start()].strip()
    sign = 1
    signed = re.match(r"^([+-])\s*", text)
    if signed:
        sign = -1 if signed.group(1) == "-" else 1
        text = text[signed.end() :]
    text = text.lstrip("$€£").strip()
    percent = text.endswith("%")
    text = text.rstrip("%").strip() if percent else text
    value = _magnitude(text)
    return None if value is None else (sign * value, percent)


def _magnitude(text: str) -> Fraction | None:
    mixed = re.fullmatch(r"(\d+)\s*(\\[dt]?frac.+|(?<=\s)\d+\s*/\s*\d+)", text)
    if mixed:
        part = _magnitude(mixed.group(2))
        return None if part is None or part >= 1 or part < 0 else int(mixed.group(1)) + part
    frac = _FRAC.fullmatch(text)
    if frac:
        return _ratio(frac.group(1) or frac.group(2), frac.group(3) or frac.group(4))
    if text.count("/") == 1:
        return _ratio(*text.split("/"))
    if not _NUMBER.fullmatch(text):
        return None
    times = re.fullmatch(r"(.*?)\s*(?:\\times|\\cdot|[x\u00d7*\u00b7])\s*10\^\{?([+-]?\d+)\}?", text)
    digits = (f"{times.group(1)}e{times.group(2)}" if times else text).replace(",", "")
    exponent = re.search(r"[eE]([+-]?\d+)$", digits)
    if exponent and abs(int(exponent.group(1))) > _MAX_EXPONENT:
        return None
    return Fraction(digits)


def _ratio(top: str, bottom: str) -> Fraction | None:
    sign = 1
    values: list[Fraction] = []
    for side in (top.strip(), bottom.strip()):
        if side.startswith("-"):
            sign, side = -sign, side[1:].strip()
        if not side or "/" in side or "frac" in side:
            return None
        value = _magnitude(side)
        if value is None:
            return None
        values.append(value)
    return None if values[1] == 0 else sign * values[0] / values[1]


def _gold(gold: Any) -> tuple[Fraction, bool] | None:
    if isinstance(gold, bool):
        return None
    if isinstance(gold, int):
        return Fraction(gold), False
    if isinstance(gold, float):
        return (Fraction(repr(gold)), False) if _math.isfinite(gold) else None
    if not isinstance(gold, str):
        return None
    whole = parse_number(gold)
    if whole is not None:
        return whole
    found = find_answer(gold)
    return parse_number(found.text) if found.marked else None


def verify_number(
    answer: str | Answer, gold: Any, *, abs_tol: float = 0.0, rel_tol: float = 0.0, last_number: bool = True
) -> Score:
    """Right where the answer is the gold number, exactly or within a tolerance.

    Args:
        answer: the completion. Its answer is what an explicit mark points at, or the whole text where that is one
            number, or (`last_number`) the last number in it, unless the completion was cut off.
        gold: a number, or a text that is one number or marks one (`#### 72`).
        abs_tol: allowed absolute difference.
        rel_tol: allowed difference as a share of the gold's size.
        last_number: read the last number of an unmarked text.

    Where only one of the two carries a percent sign, 50% may stand for 50 as well as for 0.5.
    """
    wanted = _gold(gold)
    if wanted is None:
        return Score.failed(f"the gold answer {str(gold)[:60]!r} is not a number or a fraction")
    found = find_answer(answer) if isinstance(answer, str) else answer
    if not found.text:
        return Score.no_answer()
    given = parse_number(found.text)
    if given is None and not found.marked and last_number and not found.cut:
        numbers = _LAST.findall(found.visible)
        given = parse_number(numbers[-1]) if numbers else None
    if given is None:
        # a marked answer of another form is an answer, and wrong; without mark or number there is none
        return Score.wrong() if found.marked else Score.no_answer()
    options = [given[0]]
    if given[1] != wanted[1]:
        options.append(given[0] / 100 if given[1] else given[0] * 100)
    if abs_tol == rel_tol == 0:
        return Score.right() if wanted[0] in options else Score.wrong()
    tolerance = Fraction(abs_tol) + Fraction(rel_tol) * abs(wanted[0])
    right = any(abs(option - wanted[0]) <= tolerance for option in options)
    return Score.right() if right else Score.wrong()


def number(column: str = "answer", *, abs_tol: float = 0.0, rel_tol: float = 0.0, last_number: bool = True) -> RewardFn:
    """Reward the number of `task.data[column]`, within a tolerance; see `verify_number`.

    Raises:
        UserError: a tolerance is negative or not finite.
    """
    for name, tolerance in (("abs_tol", abs_tol), ("rel_tol", rel_tol)):
        if not (_math.isfinite(tolerance) and tolerance >= 0):
            raise UserError(f"rewards.number: {name} must be a number of at least 0, but it is {tolerance}.")

    def number(task: Task, trajectory: Trajectory) -> Score:
        gold = task.data.get(column)
        return verify_number(read_answer(trajectory), gold, abs_tol=abs_tol, rel_tol=rel_tol, last_number=last_number)

    return declare(number, name="number", columns=[column])
