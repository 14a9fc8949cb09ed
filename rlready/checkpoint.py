"""State to disk and back, without pickle.

A *part* is anything with `state_dict()` and `load_state_dict(state)`: a learner, a curriculum, a collector, a replay
buffer. Its state may hold dicts, lists, tuples, strings, numbers, bytes, None, torch tensors and NumPy arrays, nested
as one likes. States that JSON can hold are written as JSON; the rest goes through `torch.save` and is read with
`weights_only=True`, so that a checkpoint from a stranger cannot run code. Anything else is refused when it is saved,
with its path in the state.

A checkpoint is a folder that appears by one rename, after every file in it was synced:

    step-00000012/
        record.json          step, what else was true then, and the size of every file
        <part>.json | <part>.pt
        model/                the weights as a Hugging Face folder, where the loop asked for it
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rlready.errors import UserError
from rlready.run_files import dump_json, sync_folder

if TYPE_CHECKING:
    import torch

RECORD = "record.json"
_ARRAY, _BYTES = "__numpy__", "__bytes__"


@runtime_checkable
class Stateful(Protocol):
    """What can be checkpointed."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Inverse of `state_dict`."""
        ...


@runtime_checkable
class SavesFolder(Protocol):
    """What can write itself as a folder that other tools read (safetensors, config, tokenizer)."""

    def save_pretrained(self, path: Path) -> None:
        """Write the folder's files into `path`, which exists."""
        ...


def save_state(folder: Path, name: str, state: Any) -> Path:
    """Write one part's state and sync it; returns the file.

    Raises:
        TypeError: the state holds something that cannot be stored; its path is named.
    """
    if _is_json(state):
        path = folder / f"{name}.json"
        with path.open("w", encoding="utf-8") as f:
            json.dump(state, f, ensure_ascii=False)
            f.flush()
            os.fsync(f.fileno())
        return path
    import torch

    path = folder / f"{name}.pt"
    with path.open("wb") as f:
        torch.save(_encode(state, name), f)
        f.flush()
        os.fsync(f.fileno())
    return path


def load_state(folder: Path, name: str) -> Any:
    """Read what `save_state` wrote.

    Raises:
        UserError: there is no such part, or its file is damaged.
    """
    as_json, as_torch = folder / f"{name}.json", folder / f"{name}.pt"
    if as_json.exists():
        try:
            return json.loads(as_json.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise UserError(f"{as_json}, line {error.lineno}, column {error.colno}: {error.msg}.") from error
    if not as_torch.exists():
        raise UserError(f'{folder} has no part "{name}". It holds: {", ".join(parts_in(folder)) or "nothing"}.')
    import torch

    try:
        return _decode(torch.load(as_torch, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise UserError(f"{as_torch} holds something that is not plain data, so it is not loaded.") from error
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise UserError(f"{as_torch} is damaged and cannot be read ({_first_line(error)}).") from error


def parts_in(folder: Path) -> list[str]:
    """Names of the parts stored in a checkpoint folder."""
    return sorted({p.stem for p in folder.iterdir() if p.suffix in (".json", ".pt") and p.name != RECORD})


def save_checkpoint(
    folder: Path, parts: Mapping[str, Stateful], record: Mapping[str, Any], model: SavesFolder | None = None
) -> None:
    """Write a checkpoint folder atomically; one of the same name is replaced.

    Args:
        folder: where to; its parents are made.
        parts: what to save, by name.
        record: what else was true, JSON-ready.
        model: writes itself into the subfolder `model`.

    Raises:
        OSError: the disk refused; nothing of an earlier checkpoint is touched.
        TypeError: a state holds something that cannot be stored.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    tmp = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    try:
        for name, part in parts.items():
            save_state(tmp, name, part.state_dict())
        if model is not None:
            (tmp / "model").mkdir()
            model.save_pretrained(tmp / "model")
            _sync_tree(tmp / "model")
        sizes = {str(p.relative_to(tmp)): p.stat().st_size for p in sorted(tmp.rglob("*")) if p.is_file()}
        with (tmp / RECORD).open("w", encoding="utf-8") as f:
            f.write(dump_json({**record, "parts": sorted(parts), "files": sizes}, indent=1))
            f.flush()
            os.fsync(f.fileno())
        sync_folder(tmp)
        if folder.exists():
            remove_folder(folder)
        os.rename(tmp, folder)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def read_record(folder: Path) -> dict[str, Any]:
    """A checkpoint's record, after checking that its files are whole.

    Raises:
        UserError: a file is missing or has another size than was written.
    """
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    for name, size in record["files"].items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise UserError(
                f"Checkpoint {folder} is damaged: {name} {state}. Remove that folder to resume from the one before."
            )
    return record


def load_checkpoint(folder: Path, parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Load every part's state from a checkpoint; returns its record.

    Raises:
        UserError: the checkpoint is damaged, lacks a part, or was saved from another model.
    """
    record = read_record(folder)
    missing = sorted(set(parts) - set(record["parts"]))
    if missing:
        raise UserError(
            f"Checkpoint {folder} has no {', '.join(missing)}; it holds {', '.join(record['parts'])}. "
            "Resume with the same recipe and algorithm, or start a new run."
        )
    for name, part in parts.items():
        stored = load_state(folder, name)
        _refuse_other_model(folder, name, stored, part)
        try:
            part.load_state_dict(stored)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"Checkpoint {folder} does not fit this {name} ({_first_line(error)}). "
                "It is a checkpoint of another model; use the model it was saved from, or start a new run."
            ) from error
    return record


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint so that it is never seen half-removed."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def clean_leftovers(root: Path) -> None:
    """Remove the temporary folders that a killed process left below `root`."""
    if root.exists():
        for path in [p for p in root.rglob(".*") if re.fullmatch(r"\..+\.\d+\.(tmp|old)", p.name)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class GlobalRandom:
    """The process-wide generators (Python, NumPy, torch), for code that draws from them in spite of `rlready.seeds`."""

    def state_dict(self) -> dict[str, Any]:
        """All three states; torch's is left out where torch is not in use."""
        state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
        if (torch := sys.modules.get("torch")) is not None:
            state["torch"] = torch.get_rng_state()
        return state

    def load_state_dict(self, state: Any) -> None:
        """Put them back."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if "torch" in state:
            import torch

            torch.set_rng_state(state["torch"])


def _refuse_other_model(folder: Path, name: str, stored: Any, part: Stateful) -> None:
    """Compare the shapes of weights; optimizer and buffer tensors may come and go, weights may not."""
    here = _shapes(getattr(part, "weights", dict)()) if hasattr(part, "weights") else {}
    if not here:
        return
    there = _shapes(stored)
    for path, shape in here.items():
        found = {s for p, s in there.items() if p == path or p.endswith(f".{path}")}
        if found and shape not in found:
            raise UserError(
                f"Checkpoint {folder} was saved from another model: {name}'s {path} is {_by(sorted(found)[0])} there "
                f"and {_by(shape)} here. Use the model it was saved from, or start a new run."
            )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"


def _shapes(state: Any, path: str = "") -> dict[str, tuple[int, ...]]:
    if isinstance(state, Mapping):
        return {k: v for key, x in state.items() for k, v in _shapes(x, f"{path}.{key}" if path else str(key)).items()}
    if hasattr(state, "shape"):
        return {path: tuple(state.shape)}
    return {}


def _is_json(state: Any) -> bool:
    if state is None or type(state) in (str, bool, int, float):
        return True
    if type(state) is list:
        return all(map(_is_json, state))
    return type(state) is dict and all(type(k) is str for k in state) and all(map(_is_json, state.values()))


def _encode(value: Any, path: str) -> Any:
    """To what a weights-only load accepts: arrays and bytes become byte tensors under a tag."""
    import torch

    if value is None or type(value) in (str, bool, int, float) or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, bytes):
        return {_BYTES: _byte_tensor(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(f"{path} is an array of {value.dtype}; a checkpoint stores arrays of numbers only.")
        return {_ARRAY: [value.dtype.str, list(value.shape)], "data": _byte_tensor(value.tobytes())}
    if isinstance(value, Mapping):
        if _ARRAY in value or _BYTES in value:
            raise TypeError(f"{path} uses a key that checkpoints keep for themselves ({_ARRAY} or {_BYTES}).")
        return {_encode(k, f"{path}'s key"): _encode(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_encode(v, f"{path}[{i}]") for i, v in enumerate(value))
    if isinstance(value, list):
        return [_encode(v, f"{path}[{i}]") for i, v in enumerate(value)]
    raise TypeError(
        f"{path} is a {type(value).__name__}; a checkpoint stores dicts, lists, numbers, text, tensors and arrays only."
    )


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if _BYTES in value:
            return value[_BYTES].numpy().tobytes()
        if _ARRAY in value:
            dtype, shape = value[_ARRAY]
            return np.frombuffer(value["data"].numpy().tobytes(), dtype=np.dtype(dtype)).reshape(shape).copy()
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_decode(v) for v in value)
    return [_decode(v) for v in value] if isinstance(value, list) else value


def _byte_tensor(data: bytes) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
