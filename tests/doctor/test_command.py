"""`rlready doctor` on the command line: what it takes, what it prints, how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlready.cli import app
from tests.doctor.faults.healthy import few_threads

FILE = """
import rlready as rl
from rlready.types import Task
made = [Task.of(f"say {a} number {i}", answer=a) for i, a in enumerate(("red", "green") * 3)]
good = rl.TaskSet(made, score=lambda task, t: float(t.turns[-1].text == task.data["answer"]))
paid = rl.TaskSet(made, score=lambda task, t: 1.0)
"""
SETUP = """
from tests.doctor.faults import healthy
setup = healthy.chat
whole = healthy.guess()
def wants(run): return healthy.chat()
async def later(): return healthy.chat()
"""
SMALL = ("groups=2", "group_size=4", "max_tokens=4", "tiny.dim=32", "tiny.layers=1")


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_threads()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(FILE)
    (tmp_path / "s.py").write_text(SETUP)


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *args], catch_exceptions=False)


def test_a_train_configuration() -> None:
    result = run("t.py:good", *SMALL)
    assert result.exit_code == 0 and "Ready to train." in result.output and "Mask of trajectory" in result.output
    result = run("t.py:paid", "--json", *SMALL)
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["ok"] is False
    (first, *_) = [f for f in report["findings"] if f["check"] == "trivial answers"]
    assert first["level"] == "error" and first["where"]["task"] and first["why"] and first["mend"]
    assert any(piece["kind"] == "trained" for row in report["mask"]["rows"] for piece in row)


def test_settings_are_those_of_train() -> None:
    result = run("t.py:good", "--algorithm", "ppo", "temperature=0.7", *SMALL)
    assert result.exit_code == 0, result.output
    result = run("t.py:good", "group_size=1", "--algorithm", "grpo")
    assert result.exit_code == 1 and "groups of one" in result.output and "where" in result.output
    result = run("t.py:good", "groop_size=1")
    assert result.exit_code == 2 and "group_size" in result.output


def test_a_setup_by_name_or_function() -> None:
    for target in ("s.py", "s.py:setup", "s.py:whole"):
        result = run(target)
        assert result.exit_code == 0 and "Ready to train." in result.output, result.output
    result = run("s.py", "--algorithm", "ppo")
    assert result.exit_code == 2 and "change its fields there" in result.output


def test_what_cannot_be_read_is_one_sentence() -> None:
    (Path() / "odd.jsonl").write_text('{"a": 1}\n')
    (Path() / "bad.jsonl").write_text("{\n")
    for target, words in (
        ("none.py", "There is no file none.py"),
        ("none.jsonl", "There is no file none.jsonl"),
        ("odd.jsonl", "line 1 has no token ids that are known by name (it has: a)"),
        ("bad.jsonl", "bad.jsonl, line 1 is not JSON"),
        ("vision-g1", "planned"),
        ("vinepo", 'Unknown recipe "vinepo". Did you mean vineppo?'),
        ("s.py:wants", "missing a required argument: 'run'"),
        ("s.py:later", "s.py:later is async"),
    ):
        result = run(target)
        assert result.exit_code == 2 and words in result.output, result.output
