"""The fuzzer runs, knows every parser, and notices what it is there to notice."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlready.rewards.kinds import KINDS
from tests.by_path import load

FOLDER = Path(__file__).parents[1] / "fuzz"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return load("fuzz_run", FOLDER / "run.py")


@pytest.fixture(scope="module")
def targets(run: ModuleType) -> dict[str, Any]:
    return {target.name: target for target in importlib.import_module("targets").targets()}


def test_every_kind_that_runs_no_program_is_a_target(targets: dict[str, Any]) -> None:
    assert set(KINDS) - {"code_tests"} <= set(targets)


def test_every_target_takes_its_own_pieces(targets: dict[str, Any]) -> None:
    for target in targets.values():
        for gold in target.golds:
            target.check(gold, gold)
            target.check("", gold)
        target.check("".join(target.pieces), target.golds[0])
        target.check(target.golds[0], "".join(target.pieces[::-1]))


def test_inputs_are_made(run: ModuleType, targets: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "FOUND", tmp_path)
    trial = run.Trial(targets["tables"], 30.0)
    assert run.by_hypothesis(trial, 0.02, 0, examples=20) == ""
    trial.close()
    assert trial.count


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (lambda prediction, reference: 1 / 0 if "{" in prediction else None, "ZeroDivisionError"),
        (lambda prediction, reference: sum(range(10**7)) if len(prediction) > 1000 else None, "took"),
    ],
)
def test_what_is_broken_is_found_and_kept(
    run: ModuleType, targets: dict[str, Any], tmp_path: Path, monkeypatch: Any, broken: Any, what: str
) -> None:
    monkeypatch.setattr(run, "FOUND", tmp_path)
    target = type(targets["json"])("json", broken, targets["json"].pieces, targets["json"].golds)
    trial = run.Trial(target, 0.05)
    failed = run.by_hypothesis(trial, 0.5, 0)
    trial.close()
    assert what in failed
    records = [json.loads(kept.read_text()) for kept in tmp_path.glob("json-*.json")]
    assert records
    for record in records:
        assert record["target"] == "json" and len(record["prediction"]) > (1000 if what == "took" else 0)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.slow
def test_by_atheris() -> None:
    command = [
        sys.executable,
        str(FOLDER / "run.py"),
        "--minutes",
        "0.1",
        "--only",
        "json_extract",
        "--engine",
        "atheris",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held" in done.stdout and " 0 inputs" not in done.stdout


def test_slips_are_told() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--only", "jsons"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "no parser jsons" in done.stderr
