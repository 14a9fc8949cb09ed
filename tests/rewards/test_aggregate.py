"""Lists of checks: a check that never ran is no success, and no failure either."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Verdict, rewards
from rlready.errors import UserError
from rlready.rewards.aggregate import Rule, passed, read_rule, verify_checks
from rlready.rewards.kinds import KINDS
from tests.rewards.public_cases import each_case

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@each_case("aggregate")
def test_case(case: dict[str, Any]) -> None:
    graded = KINDS["aggregate"].grade(case)
    assert (graded.verdict is R) == case["correct"], (case["note"], graded.reason)


@pytest.mark.parametrize(
    ("results", "rule", "verdict"),
    [
        ("[true, true, true]", "all of 3 checks passed", R),
        ("[true]", "all of 1 milestone passed", R),
        ("[]", "all of 3 checks passed", F),
        ("[]", "all checks passed", F),
        ("[]", "none of 3 checks passed", F),
        ("[]", "at least 0 of 3 checks passed", F),
        ("[true, true]", "all of 3 checks passed", F),
        ("[true, true, null]", "all of 3 checks passed", F),
        ("[true, true, true, true]", "all of 3 checks passed", F),
        ("[true, false, true]", "all of 3 checks passed", W),
        ("[false]", "all of 3 checks passed", W),  # whatever the other two are
        ("[false, null, null]", "all of 3 checks passed", W),
        ("[true, true, true]", "all checks passed", R),
        ("[true, false]", "every check passes", W),
        ("[null]", "all of 1 milestone passed", F),
        ('["unparseable"]', "all of 1 milestone passed", F),
        ("[NaN]", "all of 1 milestone passed", F),
        ('[{"milestone": "a"}]', "all of 1 milestone passed", F),
        ('[{"milestone": "a", "passed": true}]', "all of 1 milestone passed", R),
        ('[{"passed": true, "score": 0}]', "all of 1 milestone passed", F),  # it contradicts itself
        ('[{"verdict": "right"}, {"verdict": "grader_failed"}]', "all of 2 checks passed", F),
        ("[1, 1.0]", "all of 2 checks passed", R),
        ("[1, 0.5]", "all of 2 checks passed", F),
        ("[1, 2]", "all of 2 checks passed", F),
        ('["pass", "PASSED"]', "all of two tests passed", R),
        ('["pass", "fail"]', "all of 2 tests passed", W),
        ('["true", "error"]', "all of 2 tests passed", F),
        ("[[true]]", "all of 1 check passed", F),
        ("[true, false, false]", "any of 3 checks passed", R),
        ("[true]", "any of 3 checks passed", R),
        ("[false, false, null]", "any of 3 checks passed", F),
        ("[false, false, false]", "any of 3 checks passed", W),
        ("[false, false]", "none of 2 checks passed", R),
        ("[false, true]", "none of the 2 checks passed", W),
        ("[true, true, false]", "at least 2 of 3 checks passed", R),
        ("[true, null, null]", "at least 2 of 3 checks pass", F),
        ("[true, false, false]", "at least 2 of 3 checks must pass", W),
        ("[true, true, false]", "2 of 3 checks passed", R),
        ("[true, true, true]", "exactly 2 of 3 checks passed", W),
        ("[true, true, false]", "exactly two out of three checks have passed", R),
        ("[true, true, false]", "at most 1 of 3 checks passed", W),
        ("true", "all of 1 check passed", F),
        ("", "all of 1 check passed", F),
        ("[true", "all of 1 check passed", F),
        ("[true]", "all of 0 checks passed", F),
        ("[true]", "at least 4 of 3 checks passed", F),
        ("[true]", "it should be fine", F),
        ("[true]", "", F),
        ("[true]", None, F),
        ([True, True], {"how": "all", "of": 2}, R),
        ([True, False], {"how": "at least", "of": 2, "count": 1}, R),
        ([True], {"how": "most"}, F),
        ([True], {"how": "all", "off": 2}, F),
        ([True], {"how": "all", "of": True}, F),
    ],
)
def test_checks(results: Any, rule: Any, verdict: Verdict) -> None:
    graded = KINDS["aggregate"].grade({"prediction": results, "reference": rule})
    assert graded.verdict is verdict, graded.reason
    assert graded.reason


def test_numbers_are_kept() -> None:
    graded = verify_checks([True, False, None], "at least 1 of 4 checks passed")
    assert graded.verdict is R and graded.parts == {"passed": 1.0, "failed": 1.0, "unknown": 2.0}
    assert rewards.verify_checks is verify_checks
    with pytest.raises(UserError, match="not understood"):
        verify_checks([True], "so be it")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([True, False, None]), max_size=6), st.integers(1, 6),
       st.sampled_from(["all", "any", "none", "at least", "at most", "exactly"]), st.integers(0, 6))  # fmt: skip
def test_three_values_agree_with_all_ways_to_fill_in_the_unknown(
    results: list[Any], of: int, how: Any, count: int
) -> None:
    """Right where every completion is right, wrong where every one is wrong, a failure otherwise."""
    graded = verify_checks(results, Rule(how, of, count))
    if not results or len(results) > of:
        assert graded.verdict is F
        return
    holds = {
        "all": lambda n: n == of, "any": lambda n: n >= 1, "none": lambda n: n == 0,
        "at least": lambda n: n >= count, "at most": lambda n: n <= count, "exactly": lambda n: n == count,
    }[how]  # fmt: skip
    good = results.count(True)
    unknown = of - good - results.count(False)
    outcomes = {holds(n) for n in range(good, good + unknown + 1)}
    assert graded.verdict is (F if len(outcomes) == 2 else R if True in outcomes else W)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3),
                            st.dictionaries(st.sampled_from(["passed", "score", "x"]), inner, max_size=2)),
    max_leaves=6,
)  # fmt: skip
words = st.lists(
    st.sampled_from(["all", "of", "3", "checks", "passed", "at", "least", "two", "any", "the", "x"]), max_size=8
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(values, st.text(max_size=20)), st.one_of(values, words.map(" ".join), st.text(max_size=20)))
def test_anything_is_graded(results: Any, rule: Any) -> None:
    graded = KINDS["aggregate"].grade({"prediction": results, "reference": rule})
    assert graded.reason and graded.verdict is not N
    passed(results)
    try:
        assert isinstance(read_rule(rule), Rule)
    except ValueError as error:
        assert str(error)
