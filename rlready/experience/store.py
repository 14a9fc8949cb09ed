"""An append-only store of episodes, on disk or in memory.

On disk a store is a folder:

    MANIFEST.json        {"format": 1, "segments": ["000001.jsonl", "000002.jsonl"]}, replaced atomically
    000001.jsonl ...     one record per line, each guarded by a checksum
    LOCK                 held by the one process that writes

A line is `{"crc":"xxxxxxxx","record":{...}}`: valid JSON for other tools, and the checksum covers the bytes of the
record. A record is an episode with its notes, or a tombstone that names evicted episodes. A line is handed to the
system in one write, so a writer that is killed at any point leaves at most one unfinished line at the very end; the
next writer cuts it off, readers skip it. Rotation and compaction write new files first and then replace the manifest;
what the manifest does not list does not exist. Entries are kept in memory while a store is open.

Lines are split at the newline byte alone: U+2028 and its kin inside a string are data (JSON escapes them here anyway).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive

FORMAT = 1
SYNTHETIC = "synthetic"
_HEAD = b'{"crc":"'
_MID = b'","record":'
_PREFIX = len(_HEAD) + 8 + len(_MID)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored episode.

    Attributes:
        id: the trajectory's id, unique in the store.
        episode: what happened, with its source ("offline", "synthetic", "real"), policy version, task and seed.
        notes: JSON-ready facts that were worked out afterwards, such as an annotation's card and traces.
    """

    id: str
    episode: LoggedEpisode
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredStep:
    """One transition of a stored episode: what had happened, what was done, what came back.

    Attributes:
        trajectory, step: which episode, which step of it.
        history: the (action, reply) pairs before this step.
        reward: 1 at the closing step of a success, else 0.
        done: whether the episode ended here by being closed (a cap is no such end).
    """

    trajectory: str
    step: int
    task_id: str
    instruction: str
    history: tuple[tuple[str, str], ...]
    action: str
    reply: str
    reward: float
    done: bool
    source: str
    version: int


def episode_id(episode: LoggedEpisode) -> str:
    """The id of an episode that was given none: a hash of all it holds, so storing it twice stores it once."""
    return f"{derive('episode', json.dumps(episode.to_json(), sort_keys=True)):016x}"


class ExperienceStore:
    """Episodes by id in the order they were stored, with eviction of the oldest synthetic ones."""

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        readonly: bool = False,
        segment_bytes: int = 16 << 20,
        sync: bool = False,
    ) -> None:
        """Open a store, creating it where there is none.

        Args:
            folder: where it lives; None keeps it in memory only.
            readonly: look without a lock; an unfinished last line is skipped and left alone.
            segment_bytes: a segment that has reached this size is followed by a new one.
            sync: wait for the disk after every append. Without it a killed process loses nothing, a power cut may.

        Raises:
            UserError: another process writes to it, a record in its middle is damaged, or it was written by a later
                format.
        """
        self.folder = None if folder is None else Path(folder)
        self.readonly = readonly
        self.segment_bytes = segment_bytes
        self.sync = sync
        self.entries: dict[str, Entry] = {}
        self.dead = 0
        self._segments: list[str] = []
        self._file: int | None = None
        self._lock: int | None = None
        self._size = 0
        if self.folder is not None:
            try:
                self._open(self.folder)
            except BaseException:
                self.close()
                raise

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        """Number of live episodes."""
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        """Over live entries, oldest first."""
        return iter(self.entries.values())

    def __contains__(self, id: str) -> bool:
        """Whether an episode is stored under this id."""
        return id in self.entries

    def steps(self, *, source: str | None = None) -> Iterator[StoredStep]:
        """Over the transitions of all live episodes, or of those from one source."""
        for entry in self:
            if source is None or entry.episode.source == source:
                yield from steps_of(entry)

    def counts(self) -> dict[str, dict[str, int]]:
        """Episodes, transitions and successes by source."""
        out: dict[str, dict[str, int]] = {}
        for entry in self:
            c = out.setdefault(entry.episode.source, {"episodes": 0, "transitions": 0, "successes": 0})
            c["episodes"] += 1
            c["transitions"] += len(entry.episode.actions)
            c["successes"] += int(entry.episode.success)
        return out

    # ------------------------------------------------------------------ writing

    def append(
        self, episode: LoggedEpisode, notes: Mapping[str, Any] | None = None, *, id: str | None = None
    ) -> str | None:
        """Store an episode.

        Args:
            episode: what happened.
            notes: JSON-ready facts to keep beside it.
            id: its trajectory id; a hash of its contents where none is given.

        Returns:
            The id, or None where an episode of this id is stored already (nothing is written then).

        Raises:
            UserError: the store is read-only, the notes are not JSON-ready, or the disk is full (nothing is lost then).
        """
        if self.readonly:
            raise UserError(f"The experience store {self.folder} was opened read-only; open it for writing to append.")
        id = id or episode_id(episode)
        if id in self.entries:
            return None
        entry = Entry(id, episode, dict(notes or {}))
        if self.folder is not None:
            self._write({"id": id, "episode": episode.to_json(), "notes": entry.notes})
        self.entries[id] = entry
        return id

    def evict(self, keep: int, *, source: str = SYNTHETIC) -> list[str]:
        """Drop the oldest episodes of a source until `keep` are left; return the ids that were dropped.

        One tombstone line is written for all of them. The files are compacted once more than half of them is dead.
        """
        ids = [e.id for e in self if e.episode.source == source]
        gone = ids[: max(0, len(ids) - keep)]
        if not gone:
            return []
        if self.folder is not None:
            self._write({"evict": gone})
        for id in gone:
            del self.entries[id]
        self.dead += len(gone)
        if self.dead > len(self.entries):
            self.compact()
        return gone

    def compact(self) -> None:
        """Rewrite the live entries into one fresh segment, swap it in atomically, then remove the old files."""
        self.dead = 0
        if self.folder is None:
            return
        old = list(self._segments)
        name = f"{self._next_number():06d}.jsonl"
        path = self.folder / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for e in self.entries.values():
                _write_all(fd, _line({"id": e.id, "episode": e.episode.to_json(), "notes": e.notes}))
            os.fsync(fd)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _disk_error(self.folder, error) from error
        finally:
            os.close(fd)
        self._set_manifest([name])
        self._open_last(path.stat().st_size)
        for other in old:
            (self.folder / other).unlink(missing_ok=True)

    def close(self) -> None:
        """Flush to disk and give up the lock. A closed store can still be read."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> ExperienceStore:
        """Close on leaving."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # ------------------------------------------------------------------ files

    def _open(self, folder: Path) -> None:
        manifest = folder / "MANIFEST.json"
        if not self.readonly:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"Another process is writing to the experience store {folder}. "
                    "Wait for it, or open with readonly=True."
                ) from error
        if self.readonly and not manifest.exists():
            raise UserError(f"There is no experience store in {folder} (no MANIFEST.json).")
        intact = self._read(folder, manifest) if manifest.exists() else 0
        if self.readonly:
            return
        for stray in folder.glob("*.jsonl"):
            if stray.name not in self._segments:
                stray.unlink()
        if not self._segments:
            self._rotate()
        else:
            self._open_last(intact)

    def _read(self, folder: Path, manifest: Path) -> int:
        """Take all segments; return how many bytes of the last one are intact.

        A reader whose segments are compacted away meanwhile starts over with the new manifest.
        """
        while True:
            self.entries, self.dead, intact = {}, 0, 0
            self._segments = _read_manifest(manifest)
            try:
                for i, name in enumerate(self._segments):
                    intact = self._load(folder / name, last=i == len(self._segments) - 1)
            except FileNotFoundError as error:
                if not self.readonly or _read_manifest(manifest) == self._segments:
                    raise UserError(
                        f"The experience store's segment {error.filename} is missing, though its manifest lists it."
                    ) from error
                continue
            return intact

    def _load(self, path: Path, *, last: bool) -> int:
        """Take a segment's records; return how many of its bytes are intact."""
        data = path.read_bytes()
        at = 0
        number = 0
        while at < len(data):
            number += 1
            end = data.find(b"\n", at)
            record = _parse(data[at:end]) if end >= 0 else None
            if record is None:
                if last and (end < 0 or end == len(data) - 1):
                    break
                raise UserError(
                    f"{path}, line {number}: the record is damaged (checksum). Remove that line to go on without it."
                )
            self._take(record)
            at = end + 1
        return at

    def _take(self, record: dict[str, Any]) -> None:
        if "evict" in record:
            for id in record["evict"]:
                if self.entries.pop(id, None) is not None:
                    self.dead += 1
        else:
            episode = LoggedEpisode(**record["episode"])
            self.entries[record["id"]] = Entry(record["id"], episode, record["notes"])

    def _open_last(self, intact: int) -> None:
        """Open the last segment to append after its `intact` bytes; an unfinished line beyond them is cut off."""
        assert self.folder is not None
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self.folder / self._segments[-1], os.O_WRONLY)
        os.ftruncate(self._file, intact)
        os.lseek(self._file, intact, os.SEEK_SET)
        self._size = intact

    def _rotate(self) -> None:
        assert self.folder is not None
        name = f"{self._next_number():06d}.jsonl"
        os.close(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        self._set_manifest([*self._segments, name])
        self._open_last(0)

    def _next_number(self) -> int:
        return 1 + max((int(name.split(".")[0]) for name in self._segments), default=0)

    def _set_manifest(self, segments: Sequence[str]) -> None:
        assert self.folder is not None
        temporary = self.folder / "MANIFEST.tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump({"format": FORMAT, "segments": list(segments)}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, self.folder / "MANIFEST.json")
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._segments = list(segments)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise UserError(f"The experience store {self.folder} is closed; open it again to append.")
        line = _line(record)
        try:
            if self._size and self._size + len(line) > self.segment_bytes:
                self._rotate()
            _write_all(self._file, line)
            if self.sync:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise _disk_error(self.folder, error) from error
        self._size += len(line)


def steps_of(entry: Entry) -> Iterator[StoredStep]:
    """The transitions of one stored episode."""
    e = entry.episode
    history: tuple[tuple[str, str], ...] = ()
    for t, (action, reply) in enumerate(zip(e.actions, e.replies, strict=True)):
        done = e.finished and t == len(e.actions) - 1
        reward = float(done and e.success)
        yield StoredStep(
            entry.id, t, e.task_id, e.instruction, history, action, reply, reward, done, e.source, e.version
        )
        history = (*history, (action, reply))


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UserError(f"An experience record must be JSON-ready: {error}.") from error
    return _HEAD + b"%08x" % zlib.crc32(body) + _MID + body + b"}\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    body = line[_PREFIX:-1]
    if line[:-1] != _HEAD + b"%08x" % zlib.crc32(body) + _MID + body or line[-1:] != b"}":
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_manifest(path: Path) -> list[str]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version, segments = record["format"], [str(s) for s in record["segments"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a manifest of an experience store: {error}.") from error
    if version != FORMAT:
        raise UserError(f"{path} has format {version}; this version of rlready reads format {FORMAT}. Update rlready.")
    return segments


def _disk_error(folder: Path | None, error: OSError) -> UserError:
    what = "the disk is full" if error.errno == errno.ENOSPC else f"{error.strerror or error}"
    return UserError(f"The experience store {folder} could not be written: {what}. What was stored before is intact.")
