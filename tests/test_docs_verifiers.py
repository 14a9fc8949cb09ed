"""docs/verifiers.md says what the programs do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlready.cli import app
from rlready.rewards.kinds import KINDS

PAGE = (Path(__file__).parents[1] / "docs" / "verifiers.md").read_text(encoding="utf-8")


def block(after: str) -> str:
    found = re.search(rf"{re.escape(after)}\n```\w*\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_table_is_what_grade_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("answers.jsonl").write_text(block("<!-- records -->"), encoding="utf-8")
    result = CliRunner().invoke(app, ["grade", "answers.jsonl", "--quiet"], env={"COLUMNS": "100"})
    assert result.output == block("<!-- table -->")


def test_every_kind_is_in_the_page() -> None:
    rows = "".join(line.split("|")[1] for line in PAGE.split("\n") if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(KINDS)


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"question": "Which of {i}?", "answer": "B"}}' for i in range(30)]
    Path("questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        names: dict[str, object] = {}
        exec(compile(program, "docs/verifiers.md", "exec"), names)
    graded = names["graded"]
    assert (str(graded.verdict), graded.score, graded.reason) == (  # type: ignore[attr-defined]
        "right",
        1.0,
        "it names A and C (marked as the answer)",
    )
