"""README.md shows the papers and results as they are."""

from __future__ import annotations

from rlready.recipes import readme


def test_readme_is_up_to_date() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.render(text) == text, "run: python -m rlready.recipes.readme"


def test_a_stale_part_is_found() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.render(text.replace("| 33 |", "| 34 |")) == text
