"""The public cases of graders gone wrong, where they lie beside the checkout or where RLREADY_CASES points."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlready import Verdict
from rlready.rewards import verify_math

_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "cases"
_FILE = Path(os.environ.get("RLREADY_CASES", _BESIDE))
_FILE = _FILE / "graders.jsonl" if _FILE.is_dir() else _FILE
_CASES = []
if _FILE.is_file():
    _CASES = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").split("\n") if line.strip()]
_CASES = [c for c in _CASES if c["kind"].startswith("math")]


@pytest.mark.skipif(not _CASES, reason="the cases are not here")
@pytest.mark.parametrize("case", _CASES, ids=[c["id"] for c in _CASES])
def test_case(case: dict[str, object]) -> None:
    whole = case["kind"] == "math_response"
    score = verify_math(str(case["prediction"]), case["reference"], response=whole)
    assert (score.verdict is Verdict.RIGHT) == case["correct"], (case["note"], score.note)
    assert score.note
    assert score.verdict is not Verdict.GRADER_FAILED or case["reference"] == "the shape is a kite"
