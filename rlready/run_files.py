"""Files that survive what happens to them: a kill at any byte, a full disk, a second writer.

Whole files are written beside their place, synced and renamed. JSONL files only grow; their last line may be torn by
a kill, so readers leave out a last line without its newline, and a writer whose append failed cuts the file back to
where it was. Records are split on the newline byte alone: U+2028 and U+0085 inside a string are not ends of lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rlready.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def disk_errors(path: Path, intact: str) -> Iterator[None]:
    """Turn a full or unwritable disk into one sentence.

    Args:
        path: what is being written.
        intact: a sentence saying what is safe and how to go on.

    Raises:
        UserError: the disk is full, or the place may not or cannot be written.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = _of_the_system(error)
        if cause is None:
            raise
        if cause.errno in _FULL:
            raise UserError(f"The disk is full: {path} could not be written. {intact}") from error
        if isinstance(cause, PermissionError):
            raise UserError(f"No permission to write {path}. {intact}") from error
        raise UserError(f"Cannot write {path}: {cause.strerror or cause}. {intact}") from error


def _of_the_system(error: BaseException | None) -> OSError | None:
    """The system's own error behind another: torch's zip writer raises a RuntimeError on top of a full disk's."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace a file as a whole: a reader sees the old content or the new, never a part."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with tmp.open("wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON: numbers of other libraries become plain, and what JSON has no word for (nan, inf) becomes null."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Lists, dicts, strings and finite numbers out of whatever a metric or report holds."""
    if isinstance(value, (str, bool)) or value is None:
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy and torch scalars and arrays
        return plain(value.tolist())
    return str(value)


class JsonlFile:
    """An append-only JSONL file, kept open. One record a line, handed to the system at every append."""

    def __init__(self, path: Path) -> None:
        """Open for appending; a torn last line left by a kill is cut off first."""
        self.path = path
        cut_torn_line(path)
        self._file: BinaryIO = path.open("ab", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)

    def append(self, *records: Any) -> None:
        """Write records whole, or not at all.

        Raises:
            OSError: the disk refused; the file is as before.
        """
        data = memoryview("".join(dump_json(r) + "\n" for r in records).encode())
        try:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])
        except BaseException:
            with contextlib.suppress(
                OSError
            ):  # the first error is the one to report; a torn tail is cut at reopening too
                self._file.truncate(self.size)
            raise
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Forget everything after `size` bytes."""
        if size < self.size:
            self._file.truncate(size)
            self.size = size

    def sync(self) -> None:
        """Make what was appended durable."""
        os.fsync(self._file.fileno())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Cut a JSONL file back to the end of its last whole line."""
    if not path.exists():
        return
    with path.open("r+b") as f:
        size = end = f.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            f.seek(start)
            at = f.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            f.truncate(end)


def jsonl_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Line number (from 1), byte offset and bytes of every whole line; a torn last line is left out."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as f:
        for number, line in enumerate(f, start=1):
            if line.endswith(b"\n") and line.strip():
                yield number, offset, line
            offset += len(line)


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One record of a JSONL file.

    Raises:
        UserError: the line is not a JSON object; file, line and column are named.
    """
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        column = error.colno if isinstance(error, json.JSONDecodeError) else error.start + 1
        what = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8"
        raise UserError(f"{path}, line {number}, column {column}: {what}. Mend or remove that line.") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}, line {number}: expected a JSON object, found {type(record).__name__}.")
    return record


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every whole record of a JSONL file; see `parse_line` for errors."""
    return [parse_line(path, number, line) for number, _, line in jsonl_lines(path)]


class FolderLock:
    """One writer per folder, held as long as the process lives: a killed process leaves no stale lock."""

    def __init__(self, folder: Path, what: str) -> None:
        """Take the lock.

        Raises:
            UserError: another process holds it.
        """
        import fcntl

        self._file = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError(f"{what} is being written by another process. Wait for it, or start a new run.") from error

    def release(self) -> None:
        """Give the folder back."""
        self._file.close()

    @staticmethod
    def held(folder: Path) -> bool:
        """Whether some living process holds the folder."""
        import fcntl

        path = folder / ".lock"
        if not path.exists():
            return False
        with path.open("r") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False
