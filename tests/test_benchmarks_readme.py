"""The benchmarks' page says what their results say."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.by_path import load

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def readme() -> ModuleType:
    return load("benchmarks_readme", FOLDER / "readme.py")


def test_the_page_is_what_the_results_make_of_it(readme: ModuleType) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page == readme.fill(page), "benchmarks/README.md is older than its results: run python benchmarks/readme.py"


def test_an_altered_number_is_noticed(readme: ModuleType) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    ratio = f"{json.loads((FOLDER / 'results/vs_trl.json').read_text())['ratio']['median']:.1f} times"
    assert ratio in page
    assert readme.fill(page.replace(ratio, "99.9 times")) == page


def test_every_program_that_measures_has_a_part_in_the_page(readme: ModuleType) -> None:
    measured = {path.stem for path in (FOLDER / "results").glob("*.json")}
    assert measured <= set(readme.SECTIONS)
    assert all((FOLDER / f"{name}.py").exists() for name in readme.SECTIONS)
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page.count("Not measured yet.") == len(set(readme.SECTIONS) - measured)


def test_ratios_are_those_of_the_recorded_steps(readme: ModuleType) -> None:
    """The summary is derived from the raw steps, and the steps are there to be looked at."""
    result = readme.read("vs_trl")
    for pair in result["pairs"]:
        seconds = {}
        for side in ("rlready", "trl"):
            steady = sorted(step["wall"] for step in pair["steps"][side][2:])
            middle = len(steady) // 2
            seconds[side] = steady[middle] if len(steady) % 2 else (steady[middle - 1] + steady[middle]) / 2
        assert pair["ratio"] == pytest.approx(seconds["trl"] / seconds["rlready"])
    ratios = sorted(pair["ratio"] for pair in result["pairs"])
    assert result["ratio"]["min"] == ratios[0] and result["ratio"]["max"] == ratios[-1]


def test_shares_of_a_step_are_shares(readme: ModuleType) -> None:
    for side in readme.read("dream_speed")["step"].values():
        parts = [side[name] for name in ("rollout", "environment", "update", "framework", "waiting")]
        assert all(-0.02 <= part <= 1 for part in parts)
        assert sum(parts) == pytest.approx(1, abs=0.1)  # each is a median of its own
