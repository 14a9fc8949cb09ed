r"""Whether what a program printed is what was to be printed. The way to compare is chosen, never guessed.

    text      the same text, white space at its very end aside
    lines     the same lines, white space at the end of each and blank lines at both ends aside
    tokens    the same words in the same order, whatever stands between them
    floats    as lines, word by word, decimal numbers within a tolerance

In `floats`, whole numbers are compared exactly, and so is everything that is no number. A whole number that was to be
printed and a decimal one that was are equal within 1e-6 or one part in 10^9: the real answer 4 may come as 4.0000001,
while 500000 is not met by 499999.5. Where a decimal number was to be printed, the tolerance (1e-6) is absolute or
relative, whichever is wider.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Literal, get_args

from rlready.errors import UserError, did_you_mean
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong

Compare = Literal["text", "lines", "tokens", "floats"]
MODES: tuple[Compare, ...] = get_args(Compare)
TOLERANCE = 1e-6
_EXACT = 1e-9
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_AROUND = "()[]{},;:"
_LONGEST_NUMBER = 400


def difference(printed: str, expected: str, compare: Compare = "text", tolerance: float = TOLERANCE) -> str:
    """What differs first between what was printed and what was to be; "" where nothing does.

    Raises:
        UserError: the way to compare is not known, or the tolerance is no small positive number.
    """
    check(compare, tolerance)
    if printed == expected:
        return ""
    if compare == "text":
        return _first_line(printed.rstrip(), expected.rstrip())
    if compare == "tokens":
        return _words(printed.split(), expected.split(), "")
    pairs = zip_longest(_lines(printed), _lines(expected))
    for number, (line, wanted) in enumerate(pairs, 1):
        if line == wanted:
            continue
        if line is None or wanted is None:
            return _counts(printed, expected, "lines")
        if compare == "lines":
            return f"line {number} is {short(line)}, not {short(wanted)}"
        what = _words(line.split(), wanted.split(), f"line {number}, ", tolerance)
        if what:
            return what
    return ""


def check(compare: str, tolerance: float = TOLERANCE) -> None:
    """Raise a UserError where a way to compare is not known."""
    if compare not in MODES:
        raise did_you_mean("way to compare", str(compare), MODES)
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not 0 < tolerance < 1:
        raise UserError(f"tolerance must be a number between 0 and 1, not {tolerance!r}.")


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    start = next((n for n, line in enumerate(lines) if line), 0)
    return lines[start:]


def _first_line(printed: str, expected: str) -> str:
    if printed == expected:
        return ""
    for number, (line, wanted) in enumerate(zip(printed.split("\n"), expected.split("\n"), strict=False), 1):
        if line != wanted:
            return f"line {number} is {short(line)}, not {short(wanted)}"
    return _counts(printed, expected, "lines")


def _counts(printed: str, expected: str, what: str) -> str:
    some, wanted = len(_lines(printed)), len(_lines(expected))
    return "nothing was printed" if not printed.strip() else f"there are {some} {what}, not {wanted}"


def _words(words: list[str], wanted: list[str], where: str, tolerance: float | None = None) -> str:
    for number, (word, other) in enumerate(zip(words, wanted, strict=False), 1):
        if word != other and not (tolerance is not None and _close(word, other, tolerance)):
            return f"{where}word {number} is {short(word)}, not {short(other)}"
    if len(words) == len(wanted):
        return ""
    return f"{where or 'there are '}{len(words)} words, not {len(wanted)}" if words else "nothing was printed"


def _close(word: str, wanted: str, tolerance: float) -> bool:
    """Whether two words are numbers that are close enough, with the same brackets and commas around them."""
    one, other = _core(word), _core(wanted)
    if one is None or other is None or (one[0], one[2]) != (other[0], other[2]):
        return False
    return numbers_close(one[1], other[1], tolerance)


def _core(word: str) -> tuple[str, str, str] | None:
    """What stands before a number, the number, and what stands after it."""
    inner = word.strip(_AROUND)
    if len(inner) > _LONGEST_NUMBER or not _NUMBER.fullmatch(inner):
        return None
    at = word.index(inner)
    return word[:at], inner, word[at + len(inner) :]


def numbers_close(given: str, wanted: str, tolerance: float) -> bool:
    """Whether a number as written is another one; see the module for the rule."""
    if _WHOLE.fullmatch(given) and _WHOLE.fullmatch(wanted):
        return given.lstrip("+") == wanted.lstrip("+")
    some, right_one = Decimal(given), Decimal(wanted)
    gap = abs(some - right_one)
    if _WHOLE.fullmatch(wanted):
        return gap <= max(Decimal(TOLERANCE), abs(right_one) * Decimal(_EXACT)) and (
            abs(right_one) < 10**15 or some == right_one
        )
    if not math.isfinite(float(right_one)):
        return some == right_one
    return gap <= Decimal(tolerance) * max(Decimal(1), abs(right_one))


def verify_output(printed: str, expected: str, *, compare: Compare = "floats", tolerance: float = TOLERANCE) -> Graded:
    """Right where the output is the expected one; see the module for the ways to compare.

    Raises:
        UserError: the way to compare is not known.
    """
    what = difference(printed, expected, compare, tolerance)
    if not what:
        return right("the output is the expected one")
    return no_answer("nothing was printed") if not printed.strip() else wrong(f"the output differs: {what}")


def grade_code_stdout(record: Mapping[str, Any]) -> Graded:
    """Grade an output: `prediction` against `reference`, by `compare` ("floats") and `tolerance` (1e-6) if given.

    Raises:
        UserError: a key is missing or of another kind.
    """
    printed, expected = record.get("prediction"), record.get("reference")
    if expected is not None and not isinstance(expected, str):
        return failed(f"the expected output is no text but {short(expected)}")
    if expected is None or not isinstance(printed, str | None):
        raise UserError('A record of the kind code_stdout needs texts as "prediction" and "reference".')
    compare, tolerance = record.get("compare", "floats"), record.get("tolerance", TOLERANCE)
    return verify_output(printed or "", expected, compare=compare, tolerance=tolerance)
