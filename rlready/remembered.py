"""A memory of what a language model answered, by the exact request: in the process, and on disk where a file is named.

The first answer to a request stays its answer, also among several processes that share the file.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections import OrderedDict
from pathlib import Path

from rlready.errors import UserError


class Answers:
    """Answers by request.

    Attributes:
        path: the file; None keeps answers in the process only.
        most: answers that are kept in the process, the longest unused dropped first.
    """

    def __init__(self, path: str | Path | None = None, *, most: int = 65536) -> None:
        """Open the memory; the file is made where there is none.

        Raises:
            UserError: the file cannot be opened, or is something else.
        """
        self.path = None if path is None else Path(path)
        self.most = most
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        self._base: sqlite3.Connection | None = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._base = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
                self._base.execute("PRAGMA journal_mode=WAL")
                self._base.execute("PRAGMA synchronous=NORMAL")
                self._base.execute("CREATE TABLE IF NOT EXISTS answers (request BLOB PRIMARY KEY, text TEXT NOT NULL)")
            except (sqlite3.Error, OSError) as error:
                raise UserError(f"{self.path} cannot be used as a memory of answers: {error}.") from error

    def get(self, request: str) -> str | None:
        """The answer to a request, or None."""
        name = _name(request)
        with self._lock:
            text = self._known.get(name)
            if text is not None:
                self._known.move_to_end(name)
                return text
            text = self._read(name)
            if text is not None:
                self._remember(name, text)
            return text

    def put(self, request: str, text: str) -> str:
        """Remember an answer, unless there is one; returns the one that counts.

        Raises:
            UserError: the file cannot be written.
        """
        name = _name(request)
        with self._lock:
            if self._base is not None:
                try:
                    self._base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (name, text))
                except sqlite3.Error as error:
                    raise UserError(f"{self.path} cannot be written: {error}.") from error
                text = self._read(name) or text
            else:
                text = self._known.get(name, text)
            self._remember(name, text)
            return text

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._base is not None:
                self._base.close()
                self._base = None

    def _read(self, name: bytes) -> str | None:
        if self._base is None:
            return None
        row = self._base.execute("SELECT text FROM answers WHERE request = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _remember(self, name: bytes, text: str) -> None:
        self._known[name] = text
        self._known.move_to_end(name)
        while len(self._known) > self.most:
            self._known.popitem(last=False)


def _name(request: str) -> bytes:
    return hashlib.blake2b(request.encode("utf-8", "surrogatepass"), digest_size=16).digest()
