"""Records to tasks: JSON lines, Parquet files and Hugging Face datasets.

One column is the prompt (text, or a list of chat messages); all others become `task.data`, where graders and
environments find them. A record that lacks what is needed stops the reading with a sentence that counts such records
and names the first.

JSON lines are cut at the newline byte and nowhere else: U+2028 and U+0085 are legal inside a JSON string, and a reader
that takes them for line ends cuts a record in two.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

from rlready.errors import UserError, did_you_mean
from rlready.types import Message, Part, Role, Task, ToolCall

Record = Mapping[str, Any]
Prompt = str | Callable[[Record], "str | Sequence[Message]"]


@dataclass(frozen=True)
class Reading:
    """How records become tasks.

    Attributes:
        prompt: the column that holds the prompt, or a function of the record.
        required: columns that every record must have (those the reward needs).
        columns: the columns to keep in `task.data`; None keeps all but the prompt, the id and those in `meta`.
        meta: columns that go to `task.meta` instead (source, difficulty).
        id: the column that holds the id; None derives ids from the content.
        system: a system message to put before every prompt.
        skip_incomplete: leave incomplete records out instead of stopping.
        drop_duplicates: keep the first of identical records instead of stopping.
    """

    prompt: Prompt = "prompt"
    required: Sequence[str] = ()
    columns: Sequence[str] | None = None
    meta: Sequence[str] = ()
    id: str | None = None
    system: str | None = None
    skip_incomplete: bool = False
    drop_duplicates: bool = False


def read_jsonl(path: str | Path) -> Iterator[tuple[int, Record]]:
    """Line numbers and records of a JSON-lines file; blank lines are passed over.

    Raises:
        UserError: the file cannot be read, or a line is not a JSON object; names file, line and column.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):  # a binary file is cut at b"\n" only
                if raw.strip():
                    yield number, _parse_line(raw, path, number)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from None


def _parse_line(raw: bytes, path: Path, number: int) -> Record:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}, column {error.start + 1}: byte 0x{raw[error.start]:02x} is not UTF-8. "
            "Save the file as UTF-8."
        ) from None

    def refuse(constant: str) -> NoReturn:
        raise UserError(
            f"{path}, line {number}, column {text.index(constant) + 1}: {constant} is not JSON. Write null or a number."
        )

    try:
        record = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number}, column {error.pos + 1}: not valid JSON ({error.msg}).") from None
    except RecursionError:
        raise UserError(f"{path}, line {number}, column 1: nested too deeply to be read.") from None
    if not isinstance(record, dict):
        raise UserError(
            f"{path}, line {number}, column 1: a record must be a JSON object, but this is a {type(record).__name__}."
        )
    return record


def read_parquet(path: str | Path) -> Iterator[tuple[int, Record]]:
    """Row numbers (from 1) and records of a Parquet file, read in batches.

    Raises:
        UserError: pyarrow is missing, or the file cannot be read.
    """
    try:
        import pyarrow.parquet as pq
        from pyarrow import ArrowException
    except ImportError:
        raise UserError('Parquet files need pyarrow: pip install "rlready[data]".') from None
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (OSError, ArrowException) as error:
        raise UserError(f"Cannot read {path} as Parquet: {error}.") from None


def read_hf(dataset: Any, split: str | None, config: str | None, **options: Any) -> Iterator[tuple[int, Record]]:
    """Row numbers and records of a Hugging Face dataset, given as an object or by name.

    Raises:
        UserError: the library is missing, or the dataset or its split cannot be loaded.
    """
    if isinstance(dataset, str):
        try:
            import datasets
        except ImportError:
            raise UserError('Hugging Face datasets need the library: pip install "rlready[data]".') from None
        try:
            dataset = datasets.load_dataset(dataset, config, split=split, **options)
        except Exception as error:  # the library raises many kinds: no network, no such name, no such split
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f'Cannot load the dataset "{dataset}" (split {split}): {first[0]}') from error
    if isinstance(dataset, Mapping):  # a DatasetDict
        if split not in dataset:
            raise did_you_mean("split", str(split), [str(name) for name in dataset])
        dataset = dataset[split]
    if not isinstance(dataset, Iterable):
        raise UserError(f"A dataset must be a name or something to iterate over, but it is a {type(dataset).__name__}.")
    yield from enumerate(dataset, start=1)


def tasks_from_records(records: Iterable[tuple[int, Record]], how: Reading, *, source: str, unit: str) -> list[Task]:
    """Turn numbered records into tasks.

    Args:
        records: each with its line or row number.
        how: see `Reading`.
        source: name of the file or dataset, for messages.
        unit: "line" or "row", for messages.

    Raises:
        UserError: no record at all, incomplete or repeated records, or a value that cannot be used; says where.
    """
    tasks: list[Task] = []
    missing: dict[str, list[int]] = {}
    incomplete = 0
    first_seen: dict[str, int] = {}
    repeats: list[tuple[int, int]] = []
    total = 0
    columns: set[str] = set()
    needed = [*([how.prompt] if isinstance(how.prompt, str) else []), *how.required, *([how.id] if how.id else [])]
    for number, record in records:
        total += 1
        columns.update(record)
        lacking = [name for name in dict.fromkeys(needed) if _is_empty(record.get(name))]
        if lacking:
            incomplete += 1
            for name in lacking:
                missing.setdefault(name, []).append(number)
            continue
        try:
            task = _task(record, how)
        except UserError as error:
            raise UserError(f"{source}, {unit} {number}: {error}") from None
        if task.id in first_seen:
            repeats.append((number, first_seen[task.id]))
            continue
        first_seen[task.id] = number
        tasks.append(task)
    if not total:
        raise UserError(f"{source} holds no records.")
    for name, where in missing.items():
        if len(where) == total and name not in columns:
            raise UserError(
                f'{source} has no column "{name}". Its columns: {", ".join(sorted(columns)) or "none"}. '
                "Name the right one (prompt=, or the column given to the reward)."
            )
    if missing and not how.skip_incomplete:
        name, where = max(missing.items(), key=lambda item: len(item[1]))
        raise UserError(
            f'{source}: {len(where)} of {total} records have no "{name}" (first: {unit} {where[0]}). '
            "Fix them, or pass skip_incomplete=True to leave them out."
        )
    if repeats and not how.drop_duplicates:
        raise UserError(
            f"{source}: {len(repeats)} of {total} records repeat an earlier one (first: {unit} {repeats[0][0]} repeats "
            f"{unit} {repeats[0][1]}). Remove them, or pass drop_duplicates=True."
        )
    if not tasks:
        raise UserError(f"{source}: all {incomplete} records are incomplete, so no task is left.")
    return tasks


def _task(record: Record, how: Reading) -> Task:
    raw = record[how.prompt] if isinstance(how.prompt, str) else how.prompt(record)
    prompt = to_messages(raw)
    meta: dict[str, Any] = {name: _plain(record.get(name), name) for name in how.meta}
    if not isinstance(raw, str):
        meta["format"] = "chat"
    if how.system is not None:
        prompt = (Message("system", how.system), *prompt)
    kept = how.columns if how.columns is not None else [c for c in record if c not in (how.prompt, how.id, *how.meta)]
    data = {name: _plain(record.get(name), name) for name in dict.fromkeys([*kept, *how.required])}
    return Task(prompt, data, meta, str(record[how.id]) if how.id else "")


def to_messages(value: Any) -> tuple[Message, ...]:
    """A prompt as messages: a text is one user message; a chat is a list of `{"role", "content"}`.

    Content is a text, or a list of parts `{"type": "text", "text": ...}` and `{"type": "image", "image": path or
    bytes}`.

    Raises:
        UserError: the value has another form; says which message.
    """
    if isinstance(value, str):
        return (Message.user(value),)
    if not isinstance(value, (list, tuple)) or not value:
        raise UserError(f"a prompt must be a text or a list of chat messages, but it is {_brief(value)}.")
    return tuple(v if isinstance(v, Message) else _message(v, i) for i, v in enumerate(value))


def _message(value: Any, index: int) -> Message:
    where = f"message {index} of the prompt"
    if not isinstance(value, Mapping) or "role" not in value:
        raise UserError(f'{where} must be an object with "role" and "content", but it is {_brief(value)}.')
    role = value["role"]
    if role not in get_args(Role):
        raise UserError(f"{where} has the role {_brief(role)}; known are {', '.join(get_args(Role))}.")
    content = value.get("content")
    calls = tuple(_tool_call(c, where) for c in value.get("tool_calls") or ())
    if content is None and calls:
        content = ""
    if isinstance(content, (list, tuple)):
        content = tuple(_part(p, where) for p in content)
    elif not isinstance(content, str):
        raise UserError(f"{where} has content {_brief(content)}; it must be a text or a list of parts.")
    return Message(cast(Role, role), content, calls, value.get("tool_call_id"))


def _part(value: Any, where: str) -> Part:
    if isinstance(value, Mapping):
        kind = value.get("type", value.get("kind"))
        if kind == "text" and isinstance(value.get("text"), str):
            return Part("text", value["text"])
        image = value.get("image", value.get("path"))
        if kind == "image" and isinstance(image, (str, bytes)):
            return Part("image", image=image)
    raise UserError(f"{where} has a part that is neither text nor image: {_brief(value)}.")


def _tool_call(value: Any, where: str) -> ToolCall:
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise UserError(f"{where} has a tool call without a name: {_brief(value)}.")
    arguments = inner.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(inner["name"], text, str(value.get("id", "")))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _plain(value: Any, name: str) -> Any:
    """The value in JSON's types; dates and decimals become text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, name) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, name) for v in value]
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal)):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), name)
    raise UserError(
        f'the column "{name}" holds a {type(value).__name__}, which JSON cannot. '
        "Choose the columns to keep with columns=[...]."
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
