"""Trajectories in files: ours, ATIF with token ids, and dumps of other trainers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlready.doctor.foreign import audit_file
from rlready.errors import UserError
from rlready.export import to_atif
from rlready.findings import Findings
from rlready.types import Trajectory
from tests.doctor.faults.healthy import few_threads, guess
from tests.doctor.faults.tokens import rolled_out


def dump(n: int = 32, **names: str) -> list[dict[str, Any]]:
    """A sound dump: groups of four, rewards that differ, advantages less the mean."""
    draw = random.Random(3)
    out = []
    for i in range(0, n, 4):
        rewards = [1.0, 0.0, 0.0, 1.0] if i % 8 else [0.0, 1.0, 1.0, 1.0]
        mean = sum(rewards) / 4
        for k in range(4):
            size = 4 + draw.randrange(4)
            logprobs = [-draw.random() * 2 for _ in range(size)]
            out.append(
                {
                    "prompt_ids": [1, 2, 3 + i],
                    "completion_ids": [draw.randrange(50) for _ in range(size)],
                    "logprobs": logprobs,
                    "old_logprobs": [x + 1e-5 for x in logprobs],
                    "mask": [1] * size,
                    "advantages": [rewards[k] - mean] * size,
                    "reward": rewards[k],
                    "group_id": i,
                }
            )
    return [{names.get(k, k): v for k, v in record.items()} for record in out]


def audit(tmp_path: Path, records: list[Any], name: str = "dump.jsonl") -> tuple[Findings, dict[str, str]]:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(r) for r in records) + "\n", encoding="utf-8")
    return audit_file(path)


def test_a_sound_dump_is_silent_whatever_its_names(tmp_path: Path) -> None:
    for names in (
        {},
        {"prompt_ids": "prompt_token_ids", "completion_ids": "response_ids", "mask": "response_mask",
         "logprobs": "rollout_log_probs", "old_logprobs": "old_log_probs", "group_id": "uid"},
        {"mask": "completion_mask", "logprobs": "sampling_per_token_logps", "old_logprobs": "old_per_token_logps"},
    ):  # fmt: skip
        found, understood = audit(tmp_path, dump(**names))
        assert not found.errors and not found.warnings, str(found)
        for ours, theirs in names.items():
            assert theirs in understood.values(), (ours, understood)
    whole = []
    for record in dump():
        record["input_ids"] = record["prompt_ids"] + record.pop("completion_ids")
        whole.append(record)
    found, understood = audit(tmp_path, whole)
    assert not found.errors and understood["input_ids"] == "input_ids"


def each(change: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    records = dump()
    for record in records:
        change(record)
    return records


def _set(key: str, value: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.__setitem__(key, value(record))


def _cold(record: dict[str, Any]) -> list[float]:
    return [x / 0.6 for x in record["logprobs"]]


def _not_renormalised(record: dict[str, Any]) -> list[float]:
    return [x - 0.2 - 0.1 * (i % 3) for i, x in enumerate(record["logprobs"])]


def _another(record: dict[str, Any]) -> list[float]:
    return [x + (-1) ** i for i, x in enumerate(record["logprobs"])]


SLIPS: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "verl#2506: the advantages as mask": ("mask values", _set("mask", lambda r: r["advantages"])),
    "ART#127: a mask of zeros": ("mask", _set("mask", lambda r: [0] * len(r["mask"]))),
    "log-probs of zero": ("no log-probs", _set("logprobs", lambda r: [0.0] * len(r["mask"]))),
    "log-probs that are probabilities": ("no log-probs", _set("logprobs", lambda r: [0.3] * len(r["mask"]))),
    "trl#4159: temperature on one side": ("temperature", _set("old_logprobs", _cold)),
    "trl#6789: top-p on one side": ("truncation", _set("old_logprobs", _not_renormalised)),
    "another model": ("log-probs", _set("old_logprobs", _another)),
    "advantages of the other sign": ("credit", _set("advantages", lambda r: [-x for x in r["advantages"]])),
    "advantages that are not finite": ("credit", _set("advantages", lambda r: [float("nan")] * len(r["mask"]))),
    "columns of other lengths": ("lengths", _set("mask", lambda r: r["mask"][1:])),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_named(name: str, tmp_path: Path) -> None:
    check, change = SLIPS[name]
    found, _ = audit(tmp_path, each(change))
    hits = [f for f in found.errors if f.check == check]
    assert hits, str(found)
    assert "dump.jsonl, line " in str(hits[0].where) and hits[0].why and hits[0].mend


def test_groups_of_one_and_uniform_ones(tmp_path: Path) -> None:
    alone = [{**r, "group_id": i, "advantages": [0.0] * len(r["mask"])} for i, r in enumerate(dump())]
    assert audit(tmp_path, alone)[0].of("groups of one")[0].level == "error"
    flat = [{**r, "reward": 0.0} for r in dump()]
    assert audit(tmp_path, flat)[0].of("spread")[0].level == "warning"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    bare = [{"prompt_ids": r["prompt_ids"], "completion_ids": r["completion_ids"]} for r in dump()]
    found, _ = audit(tmp_path, bare)
    assert "No record holds logprobs or reward or advantages or group" in found.of("keys")[0].text and found.ok
    ungrouped = [{k: v for k, v in r.items() if k != "group_id"} for r in dump()]
    found, _ = audit(tmp_path, ungrouped)
    assert "No record holds group" in found.of("keys")[0].text and not found.of("spread")  # no one group of all


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completion_ids": [[1, 2]]}, "line 3 .* completion_ids is no list of token ids .a list in a list"),
        ({"completion_ids": ["a"]}, "line 3 .* completion_ids is no list of token ids"),
        ({"completion_ids": None}, "line 3 .* no token ids"),
        ({"reward": "good"}, "line 3 .* reward is 'good', no number"),
        ({"logprobs": [{"token": 1}]}, "line 3 .* logprobs is no list of numbers"),
        ({"mask": {"a": 1}}, "line 3 .* mask is no list of numbers"),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    records = dump()
    records[2] |= change
    with pytest.raises(UserError, match=words):
        audit(tmp_path, records)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    for name, data, words in (
        ("binary.jsonl", b"\xff\xfe\x00", "cannot be read as UTF-8"),
        ("deep.json", b"[" * 100_000, "is not JSON"),
        ("numbers.jsonl", b"5\n6\n", "holds no records"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=words):
            audit_file(tmp_path / name)


def test_rewards_that_are_not_finite_are_told(tmp_path: Path) -> None:
    records = dump()
    records[5]["reward"] = float("nan")
    assert "1 of 32 trajectories" in audit(tmp_path, records)[0].of("failures")[0].text
    assert audit(tmp_path, [{**r, "reward": r["reward"] > 0} for r in dump()])[0].ok  # true and false are 1 and 0


def test_cut_off_answers(tmp_path: Path) -> None:
    cut = [{**r, "finish_reason": "length" if i % 2 else "stop"} for i, r in enumerate(dump())]
    (warning, *_) = audit(tmp_path, cut)[0].of("cut off")
    assert "16 of 32 completions were stopped by the length cap" in warning.text


def ours() -> list[dict[str, Any]]:
    few_threads()
    groups = rolled_out(guess())
    for group in groups:
        for trajectory in group:
            trajectory.assign(trajectory.reward - float(group.rewards.mean()))
    return [t.to_json() for g in groups for t in g]


def test_our_own_trajectories(tmp_path: Path) -> None:
    records = ours()
    found, understood = audit(tmp_path, records)
    assert not found.errors and understood["form"] == "trajectories of rlready"
    longest = max(records, key=lambda r: len(r["turns"]))
    longest["turns"][1]["prompt_ids"][10] += 1
    found, _ = audit(tmp_path, records)
    (error,) = found.of("re-encoded")
    assert error.where is not None and (error.where.turn, error.where.token) == (1, 10)


def atif() -> list[dict[str, Any]]:
    out = []
    for record in ours():
        steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": "a question"}]
        for turn in record["turns"]:
            steps.append({"step_id": len(steps) + 1, "source": "agent", "message": turn.get("text", ""), "metrics": {
                "prompt_token_ids": turn["prompt_ids"], "completion_token_ids": turn["completion_ids"],
                "logprobs": turn["logprobs"]}})  # fmt: skip
        out.append({"schema_version": "ATIF-v1.4", "session_id": record["task"]["id"], "agent": {"name": "a"},
                    "steps": steps, "extra": {"reward": record["reward"]}})  # fmt: skip
    return out


def test_atif_with_token_ids(tmp_path: Path) -> None:
    exported = [to_atif(Trajectory.from_json(r)).to_json_dict() for r in ours()]
    found, understood = audit(tmp_path, exported)
    assert not found.errors and understood["form"] == "ATIF" and "are uniform" in found.of("spread")[0].text
    records = atif()
    found, understood = audit(tmp_path, records)
    assert not found.errors and understood["form"] == "ATIF"
    for record in records:
        for step in record["steps"][1:]:
            step["metrics"]["completion_token_ids"] = [9, *step["metrics"]["completion_token_ids"]]
            step["metrics"]["logprobs"] = [-1.0, *step["metrics"]["logprobs"]]
    found, _ = audit(tmp_path, records)
    assert {f.check for f in found.errors} == {"re-encoded"}


def test_lines_are_split_at_the_newline_byte_alone(tmp_path: Path) -> None:
    records = [{**r, "text": "a\u2028b\u0085c"} for r in dump()]
    path = tmp_path / "dump.jsonl"
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records), encoding="utf-8")
    assert audit_file(path)[0].ok


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for records, words in (
        ([{"question": "?"}], r"line 1 has no token ids that are known by name \(it has: question\)"),
        ([{"prompt_ids": [1], "completion_ids": []}], "holds no sampled token ids"),
        ([[1]], "holds no records"),
    ):
        with pytest.raises(UserError, match=words):
            audit(tmp_path, records)
