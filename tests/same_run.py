"""Whether two runs are the same, bit for bit, but for what the clock decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlready.checkpoint import load_state

CLOCK = ("seconds", "time", "timings", "overhead", "trainer", "generator")


def untimed(record: Any) -> Any:
    """A record without what the clock decides."""
    if isinstance(record, dict):
        return {k: untimed(v) for k, v in record.items() if not any(k.split("/")[0] == c or c in k for c in CLOCK)}
    return [untimed(v) for v in record] if isinstance(record, list) else record


def lines_of(run: Path, name: str) -> list[Any]:
    """The records of a JSONL file of a run, untimed."""
    return [untimed(json.loads(line)) for line in (run / name).read_text(encoding="utf-8").split("\n") if line]


def assert_same_state(a: Any, b: Any, path: str) -> None:
    """Fails with the path of the first difference."""
    assert type(a) is type(b), path
    if isinstance(a, Mapping):
        assert set(a) == set(b), path
        for key in a:
            assert_same_state(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_state(x, y, f"{path}[{i}]")
    else:
        assert a == b, path


def same_run(a: Path, b: Path, checkpoint: str, *parts: str) -> None:
    """Fails where metrics, episodes (ids and log-probs included) or the parts of a checkpoint differ."""
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        assert lines_of(a, name) == lines_of(b, name), name
    for part in parts:
        assert_same_state(load_state(a / checkpoint, part), load_state(b / checkpoint, part), part)
