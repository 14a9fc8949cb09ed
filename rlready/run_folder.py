"""Run folders: finding, numbering and reading them, without opening them for writing."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.run_files import FolderLock, parse_line


def find_run(run: str | Path, root: str | Path = "runs") -> Path:
    """The folder of a run given by name or path.

    Raises:
        UserError: there is none; the nearest names are offered.
    """
    for folder in (Path(run), Path(root) / run):
        if (folder / "run.json").exists():
            return folder
    known = sorted(p.parent.name for p in Path(root).glob("*/run.json"))
    if not known:
        raise UserError(f'There is no run "{run}": {root}/ holds no runs yet.')
    raise did_you_mean("run", str(run), known, see="rlready runs")


def read_header(folder: Path) -> dict[str, Any]:
    """A run's `run.json`, its state corrected to "stopped" where its process is gone.

    Raises:
        UserError: the file is damaged.
    """
    header = read_json(folder / "run.json")
    if header is None:
        raise UserError(f"{folder} is not a run: it has no run.json.")
    if header.get("state") == "running" and not FolderLock.held(folder):
        header["state"] = "stopped"
    return header


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file that holds one object; None where there is no such file."""
    return parse_line(path, 1, path.read_bytes()) if path.exists() else None


def new_folder(root: Path, name: str) -> Path:
    """Make `<root>/<name>-<n>` with the next free number."""
    name = slug(name)
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(m[1]) for p in root.iterdir() if (m := re.fullmatch(re.escape(name) + r"-(\d+)", p.name))]
    number = max(taken, default=0) + 1
    while True:  # two processes may look at the same time; mkdir decides
        folder = root / f"{name}-{number}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def empty_folder(folder: Path) -> None:
    """Make a folder, without what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def slug(name: str) -> str:
    """A name as a folder name; nested stages are joined by two dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("/", "--")).strip("-.")


def now() -> str:
    """The present time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
