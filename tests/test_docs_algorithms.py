"""docs/algorithms.md says what the classes say and what its program measured; its statistics are right."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlready.algorithms import ALGORITHMS
from rlready.signs import Thresholds, usual
from tests.by_path import load

FOLDER = Path(__file__).parents[1] / "docs"


def program(name: str) -> ModuleType:
    return load(f"docs_algorithms_{name}", FOLDER / "algorithms" / f"{name}.py")


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return program("page")


def record(*seeds: list[float]) -> dict[str, Any]:
    return {"seeds": {str(i): {"reward": rewards, "samples an update": 4} for i, rewards in enumerate(seeds)}}


def test_the_page_is_what_classes_and_results_make_of_it(page: ModuleType) -> None:
    text = (FOLDER / "algorithms.md").read_text(encoding="utf-8")
    assert text == page.fill(text), (
        "docs/algorithms.md is older than its results or the code: run python docs/algorithms/page.py"
    )


def test_an_altered_page_is_noticed(page: ModuleType) -> None:
    text = (FOLDER / "algorithms.md").read_text(encoding="utf-8")
    assert "2402.14740" in text
    assert page.fill(text.replace("2402.14740", "2402.99999")) == text
    with pytest.raises(ValueError, match="the marks of ranking once, and has them 0 times"):
        page.fill(text.replace("<!-- ranking:begin -->", ""))


def test_every_algorithm_and_every_sign_has_its_line(page: ModuleType) -> None:
    lines = (FOLDER / "algorithms.md").read_text(encoding="utf-8").splitlines()
    for name in [*ALGORITHMS, *(sign.name for sign in usual(Thresholds()))]:
        assert sum(line.startswith(f"| `{name}` |") for line in lines) == 1, name


def test_recorded_runs_are_of_the_present_settings(page: ModuleType) -> None:
    run = program("run")
    for name, found in page.results().items():
        assert run.recorded(name, found["setting"]["steps"])["seeds"], f"{name} has changed since it was measured"


def test_differences_are_paired_by_seed_and_bold_beyond_two_standard_errors(page: ModuleType) -> None:
    rival = record([0.1, 0.3], [0.5, 0.7], [0.2, 0.2])
    ahead = record([0.2, 0.4], [0.62, 0.8], [0.3, 0.28])  # by 10, 11 and 9 points
    assert page.against(ahead, rival) == "**+10.0 ± 0.6**"
    noisy = record([0.5, 0.7], [0.4, 0.4], [0.3, 0.3])  # by 40, -20 and 10
    assert page.against(noisy, rival) == "+10.0 ± 17.3"
    assert page.against(record([0.2, 0.4]), rival) == "-"  # one seed says nothing


def test_curves_are_drawn_from_the_means_of_the_seeds(page: ModuleType) -> None:
    assert page.binned([0.0, 0.2, 0.4, 0.6], 2) == pytest.approx([0.1, 0.5])
    assert page.binned([0.5], 8) == [0.5]
    assert page.spark(record([0.0] * 8, [0.0] * 8)) == "▁" * 8
    assert page.spark(record([0.0] * 4 + [1.0] * 4, [0.0] * 4 + [1.0] * 4)) == "▁" * 4 + "█" * 4
    assert page.spread([0.5, 0.7]) == "60 ± 14"


def test_a_changed_field_makes_a_recorded_run_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = program("run")
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    made = run.recorded("grpo", 60)
    made["seeds"]["0"] = {"reward": [0.5]}
    (tmp_path / "grpo.json").write_text(run.json.dumps(made))
    assert run.recorded("grpo", 60)["seeds"] == {"0": {"reward": [0.5]}}
    assert run.recorded("grpo", 61)["seeds"] == {}
    monkeypatch.setitem(run.FIELDS, "grpo", {"clip_high": 0.3})
    assert run.recorded("grpo", 60)["seeds"] == {}


def test_every_preset_can_be_built_as_it_is_measured() -> None:
    run = program("run")
    for name in ALGORITHMS:
        assert run.json.dumps(run.key(name, 60))
        assert run.built(name, 3).seed == 3
