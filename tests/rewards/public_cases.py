"""The public cases of graders gone wrong: read from the folder RLREADY_CASES, else from one beside the checkout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "cases"
_FILE = Path(os.environ.get("RLREADY_CASES", _BESIDE))
_FILE = _FILE / "graders.jsonl" if _FILE.is_dir() else _FILE
CASES: list[dict[str, Any]] = []
if _FILE.is_file():
    CASES = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").split("\n") if line.strip()]


def each_case(kind: str = "") -> Callable[[Any], Any]:
    """Run a test on every case whose kind begins so, as `case`; it is skipped where the cases are not here."""
    chosen = [case for case in CASES if case["kind"].startswith(kind)]

    def mark(test: Any) -> Any:
        test = pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])(test)
        return pytest.mark.skipif(not chosen, reason="the cases are not here")(test)

    return mark
