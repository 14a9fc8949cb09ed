"""Logs are written to a file as tools write them, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlready.experience.logs import LogReport, read_logs
from rlready.experience.recording import Recording

Reading = Callable[..., tuple[list[Recording], LogReport]]


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    """Write records (JSONL) or bytes to a file, and read it."""

    def read(records: Any, name: str = "log.jsonl", **options: Any) -> tuple[list[Recording], LogReport]:
        path = tmp_path / name
        if not isinstance(records, bytes):
            lines = [json.dumps(r, ensure_ascii=False) for r in records]
            records = "\n".join(lines).encode() + b"\n" if name.endswith("l") else json.dumps(records).encode()
        path.write_bytes(records)
        report = LogReport()
        return list(read_logs(path, report=report, **options)), report

    return read
