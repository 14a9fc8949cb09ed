"""Where a gym goes, and the folder beside it that holds a fit under way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlready import __version__
from rlready.checkpoint import remove_folder
from rlready.config import first_difference, to_dict, to_toml
from rlready.errors import UserError
from rlready.run_files import dump_json, sync_folder, write_atomic
from rlready.run_folder import now, read_json


def taken(out: Path, part: Path, job: Mapping[str, Any], force: bool) -> bool:
    """Whether this very fit was finished and only its leftovers were not removed.

    Raises:
        UserError: there is something else in the place.
    """
    if not out.exists():
        return False
    header = read_json(part / "run.json") if part.exists() else None
    if header is not None and header.get("delivered") and header.get("job") == job and (out / "gym.json").exists():
        return True
    if not (out / "gym.json").exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already and is no gym. Choose another --out.")
    if (out / "gym.json").exists() and not force:
        raise UserError(
            f"{out} is a finished gym, and nothing was changed. Choose another --out, or --force to fit it again (it "
            "stays until the new one is whole)."
        )
    return False


def open_part(part: Path, job: Mapping[str, Any], force: bool) -> None:
    """Make the run's folder, or check that the one that is there is of this very fit."""
    header = read_json(part / "run.json") if part.exists() else None
    if header is not None and header.get("job") != job:
        if not force and begun(part):
            raise UserError(_other(part, header.get("job") or {}, job))
        remove_folder(part)
        header = None
    if header is None:
        part.mkdir(parents=True, exist_ok=True)
        body = {"name": part.name, "seed": job["seed"], "created": now(), "version": __version__, "job": job}
        write_atomic(part / "config.toml", to_toml({"config": to_dict(job["options"])}))
        write_atomic(part / "run.json", dump_json(body, indent=1))


def begun(part: Path) -> bool:
    """Whether a stage was finished or a checkpoint written, so that something would be lost."""
    return any(part.glob("stages/*/record.json")) or any(part.glob("checkpoints/*/*"))


def _other(part: Path, then: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    how = "Run the command that began it to go on, or add --force to drop it and start afresh."
    if then.get("inputs") != job["inputs"] and then.get("logs") == job["logs"]:
        return f"{part} holds an unfinished fit, and the logs have changed since it began. Add --force to start afresh."
    key, before, given = first_difference(_flat(then), _flat(job)) or ("inputs", "others", "these")
    return f"{part} holds an unfinished fit with {key} = {before}, and now it is {given}. {how}"


def _flat(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": job.get("seed"), "logs": " ".join(job.get("logs", ())), **job.get("options", {})}


def swap_in(whole: Path, out: Path) -> None:
    """Put a finished folder under its name; what was there stays until then."""
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        os.rename(out, old)
    os.rename(whole, out)
    sync_folder(out.parent)
    for path in [old, *out.parent.glob(f".{out.name}.*.old")]:  # a killed fit may have left an old one
        shutil.rmtree(path, ignore_errors=True)
