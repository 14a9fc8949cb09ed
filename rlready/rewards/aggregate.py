"""Whether a list of checks passed, where some of them may not have run or cannot be read.

Three values: passed, failed, unknown. "All of three passed" is right where three passed, wrong as soon as one failed,
and the grader's failure where neither is known. So a check that is missing, was not readable or never ran is no success
(`all([])` is none), and is not read as a wrong answer either. More results than checks are an accident, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlready.errors import UserError
from rlready.jsontext import BadJsonError, read_json
from rlready.rewards.records import Record, field
from rlready.rewards.verdict import Graded, failed, right, short, wrong
from rlready.types import Verdict

__all__ = ["Rule", "grade_aggregate", "passed", "read_rule", "verify_checks"]

How = Literal["all", "any", "none", "at least", "at most", "exactly"]
MAX_CHECKS = 1_000_000
_PASSED = frozenset({"pass", "passed", "ok", "true", "yes", "right", "correct", "success", "succeeded"})
_FAILED = frozenset({"fail", "failed", "false", "no", "wrong", "incorrect", "failure", "no_answer"})
_KEYS = ("passed", "pass", "success", "correct", "ok", "verdict", "result", "status", "score", "value")
_WORDS = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "eleven": 11, "twelve": 12}  # fmt: skip
_COUNT = r"(\d{1,7}|" + "|".join(_WORDS) + ")"
_RULE = re.compile(
    rf"\s*(?:(all|any|none|every|each)(?:\s+of)?(?:\s+the)?(?:\s+{_COUNT})?|(at\s+least|at\s+most|exactly)?\s*{_COUNT}"
    rf"(?:\s+(?:out\s+of|of)(?:\s+the)?\s+{_COUNT}))"
    r"(?:\s+[a-z][a-z_-]{0,40}){0,4}?\s+(?:must\s+)?(?:have\s+)?(?:pass|passes|passed|succeed|succeeded|hold|holds|held)"
    r"\s*\.?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """How many of how many checks must pass.

    Attributes:
        how: "all", "any", "none", or a comparison with `count`.
        of: how many checks there are; None: as many as there are results, and at least one.
        count: what "at least", "at most" and "exactly" compare with.
    """

    how: How = "all"
    of: int | None = None
    count: int = 0


def read_rule(text: Any) -> Rule:
    """A rule from words ("all of 3 checks passed", "at least 2 of 5 tests pass") or an object with the same names.

    Raises:
        ValueError: it is none.
    """
    if isinstance(text, Mapping):
        unknown = set(text) - {"how", "of", "count"}
        how, of, count = text.get("how", "all"), text.get("of"), text.get("count", 0)
        known = ("all", "any", "none", "at least", "at most", "exactly")
        if unknown or how not in known or not _is_count(count) or not (of is None or _is_count(of)):
            raise ValueError(f"the rule {short(text)} is not understood")
        rule = Rule(how, of, count)
    else:
        match = _RULE.fullmatch(text) if isinstance(text, str) and len(text) <= 300 else None
        if match is None:
            raise ValueError(f"the rule {short(text)} is not understood; write such as 'all of 3 checks passed'")
        if match[1]:
            word = match[1].lower()
            rule = Rule("all" if word in ("every", "each") else word, _count(match[2]))  # type: ignore[arg-type]
        else:
            how = " ".join((match[3] or "at least").lower().split())
            rule = Rule(how, _count(match[5]), _count(match[4]) or 0)  # type: ignore[arg-type]
    if rule.of == 0 or (rule.of is not None and rule.count > rule.of):
        raise ValueError(f"the rule {short(text)} can never be met")
    return rule


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_CHECKS


def _count(text: str | None) -> int | None:
    return None if text is None else _WORDS[text.lower()] if text.lower() in _WORDS else int(text)


def passed(result: Any) -> bool | None:
    """Whether one check passed; None where that cannot be read.

    True and 1 passed, False and 0 failed; so did words for them, and objects that say it under one of the usual names.
    Any other number, null and everything else is unknown.
    """
    if isinstance(result, bool):
        return result
    if isinstance(result, (int, float)):
        return bool(result) if result in (0, 1) else None
    if isinstance(result, str):
        word = result.strip().lower()
        return True if word in _PASSED else False if word in _FAILED else None
    if isinstance(result, Mapping):
        found = {passed(result[key]) for key in _KEYS if key in result and not isinstance(result[key], Mapping)}
        return found.pop() if len(found) == 1 else None
    return None


def verify_checks(results: Sequence[Any], rule: Rule | str) -> Graded:
    """Whether checks passed as a rule asks.

    Args:
        results: one for each check, in any form that `passed` reads.
        rule: a `Rule`, or its words.

    Returns:
        Parts: `passed`, `failed` and `unknown`, in numbers; missing results are unknown.

    Raises:
        UserError: the rule is not understood.
    """
    if not isinstance(rule, Rule):
        try:
            rule = read_rule(rule)
        except ValueError as error:
            raise UserError(f"rewards.verify_checks: {error}.") from None
    if len(results) > MAX_CHECKS:
        return failed(f"there are {len(results):,} results")
    found = [passed(result) for result in results]
    good, bad = found.count(True), found.count(False)
    of = len(found) if rule.of is None else rule.of
    unknown = max(of, len(found)) - good - bad
    parts = {"passed": float(good), "failed": float(bad), "unknown": float(unknown)}
    if not found or of == 0:
        return failed("no check ran", parts)
    if len(found) > of:
        return failed(f"there are {len(found)} results for {of} checks", parts)
    least, most = good, good + unknown
    bounds = {"all": (of, of), "any": (1, of), "none": (0, 0), "at least": (rule.count, of),
              "at most": (0, rule.count), "exactly": (rule.count, rule.count)}  # fmt: skip
    low, high = bounds[rule.how]
    told = f"{good} of {of} checks passed, {bad} failed" + (f", {unknown} unknown" if unknown else "")
    if low <= least and most <= high:
        return right(told, parts=parts)
    if most < low or least > high:
        return wrong(told, parts=parts)
    return failed(f"{told}: too few are known", parts)


def grade_aggregate(record: Record) -> Graded:
    """A list of results (`prediction`, JSON or a list) against a rule in words or as an object (`reference`)."""
    results = field(record, "prediction")
    try:
        rule = read_rule(field(record, "reference"))
    except ValueError as error:
        return failed(str(error))
    if isinstance(results, str):
        if not results.strip():
            return failed("no check ran")
        try:
            results = read_json(results)
        except BadJsonError as error:
            return failed(f"the results {short(results)} are no JSON: {error}")
    if not isinstance(results, list):
        return failed(f"the results {short(results)} are no list")
    graded = verify_checks(results, rule)
    assert graded.verdict is not Verdict.NO_ANSWER
    return graded
