"""docs/dream.md says what its program measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.by_path import load

FOLDER = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return load("docs_walk_page", FOLDER / "walk" / "page.py")


def test_the_page_is_what_the_results_make_of_it(page: ModuleType) -> None:
    text = (FOLDER / "dream.md").read_text(encoding="utf-8")
    assert text == page.fill(text), "docs/dream.md is older than its results: run python docs/walk/page.py"


def test_an_altered_result_is_noticed(page: ModuleType) -> None:
    text = (FOLDER / "dream.md").read_text(encoding="utf-8")
    line = page.read("walk")["runs"][0]["notes"][-1]
    assert line in text
    assert page.fill(text.replace(line, "Result: +99 points.")) == text


def test_the_pictures_are_there() -> None:
    for name in ("dream-report.png", "dream-train.png"):
        assert f"img/{name}" in (FOLDER / "dream.md").read_text(encoding="utf-8")
        assert (FOLDER / "img" / name).stat().st_size > 10_000
