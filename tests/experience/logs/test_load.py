"""Bytes to records: nothing is lost, nothing is cut in two, and what is broken is named by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlready.experience.logs import load as loading
from rlready.experience.logs.load import Record, load, pick, reload

TEXTS = st.text(st.sampled_from('ab"\\{}[],:\n\u2028\u0085é😀'), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, JSON, min_size=1, max_size=4), max_size=6)


def read(path: Path) -> tuple[list[Record], list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    return list(load(path, lambda line, why: bad.append((line, why)))), bad


def test_jsonl_is_split_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"a": "one\u2028two\u0085three\x1cfour"}, {"a": "five\u2029six"}]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    records, bad = read(path)
    assert [r.value for r in records] == rows and [r.line for r in records] == [1, 2] and not bad


def test_a_broken_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": \n{"a": "\xff"}\n{"a": NaN}\n{"a": "\\ud83d"}\n{"a": "cut o')
    records, bad = read(path)
    assert [r.line for r in records] == [1, 5, 6]
    assert records[2].value == {"a": "\ufffd"}, "half a surrogate pair, which no encoder takes"
    assert [line for line, _ in bad] == [3, 4, 7]
    assert "UTF-8" in bad[1][1] and "ends within this line" in bad[2][1] and "ends" not in bad[0][1]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=OBJECTS)
def test_the_scanner_finds_what_the_decoder_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], indent: int | None, chunk: int
) -> None:
    rows = [r for r in rows if not {"role", "from"} & r.keys()]
    monkeypatch.setattr(loading, "_CHUNK", chunk)
    path = tmp_path / "log.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    records, bad = read(path)
    assert [r.value for r in records] == rows and not bad
    assert [r.number for r in records] == list(range(1, len(rows) + 1))
    for record in records:
        assert pick(reload(record), record.inside) == record.value
        if indent:
            assert path.read_text(encoding="utf-8").split("\n")[record.line - 1].lstrip().startswith("{")


def test_values_one_after_another_and_pages_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{\n "a": 1\n}\n{\n "a": 2\n}\n[{"a": 3},\n{"a": 4}]')
    records, bad = read(path)
    assert [(r.value["a"], r.line) for r in records] == [(1, 1), (2, 4), (3, 7), (4, 8)] and not bad


def test_an_array_that_is_cut_off_gives_its_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"a": 1},\n{"a": {"b": 2}},\n{"a": [1, {"b": "x')
    records, bad = read(path)
    assert [r.value for r in records] == [{"a": 1}, {"a": {"b": 2}}]
    assert bad == [(3, "not valid JSON; the file ends within this record")]
    path.write_text('[{"a": 1},\n{"a": 2}\n')
    records, bad = read(path)
    assert len(records) == 2 and "before its array is closed" in bad[0][1]


def test_what_is_no_object_between_records_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"a": 1}, 7, "x",\n {"a": 2}, {"a": tru}, {"a": 3}]')
    records, bad = read(path)
    assert [r.value["a"] for r in records] == [1, 2, 3]
    assert bad[0] == (1, 'neither an object nor a list: 7, "x"') and bad[1][0] == 2


def test_a_list_of_messages_is_one_record(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "log.json"
    path.write_text(json.dumps(messages, indent=1))
    assert [r.value for r in read(path)[0]] == [messages]
    path.write_text(json.dumps([messages, messages]))
    assert [r.value for r in read(path)[0]] == [messages, messages]
    lines = tmp_path / "log.jsonl"
    lines.write_text(json.dumps(messages) + "\n" + json.dumps([{"a": 1}, {"a": 2}]) + "\n")
    assert [(r.value, r.number) for r in read(lines)[0]] == [(messages, 0), ({"a": 1}, 1), ({"a": 2}, 2)]
    batch = read(lines)[0][2]
    assert pick(reload(batch), batch.inside) == {"a": 2}


def test_the_suffix_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert [(r.value["a"], r.number) for r in read(path)[0]] == [(1, 0), (2, 0)]
    path = tmp_path / "log.jsonl"
    path.write_text('[\n {"a": 1},\n {"a": 2}\n]')
    assert [r.value["a"] for r in read(path)[0]] == [1, 2]


def test_reading_holds_one_record_not_the_file(tmp_path: Path) -> None:
    """1 MB of buffer, whatever the file: the array is never decoded as a whole."""
    import tracemalloc

    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"a": "x" * 1000, "n": i} for i in range(20_000)]))
    tracemalloc.start()
    total = sum(r.value["n"] for r in load(path, lambda *_: None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(20_000)) and peak < 8e6 < path.stat().st_size
