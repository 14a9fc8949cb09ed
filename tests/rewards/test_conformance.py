"""Conformance: a YAML file that does what it says passes, and one that does not is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlready.cli import app
from rlready.errors import UserError
from rlready.rewards.code import RESULTS, CodePool, language, languages
from rlready.rewards.code.conformance import FOLDER, PROGRAMS, WANTED, Conformance, check_language, programs_for


def _sandbox() -> bool:
    try:
        CodePool("python", 1).start().close()
    except UserError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _sandbox(), reason="nothing isolates programs here")
RUNS = [name for name, each in languages().items() if each.runs_here]


def yaml(tmp_path: Path, execute: str, filename: str = "snippet.lua", name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(f"prompt: Use it.\nfilename: {filename}\nexecute: {execute}\n")
    return path


def told(found: Conformance) -> dict[str, tuple[str, bool | None]]:
    return {check.name: (check.got, check.ok) for check in found.checks}


def test_programs_are_whole_and_known_by_ending() -> None:
    endings = {str(path): programs_for(language("lua"), path) for path in FOLDER.glob("*.yaml")}
    assert len(endings) >= 12 and all(set(programs) == set(PROGRAMS) for programs, _ in endings.values())
    for each in languages().values():
        assert programs_for(each)[0], each.name


@pytest.mark.skipif("lua" not in RUNS, reason="lua is not installed")
def test_lua_gives_every_code_and_contains_everything() -> None:
    found = check_language("lua", timeout_s=1.0)
    assert found.ok and found.contained and found.codes == set(RESULTS)
    assert [check.name for check in found.checks] == list(WANTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_language_that_is_installed(name: str) -> None:
    found = check_language(name)
    assert found.ok, told(found)
    assert found.codes == set(RESULTS) and found.contained


def test_a_file_that_swallows_errors_is_found_out(tmp_path: Path) -> None:
    found = check_language(yaml(tmp_path, "lua5.4 snippet.lua || true"), timeout_s=1.0)
    checks = told(found)
    assert not found.ok and checks["error"] == ("fail:wrong-output", False) and checks["sum"] == ("success", True)
    assert checks["nonsense"][1] is False


def test_a_file_that_runs_something_else_is_found_out(tmp_path: Path) -> None:
    found = check_language(yaml(tmp_path, "cat snippet.lua"), timeout_s=1.0)
    checks = told(found)
    assert checks["sum"] == ("fail:wrong-output", False) and checks["timeout"][1] is False


def test_another_ending_needs_programs(tmp_path: Path) -> None:
    path = yaml(tmp_path, "sh snippet.q", "snippet.q")
    found = check_language(path, timeout_s=1.0)
    assert not found.ok and {name for name, (_, ok) in told(found).items() if ok is None} == {*PROGRAMS, "after"}
    assert "--programs" in found.checks[0].reason and told(found)["nonsense"] == ("fail:error", True)
    result = CliRunner().invoke(
        app, ["languages", "check", str(path), "--programs", str(FOLDER / "shell.yaml"), "--timeout", "1", "--json"]
    )
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["ok"] and report["language"] == "mine"
    assert {check["check"]: check["got"] for check in report["checks"]}["output"] == "fail:other"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    run = CliRunner()
    result = run.invoke(
        app, ["languages", "check", str(yaml(tmp_path, "cat snippet.q", "snippet.q")), "--timeout", "1"]
    )
    assert result.exit_code == 1 and "not run: sum" in result.stderr and "not as wanted: nonsense" in result.stderr
    path = yaml(tmp_path, "lua5.4 snippet.lua")
    path.write_text(path.read_text() + "limits: 3\n")
    result = run.invoke(app, ["languages", "check", str(path)])
    assert (
        result.exit_code == 2
        and 'Unknown key "limits"' in result.stderr
        and str(path) in result.stderr.replace("\n", "")
    )
    result = run.invoke(app, ["languages", "check", str(yaml(tmp_path, "no-such-program x"))])
    assert result.exit_code == 2 and "no-such-program" in result.stderr
    bad = tmp_path / "programs.yaml"
    bad.write_text("sum: a\nwrongg: b\n")
    result = run.invoke(app, ["languages", "check", "lua", "--programs", str(bad)])
    assert result.exit_code == 2 and "Did you mean wrong" in result.stderr


def test_the_list_says_what_to_install() -> None:
    result = CliRunner().invoke(app, ["languages", "--json"])
    rows = {row["language"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == 0 and set(rows) == set(languages())
    for name, row in rows.items():
        assert row["runs_here"] == (not row["missing"]) and (row["runs_here"] or row["remedy"]), name
    assert "lua5.4 snippet.lua" in CliRunner().invoke(app, ["languages"]).stdout
