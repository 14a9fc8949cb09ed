"""`rlready algorithms`: one table, one algorithm with its sources, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from rlready.algorithms import ALGORITHMS
from rlready.cli.app import app


@pytest.fixture(params=[80, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("COLUMNS", str(request.param))
    yield request.param


def call(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["algorithms", *args])
    assert result.exit_code == code, result.output
    return result.output


def test_the_table_has_every_algorithm_and_fits(width: int) -> None:
    text = call()
    assert all(len(line) <= width for line in text.splitlines())
    for name in ALGORITHMS:
        assert any(line.startswith(f"{name} ") for line in text.splitlines()), name
    if width > 140:
        (line,) = [line for line in text.splitlines() if line.startswith("dapo ")]
        assert line.split()[1:8] == ["(r", "-", "m)", "/", "s", "token", "0.2/0.28"] and "2503.14476" in line


def test_one_algorithm_with_the_sources_of_its_settings() -> None:
    text = call("GSPO")
    own, shared = text.split("Settings that it shares with others:")
    assert "clip:           0.0003/0.0004" in own and "gspo.clip_low = 0.0003" in own
    assert "GSPO, 2507.18071" in own
    assert "gspo.epochs = 1" in shared and "gspo.epochs" not in own


def test_json() -> None:
    every = json.loads(call("--json"))
    assert set(every) == set(ALGORITHMS)
    found = json.loads(call("rloo", "--json"))
    assert list(found) == ["rloo"]
    assert found["rloo"] == every["rloo"]
    assert found["rloo"]["credit"] == "r - mean of the others" and found["rloo"]["paper"] == "2402.14740"
    assert found["rloo"]["settings"]["advantage"] == "loo"
    assert found["rloo"]["sources"]["dual_clip"].startswith("bound c > 1")
    assert found["rloo"]["about"].startswith("Each trajectory against the mean of the others")
