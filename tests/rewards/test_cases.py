"""The public cases of graders gone wrong, all kinds through the registry, where they lie or where RLREADY_CASES points.

Programs of `code_tests` run in the sandbox; where this machine has none, those cases are left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from rlready import Verdict
from rlready.errors import UserError
from rlready.rewards.kinds import KINDS, kind
from rlready.rewards.verdict import Graded
from tests.rewards.public_cases import each_case


@each_case()
def test_case(case: dict[str, Any]) -> None:
    record = {key: case[key] for key in ("id", "kind", "prediction", "reference")}
    if case["kind"] == "code_tests":
        record["timeout_s"] = 4.0
        try:
            graded = kind(case["kind"]).grade(record)
        except UserError as error:
            pytest.skip(str(error))
    else:
        graded = kind(case["kind"]).grade(record)
    assert (graded.verdict is Verdict.RIGHT) == case["correct"], (case["note"], graded.reason)
    assert graded.reason
    assert graded.verdict is not Verdict.RIGHT or graded.score == pytest.approx(1.0)


def test_every_kind_has_its_grader_and_words() -> None:
    for name, one in KINDS.items():
        assert name == one.name
        assert one.help
        assert callable(one.grader()), one.where


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_says_what_a_record_lacks(name: str) -> None:
    for record in ({}, {"prediction": "a"}, {"prediction": 3.5, "reference": "a"}):
        try:
            graded = kind(name).grade(record)
        except UserError as error:
            assert str(error)
        else:
            assert isinstance(graded, Graded)
            assert graded.verdict is not Verdict.RIGHT


def test_unknown_kinds() -> None:
    with pytest.raises(UserError, match="math_answer"):
        kind("maths_answer")
    with pytest.raises(UserError, match="is a name"):
        kind(3)  # type: ignore[arg-type]
