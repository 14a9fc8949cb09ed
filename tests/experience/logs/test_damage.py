"""Damaged records of every form: reading goes on, the sound ones come out whole, and nothing but reports is made."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rlready.experience.logs import FORMS, LogReport, episode_of, read_logs
from rlready.seeds import rng
from tests.experience.logs.exports import CASES
from tests.experience.logs.test_chat import ATIF, RUN
from tests.experience.logs.test_transitions import row

JUNK = (
    None,
    5,
    -1.5,
    True,
    "x",
    "",
    "[",
    '{"a": 1}',
    [],
    [None],
    [[]],
    {},
    {"role": 5},
    {"": None},
    [{"type": "text"}],
)
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}
STEPS = [row("A", "1", "B"), row("B", "2", "C", 1, True)]
ROWS = [row("A", {"name": "f", "arguments": {}}, "B", episode_id=1), row("B", "x", "C", done=True)]
CHAT = {"messages": RUN, "task_id": "t", "reward": 1, "tools": [{"name": "f"}], "metadata": {"seed": 1}}
OTHERS: dict[str, tuple[str, list[Any]]] = {
    "chat": ("chat", [CHAT]),
    "chat, parts": ("chat", [[RUN[1], USE]]),
    "atif": ("atif", [ATIF]),
    "transitions": ("transitions", ROWS),
    "episodes": ("transitions", [{"id": "e", "transitions": STEPS}]),
}


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to everything inside of a value."""
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*way, key))


def damaged(records: list[Any], draw: random.Random) -> list[Any]:
    """A copy in which one to three places hold something else, or nothing."""
    rows = deepcopy(records)
    for _ in range(draw.randint(1, 3)):
        *way, last = draw.choice([w for w in places(rows) if len(w) > 1] or [(0,)])
        at: Any = rows
        for step in way:
            at = at[step]
        if draw.random() < 0.2 and way:
            del at[last]
        else:
            at[last] = deepcopy(draw.choice(JUNK))
    return rows


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_damage_never_stops_the_reading(tmp_path: Path, case: str) -> None:
    form, records = {**CASES, **OTHERS}[case]
    draw = rng("damage", case)
    path = tmp_path / "log.jsonl"
    for _ in range(150):
        rows = damaged(records, draw)
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        report = LogReport()
        recordings = list(read_logs(path, form=form, report=report))
        assert report.recordings == len(recordings) and (report.records >= 1 or rows == [[]])
        for recording in recordings:
            episode_of(recording)
            json.dumps({"meta": dict(recording.meta), "tools": [dict(t) for t in recording.tools], "id": recording.id})
            assert isinstance(recording.task_id, str) and all(isinstance(m.text, str) for m in recording.messages)
            calls = [c.id for m in recording.messages for c in m.tool_calls]
            assert len(calls) == len(set(calls))
            assert recording.failed <= set(calls) and recording.seconds.keys() <= set(calls)
        json.dumps(report.to_json())


@pytest.mark.parametrize("junk", JUNK)
def test_a_record_of_junk_fits_no_form(junk: Any) -> None:
    for form in FORMS.values():
        form.fits(junk)
        form.fits(
            {"messages": junk, "attributes": junk, "traceId": junk, "context": junk, "observations": junk, "id": junk}
        )
        form.fits({"event": "$ai_generation", "properties": junk, "steps": junk, "resourceSpans": junk, "type": junk})
