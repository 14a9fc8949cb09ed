"""`rlready grade` as a person or a script meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rlready.cli import app
from rlready.rewards import kinds
from rlready.rewards.grading import grade_lines
from rlready.rewards.verdict import Graded, Verdict

_RECORDS: list[dict[str, Any]] = [
    {"id": "half", "kind": "math_answer", "prediction": "0.5", "reference": "1/2", "correct": True},
    {"id": "kite", "kind": "math_answer", "prediction": "7", "reference": "the shape is a kite", "correct": False},
    {"id": "c", "kind": "mcq_response", "prediction": "The answer is C.", "reference": "D"},
    {"id": "none", "kind": "qa_em", "prediction": "", "reference": "Paris"},
    {"id": "part", "kind": "rouge", "prediction": "the cat", "reference": "the cat sat"},
]


def grade(tmp_path: Path, *args: str, records: Any = _RECORDS, raw: bytes | None = None) -> Result:
    file = tmp_path / "answers.jsonl"
    text = "\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n"
    file.write_bytes(text.encode() if raw is None else raw)
    return CliRunner().invoke(app, ["grade", str(file), "--quiet", *args], env={"COLUMNS": "100"})


def test_the_table_explains_and_counts(tmp_path: Path) -> None:
    result = grade(tmp_path)
    assert result.exit_code == 0, result.output
    assert "cannot be read as mathematics" in " ".join(result.output.replace("│", " ").split())
    rows = [line.split("│")[1:-1] for line in result.output.split("\n") if line.startswith("│")]
    cells = {row[0].strip(): [c.strip() for c in row] for row in rows if row[0].strip()}
    assert cells["half"][1:4] == ["math_answer", "right", "1"]
    assert cells["kite"][2:4] == ["grader failed", "-"]
    assert cells["c"][2:4] == ["wrong", "0"]
    assert cells["none"][2:4] == ["no answer", "0"]
    assert cells["part"][2:4] == ["wrong", "0.8"]
    assert cells["math_answer"][1:] == ["2", "1", "0", "0", "1", "1.000"]
    assert cells["all"][1:] == ["5", "1", "2", "1", "1", "0.450"]  # of the four that were judged
    assert "2 of 2 verdicts agree." in result.output


def test_json_is_a_line_a_record(tmp_path: Path) -> None:
    result = grade(tmp_path, "--json")
    lines = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
    assert [set(line) for line in lines] == [{"id", "verdict", "score", "reason"}] * 5
    assert [(line["id"], line["verdict"], line["score"]) for line in lines] == [
        ("half", "right", 1.0),
        ("kite", "grader_failed", None),
        ("c", "wrong", 0.0),
        ("none", "no_answer", 0.0),
        ("part", "wrong", pytest.approx(0.8)),
    ]
    assert all(line["reason"] for line in lines)


def test_separators_inside_a_text_end_no_line(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour\x0cfive\x1csix\rseven"
    records = [{"id": "s\u2028", "kind": "qa_em", "prediction": text, "reference": text}, *_RECORDS]
    result = grade(tmp_path, "--json", records=records)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 6
    assert json.loads(lines[0])["id"] == "s\u2028"
    assert json.loads(lines[0])["verdict"] == "right"


def test_bad_lines_are_named_and_the_others_graded(tmp_path: Path) -> None:
    good = json.dumps(_RECORDS[0]).encode()
    bad: list[tuple[bytes, str]] = [
        (b'{"id": 1,', "no JSON"),
        (b"[1]", "a list"),
        (b'"text"', "a text"),
        (b"null", "null"),
        (b"3", "a number"),
        (b'{"kind": "math_answer", "prediction": "\xff", "reference": "1"}', "not UTF-8"),
        (b'{"kind": "maths_answer", "prediction": "1", "reference": "1"}', "Did you mean math_answer"),
        (b'{"kind": ["x"], "prediction": "1", "reference": "1"}', '"kind" must be a name'),
        (b'{"prediction": "1", "reference": "1"}', 'no "kind"'),
        (b'{"kind": "qa_em", "reference": "1"}', 'no "prediction"'),
        (b'{"kind": "qa_em", "prediction": "1"}', 'no "reference"'),
        (b'{"kind": "qa_em", "prediction": 1, "reference": "1"}', '"prediction" must be a text'),
        (b'{"kind": "math_answer", "prediction": "1", "reference": "1", "units": "never"}', "units"),
        (b'{"kind": "qa_em", "prediction": ' + b"[" * 100_000 + b"}", "too deep"),
        (b'{"kind": "qa_em", "prediction": ' + b"1" * 5000 + b"}", "more digits"),
    ]
    raw = b"\xef\xbb\xbf" + good + b"\n\n" + b"\n".join(line for line, _ in bad) + b"\r\n" + good
    result = grade(tmp_path, "--json", raw=raw)
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 2
    for number, (_, words) in enumerate(bad, 3):
        sentence = next(line for line in result.stderr.split("\n") if f"answers.jsonl:{number}: " in line)
        assert words in sentence
        assert sentence.endswith((".", "?"))


def test_one_sentence_for_many_lines_with_the_same_problem(tmp_path: Path) -> None:
    result = grade(tmp_path, raw=b'{"prediction": "1"}\n' * 9)
    assert result.exit_code == 2
    assert "answers.jsonl:1, 2, 3, 4 and 5 more: the record has no" in result.stderr


def test_kind_chooses_and_names(tmp_path: Path) -> None:
    records = [*_RECORDS, {"prediction": "Bonn", "reference": "Bonn"}]
    result = grade(tmp_path, "--kind", "qa_em", "--json", records=records)
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["none", 6]
    result = grade(tmp_path, "--kind", "qa_em", records=records)
    assert "4 of other kinds left out." in result.output
    result = grade(tmp_path, "--kind", "teds")
    assert result.exit_code == 2
    assert 'no record of the kind "teds"' in result.stderr
    result = grade(tmp_path, "--kind", "qa")
    assert result.exit_code == 2
    assert "Did you mean" in result.stderr


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no.jsonl", "is not there"), (tmp_path, "is a folder")):
        result = CliRunner().invoke(app, ["grade", str(path)])
        assert result.exit_code == 2
        assert words in result.stderr
    assert "holds no record" in grade(tmp_path, raw=b"\n\n").stderr
    assert "one JSON list" in grade(tmp_path, raw=b' [{"id": 1}]').stderr


def test_standard_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["grade", "-", "--json"], input=json.dumps(_RECORDS[0]) + "\n")
    assert json.loads(result.stdout)["verdict"] == "right"


def test_long_files_show_some_and_where_records_differ(tmp_path: Path) -> None:
    records = [{"id": f"r{i:03}", "kind": "qa_em", "prediction": "a b", "reference": "a b"} for i in range(230)]
    records[220]["correct"] = False  # type: ignore[assignment]
    result = grade(tmp_path, records=records)
    assert "201 of 230 records are shown" in result.output
    assert "r199" in result.output
    assert "r210" not in result.output
    assert "0 of 1 verdicts agree; not r220." in result.output
    everything = grade(tmp_path, "--all", records=records)
    assert "r210" in everything.output
    assert "are shown" not in everything.output


def test_ids_and_reasons_of_any_characters(tmp_path: Path) -> None:
    records = [
        {"id": "[red]x[/red]\x1b[31m", "kind": "qa_em", "prediction": "[bold]a[/bold]\ud800", "reference": "b"},
        {"id": {"a": 1}, "kind": "qa_em", "prediction": "a", "reference": "b"},
    ]
    raw = "\n".join(map(json.dumps, records)).encode()
    for args in ((), ("--json",)):
        result = grade(tmp_path, *args, raw=raw)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
    assert "[red]x[/red]" in grade(tmp_path, raw=raw).output


def test_a_grader_that_breaks_fails_its_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: kinds.Kind) -> Any:
        def grader(record: Any) -> Graded:
            raise RuntimeError("broken here")

        return grader if self.name == "qa_em" else real(self)

    real = kinds.Kind.grader
    monkeypatch.setattr(kinds.Kind, "grader", broken)
    lines = list(grade_lines([json.dumps(r).encode() for r in _RECORDS]))
    assert [line.graded.verdict for line in lines if line.graded][3] is Verdict.GRADER_FAILED
    assert lines[3].graded is not None
    assert lines[3].graded.reason == "the grader raised RuntimeError: broken here"
    assert lines[4].graded is not None
    assert lines[4].graded.verdict is Verdict.WRONG


def test_help_teaches_with_an_example() -> None:
    text = CliRunner().invoke(app, ["grade", "--help"], env={"COLUMNS": "200"}).output
    for words in ('{"id": "a", "kind": "math_answer"', "rlready grade answers.jsonl --json", *kinds.KINDS):
        assert words in text
