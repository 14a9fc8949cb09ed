r"""From bytes to records, each with its file and line. Every reader gets its records from here.

JSONL is split on `\n` only: U+2028 and U+0085 inside a text are data. A JSON file is read as a sequence of values; the
elements of an array are its records, found by a scanner over the bytes, so that a file that holds one array of many
records is never decoded as a whole. An array of chat messages is one record.

A record that cannot be decoded is reported and reading goes on behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson

Bad = Callable[[int, str], None]
"""Called with a line and a reason for what could not be decoded."""

LINES = (".jsonl", ".ndjson")
SUFFIXES = (".json", *LINES)
_CHUNK = 1 << 20
_PEEK = 1 << 22
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
_GAP = re.compile(rb"[\s,]*\Z")
_QUOTE, _BRACE, _BRACKET = b'"{['
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log.

    Attributes:
        value: the decoded JSON.
        file: where it stands.
        line: 1-based line on which it begins.
        number: 1-based count in a JSON array or in a batch; 0 for a line of JSONL.
        offset, size: bytes of the file that hold it (or the batch that it is part of).
        inside: how to get from what those bytes hold to this record: keys and indices.
    """

    value: Any
    file: Path
    line: int
    number: int = 0
    offset: int = 0
    size: int = 0
    inside: tuple[str | int, ...] = ()

    @property
    def place(self) -> str:
        """For messages: "runs.jsonl line 7" or "runs.json record 7"."""
        return f"{self.file.name} record {self.number}" if self.number else f"{self.file.name} line {self.line}"

    def part(self, value: Any, *way: str | int) -> Record:
        """A record inside of this one."""
        return replace(self, value=value, inside=self.inside + way)


def decode(raw: bytes) -> Any:
    """Decode one JSON value; what strict JSON refuses but loggers write (NaN, lone surrogates) is read too.

    Raises:
        ValueError: it is no JSON; the message is a short reason.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        strict = error.msg.partition(":")[0]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    try:
        return _clean(json.loads(text))
    except ValueError:
        raise ValueError(f"not valid JSON ({strict})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None


def load(path: Path, bad: Bad) -> Iterator[Record]:
    """All records of a file, in order. Memory is bounded by the longest record.

    Args:
        path: a JSON or JSONL file; which one is told by the content, then by the suffix.
        bad: is told of what cannot be decoded.
    """
    return _load_lines(path, bad) if _has_lines(path) else _load_values(path, bad)


def reload(record: Record) -> Any:
    """Read and decode a record's bytes again, the whole batch where it is part of one; `pick` finds it inside."""
    with record.file.open("rb") as stream:
        stream.seek(record.offset)
        return decode(stream.read(record.size))


def pick(value: Any, inside: tuple[str | int, ...]) -> Any:
    """Follow keys and indices."""
    for step in inside:
        value = value[step]
    return value


def is_messages(value: Any) -> bool:
    """Whether a value is a bare list of chat messages."""
    return isinstance(value, list) and bool(value) and _is_message(value[0])


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and (
        (isinstance(value.get("role"), str) and not value.keys().isdisjoint(("content", "tool_calls", "parts")))
        or (isinstance(value.get("from"), str) and "value" in value)
    )


def _has_lines(path: Path) -> bool:
    """Whether a file is JSONL."""
    named = path.suffix.lower() in LINES
    with path.open("rb") as stream:
        head = stream.read(_PEEK)
    first, newline, rest = head.removeprefix(_BOM).lstrip().partition(b"\n")
    if not newline:  # one line, or a first line longer than we look
        return named
    try:
        decode(first)
    except ValueError:
        return named and first.strip() not in (b"[", b"{")
    return named or bool(rest.strip())


def _load_lines(path: Path, bad: Bad) -> Iterator[Record]:
    offset = 0
    with path.open("rb", buffering=_CHUNK) as stream:
        for number, raw in enumerate(stream, 1):  # a binary file splits on b"\n" and nothing else
            size = len(raw)
            if number == 1:
                raw = raw.removeprefix(_BOM)
            if not raw.isspace():
                try:
                    value = decode(raw)
                except ValueError as error:
                    cut = "" if raw.endswith(b"\n") else "; the file ends within this line"
                    bad(number, f"{error}{cut}")
                else:
                    if type(value) is list and not is_messages(value):
                        for index, each in enumerate(value):
                            yield Record(each, path, number, index + 1, offset, size, (index,))
                    else:
                        yield Record(value, path, number, 0, offset, size)
            offset += size


def _load_values(path: Path, bad: Bad) -> Iterator[Record]:
    with path.open("rb") as stream:
        for number, (raw, offset, line) in enumerate(_Scanner(stream, bad).values(), 1):
            try:
                value = decode(raw)
            except ValueError as error:
                bad(line, str(error))
            else:
                yield Record(value, path, line, number, offset, len(raw))


class _Scanner:
    """Finds the records of a JSON file by its brackets."""

    def __init__(self, stream: IO[bytes], bad: Bad) -> None:
        self.stream, self.bad = stream, bad
        self.buffer = b""
        self.base = 0  # offset in the file of the buffer's first byte
        self.mark = (0, 1)  # a place in the buffer, and its line
        self.more = _CHUNK

    def values(self) -> Iterator[tuple[bytes, int, int]]:
        """(bytes, offset, line) of every record."""
        at, depth, level = 0, 0, 0  # level: the depth at which records begin
        start: int | None = None  # of the record, in the buffer
        outer: int | None = None  # of an array whose first element is not known yet
        gap = 0  # where the text between two records begins
        while True:
            for token in _TOKEN.finditer(self.buffer, at):
                char = self.buffer[token.start()]
                if char == _QUOTE:
                    if token.end() - token.start() == 1:
                        break  # the string's end is not in the buffer yet
                elif char in (_BRACE, _BRACKET):
                    if depth == level and start is None:
                        self._check(gap, token.start())
                        if depth == 0 and char == _BRACKET:
                            outer, level, gap = token.start(), 1, token.end()
                        else:
                            start = token.start()
                    depth += 1
                else:
                    depth -= 1
                    if depth == level and start is not None:
                        if outer is not None and self._heads_messages(start, token.end()):
                            start, level = outer, 0  # a list of chat messages is one record
                        else:
                            yield self.buffer[start : token.end()], self.base + start, self._line(start)
                            start, gap = None, token.end()
                        outer = None
                    elif depth < level or depth < 0:
                        self._check(gap, token.start())
                        depth, level, outer, gap = 0, 0, None, token.end()
                at = token.end()
            held = min(at if x is None else x for x in (start, outer, gap if start is None else None))
            held = min(held, at)
            if not self._read(held):
                break
            at -= held
            start = None if start is None else start - held
            outer = None if outer is None else outer - held
            gap = max(0, gap - held)
        if start is not None:
            self.bad(self._line(start), "not valid JSON; the file ends within this record")
        else:
            self._check(gap, len(self.buffer))
            if depth:
                self.bad(self._line(len(self.buffer)), "the file ends before its array is closed")

    def _heads_messages(self, start: int, end: int) -> bool:
        try:
            return _is_message(decode(self.buffer[start:end]))
        except ValueError:
            return False

    def _check(self, start: int, end: int) -> None:
        """Report what stands between records and is none."""
        between = self.buffer[start:end].removeprefix(_BOM)
        if not _GAP.match(between):
            text = between.strip(b" \t\r\n,")[:40].decode("utf-8", "replace")
            self.bad(self._line(start), f"neither an object nor a list: {text}")

    def _line(self, at: int) -> int:
        before, line = self.mark
        line += self.buffer.count(b"\n", before, at) if at >= before else -self.buffer.count(b"\n", at, before)
        self.mark = (at, line)
        return line

    def _read(self, held: int) -> bool:
        """Drop what is done, read more; twice as much where nothing was done. False at the end of the file."""
        self.more = _CHUNK if held else min(2 * self.more, 1 << 28)
        chunk = self.stream.read(self.more)
        if not chunk:
            return False
        self.mark = (0, self._line(held))
        self.base += held
        self.buffer = self.buffer[held:] + chunk
        return True


def _clean(value: Any) -> Any:
    """Half surrogate pairs, which no encoder takes, become U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value
