"""The public cases of graders gone wrong, where they lie beside the checkout or where RLREADY_CASES points."""

from __future__ import annotations

from rlready import Verdict
from rlready.rewards import verify_math
from tests.rewards.public_cases import each_case


@each_case("math")
def test_case(case: dict[str, object]) -> None:
    whole = case["kind"] == "math_response"
    score = verify_math(str(case["prediction"]), case["reference"], response=whole)
    assert (score.verdict is Verdict.RIGHT) == case["correct"], (case["note"], score.note)
    assert score.note
    assert score.verdict is not Verdict.GRADER_FAILED or case["reference"] == "the shape is a kite"
