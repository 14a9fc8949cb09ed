"""Paths, forms, rewards from elsewhere, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlready.errors import UserError
from rlready.experience.logs import FORMS, LogReport, episode_of, read_logs
from rlready.experience.logs.detect import form_of
from rlready.experience.logs.times import seconds_of
from rlready.experience.recording import Recording
from tests.experience.logs.exports import CASES


def chat(asked: str, said: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}], **more}


def test_a_folder_is_read_in_order_and_junk_in_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b" / "2.jsonl").write_text(json.dumps(chat("q", "two")) + "\n")
    (tmp_path / "a.json").write_text(json.dumps([chat("q", "one")]))
    (tmp_path / "c.ndjson").write_text(json.dumps(chat("q", "three")))
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / ".hidden" / "x.jsonl").write_text(json.dumps(chat("q", "hidden")))
    report = LogReport()
    got = list(read_logs(tmp_path, report=report))
    assert [r.messages[-1].text for r in got] == ["one", "two", "three"]
    assert {Path(d.file).name: d.reason for d in report.dropped} == {
        "config.json": "a file in no form that is understood; the keys are lr", "empty.jsonl": "the file is empty",
    }  # fmt: skip
    assert report.forms == {"chat": 3} and report.bytes > 0
    assert json.loads(json.dumps(report.to_json()))["recordings"] == 3


def test_what_a_user_can_mend(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"alpha": 1, "beta": 2}')
    with pytest.raises(UserError) as caught:
        list(read_logs(path))
    assert all(word in str(caught.value) for word in ("x.json", "alpha, beta", *FORMS))
    with pytest.raises(UserError, match="no form of logs"):
        list(read_logs(tmp_path))
    with pytest.raises(UserError, match="no file or folder"):
        read_logs(tmp_path / "nowhere")
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="holds no"):
        read_logs(tmp_path / "sub")
    with pytest.raises(UserError, match="Did you mean langfuse"):
        read_logs(path, form="langfues")
    with pytest.raises(UserError, match="No logs were given"):
        read_logs([])


def test_a_form_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' + json.dumps(chat("q", "a")) + "\n")
    report = LogReport()
    assert len(list(read_logs(str(path), form="chat", report=report))) == 1
    assert report.reasons == {"no chat record; the keys are a": 1}


@pytest.mark.parametrize("case", [c for c in CASES if "page" not in c])
def test_no_record_has_two_forms(case: str) -> None:
    """The order of forms decides nothing but OpenInference, which is OpenTelemetry, and a run with its children."""
    form, records = CASES[case]
    for record in records:
        found = form_of(record)
        fitting = {f.name for f in FORMS.values() if f.fits(record)}
        assert found is not None and found.name == form
        assert fitting - {"otel"} <= {form} or fitting == {form}, fitting


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "r.jsonl",
            '{"id": "0-0", "reward": 1}\n{"task_id": 0, "trial": 1, "reward": 0.5}\n{"id": "x", "reward": 0}\n',
        ),
        ("r.csv", "id,reward\n0-0,1\n0/1,0.5\nx,0\n"),
        ("r.csv", "task_id, trial, reward, note\n0,0,1,\n0,1,0.5,hm\nx,,0,\n".replace("x,,0,\n", "x,0,0,\n")),
    ],
)
def test_rewards_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    log, rewards, report = tmp_path / "log.jsonl", tmp_path / name, LogReport()
    runs = [chat("q", "a", task_id=0, trial=trial, reward=0.0, success=False) for trial in range(3)]
    log.write_text("\n".join(json.dumps(r) for r in runs))
    rewards.write_text(text)
    got = list(read_logs(log, rewards=rewards, report=report))
    assert [r.reward for r in got] == [1.0, 0.5, 0.0]
    assert [episode_of(r)[0].success for r in got] == [True, False, False]
    assert report.unmatched in (["x"], ["x-0"])
    assert report.notes["recordings without a reward of their own (the log's was kept)"] == 1
    assert any("fit no recording" in line for line in report.lines())


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("r.jsonl", '{"id": "a", "reward": 1}\n{"id": "b"}\n', "line 2"),
        ("r.jsonl", '{"id": "a", "reward": NaN}\n', "line 1"),
        ("r.jsonl", '{"id": "a", "reward": 1}\n\n{"id": "a", "reward": 0}\n', "line 3: a has two"),
        ("r.csv", "id,reward\na,1\nb,high\n", "line 3"),
        ("r.csv", "id,reward\na,nan\n", "line 2"),
    ],
)
def test_a_bad_file_of_rewards_is_refused_before_reading(tmp_path: Path, name: str, text: str, where: str) -> None:
    log, rewards = tmp_path / "log.jsonl", tmp_path / name
    log.write_text(json.dumps(chat("q", "a")))
    rewards.write_text(text)
    with pytest.raises(UserError, match=where):
        read_logs(log, rewards=rewards)
    with pytest.raises(UserError, match="no file of rewards"):
        read_logs(log, rewards=tmp_path / "none.csv")


def test_rewards_from_a_verifier(reading: Any) -> None:
    def verify(recording: Recording) -> float | None:
        return {"good": 1.0, "bad": 0.0}.get(recording.messages[-1].text)

    runs = [chat("q", said, reward=0.25) for said in ("good", "bad", "odd")]
    got, report = reading(runs, rewards=verify)
    assert [r.reward for r in got] == [1.0, 0.0, 0.25] and report.notes.total() == 1
    with pytest.raises(UserError, match="line 1"):
        reading(runs, rewards=lambda _: float("nan"))
    got, _ = reading([chat("q", "a", id="one")], rewards={"one": 1})
    assert got[0].reward == 1.0


@pytest.mark.parametrize(
    "written",
    [
        1_700_000_000, 1_700_000_000.0, 1_700_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_000_000,
        "1700000000000000000", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.000000000+00:00",
        "2023-11-14 23:13:20+01:00", "2023-11-14T22:13:20", [1_700_000_000, 0],
    ],
)  # fmt: skip
def test_times(written: Any) -> None:
    assert seconds_of(written) == 1_700_000_000.0


@pytest.mark.parametrize("written", [None, "", "soon", True, float("nan"), {}, [1]])
def test_no_times(written: Any) -> None:
    assert seconds_of(written) is None


def test_dropped_records_are_counted_without_end_and_listed_with_one(reading: Any) -> None:
    rows = [chat("q", "a")] + [{"messages": []}] * 1200
    _, report = reading(rows)
    assert report.reasons["no messages"] == 1200 and len(report.dropped) == 1000
