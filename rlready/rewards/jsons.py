"""JSON in a response: where it stands, whether it is whole, and whether it is the gold.

Where it is looked for, outside of thoughts:

- the whole response, where it is one JSON value;
- else the last fenced block that is meant as JSON: tagged so, or untagged and beginning like JSON. It must hold one
  value and nothing else. A fence that is not closed at the end of the response counts;
- else the last object (or list, where the gold is one) in the prose. What stands within another value, or within a
  broken one, is not looked at: the inside of a cut-off object is no answer. Blocks in other languages are passed over.

What is refused as malformed, and so is wrong, not absent: text that begins like JSON and breaks (cut off, single
quotes, bare keys, comments, trailing commas, NaN), a key that stands twice, and values that are glued together or have
a bracket too many. Only the last value counts, so a list of guesses earns what its last one does. Reading is strict
(`rlready.jsontext`), takes time that grows with the text's length only, and evaluates nothing.

Values are compared as `same_value` does: 1 equals 1.0, no number equals a text, true is not 1, keys in any order, lists
in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlready.errors import UserError
from rlready.jsontext import BadJsonError, read_json, read_json_at, same_value, why_not_json
from rlready.rewards.answers import strip_thoughts
from rlready.rewards.records import Record, option, prediction
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.schemas import Violation, schema_problem, violation
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory

__all__ = ["FoundJson", "find_json", "grade_json_extract", "json_value", "verify_json"]

Want = Literal["object", "list", "any"]
MAX_CHARACTERS = 2_000_000
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*$", re.MULTILINE)
_JSON_TAGS = frozenset({"json", "jsonc", "json5", "jsonl"})
_START = re.compile(
    r"""\{(?=\s*+["'])|(?<![\w\\}\]$^)])\{(?=\s*+(?:\}|[A-Za-z_]\w*+\s*+:|//|/\*))|\[(?=\s*+(?:[\[{"'\]]|-?\d|true|false|null))"""
)
_BRACKET = re.compile(r'"(?:[^"\\\n]++|\\.)*+"|[\[\]{}]')
_LISTED = re.compile(r'[{",]')
_AFTER = re.compile(r"\s*+(.?)", re.DOTALL)
_NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class FoundJson:
    """The JSON of a response.

    Attributes:
        found: "value", "broken", or "none".
        value: the value.
        why: what is broken about it, in words.
        count: how many values there are, broken ones included.
    """

    found: Literal["value", "broken", "none"]
    value: Any = None
    why: str = ""
    count: int = 0


def find_json(text: str, want: Want = "any") -> FoundJson:
    """The JSON value of a response; see the module.

    Args:
        text: the response, thoughts taken off.
        want: which kind of value is looked for in prose.
    """
    if len(text) > MAX_CHARACTERS:
        return FoundJson("broken", why=f"the response has more than {MAX_CHARACTERS:,} characters", count=1)
    text = text.strip()
    try:
        return FoundJson("value", read_json(text), count=1)
    except BadJsonError:
        pass
    blocks, prose = _parted(text)
    last, other, count = FoundJson("none"), FoundJson("none"), len(blocks)
    for piece in prose:
        for item in _values(piece):
            count += 1
            fits = item.found == "broken" or want == "any" or isinstance(item.value, dict if want == "object" else list)
            last, other = (item, other) if fits else (last, item)
    if blocks:
        try:
            return FoundJson("value", read_json(blocks[-1]), count=count)
        except BadJsonError as error:
            return FoundJson("broken", why=_where(error, blocks[-1]), count=count)
    found = last if last.found != "none" else other
    return FoundJson(found.found, found.value, found.why, count)


def _parted(text: str) -> tuple[list[str], list[str]]:
    """Fenced blocks that are meant as JSON, and the prose between all blocks."""
    blocks, prose = [], []
    at, opened = 0, None
    for fence in _FENCE.finditer(text):
        if opened is None:
            prose.append(text[at : fence.start()])
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2]:
            blocks.append((opened[2], text[opened.end() : fence.start()]))
            at, opened = fence.end(), None
    if opened is None:
        prose.append(text[at:])
    else:
        blocks.append((opened[2], text[opened.end() :]))
    meant = [
        block
        for tag, block in blocks
        if tag.lower() in _JSON_TAGS or (not tag and block.lstrip().startswith(("{", "[")))
    ]
    return meant, prose


def _values(text: str) -> Iterator[FoundJson]:
    """Outermost values in prose, in order, broken ones included."""
    at = 0
    while (start := _START.search(text, at)) is not None:
        begin = start.start()
        try:
            value, end = read_json_at(text, begin)
        except BadJsonError as error:
            if text[begin] == "[" and error.at is not None and not _LISTED.search(text, begin, error.at):
                at = max(begin + 1, error.at)  # "[1-3]" is no list gone wrong
                continue
            at = _skip(text, begin)
            yield FoundJson("broken", why=_where(error, text[begin:]), count=1)
            continue
        after = _AFTER.match(text, end)
        sign = after[1] if after else ""
        closer, opener = text[end - 1], text[begin]
        if sign == closer:
            at = after.end() if after else end
            yield FoundJson("broken", why=f'there is a "{closer}" too many', count=1)
        elif sign == opener or (sign and sign in "{[" and after is not None and after.end() == end + 1):
            while sign and sign in "{[" and after is not None:
                end = _skip(text, after.start(1))
                after = _AFTER.match(text, end)
                sign = after[1] if after else ""
            at = end
            yield FoundJson("broken", why="several values are glued together", count=1)
        else:
            at = end
            yield FoundJson("value", value, count=1)


def _skip(text: str, begin: int) -> int:
    """Where the brackets that open at `begin` are closed; the text's end where they are not."""
    depth = 0
    for match in _BRACKET.finditer(text, begin):
        sign = match[0]
        if sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)


def _where(error: BadJsonError, text: str) -> str:
    if error.at is None or error.at < len(text.rstrip()):
        return str(error)
    return f"it is cut off ({error})"


def verify_json(response: str, gold: Any = _NOTHING, *, schema: Mapping[str, Any] | None = None) -> Graded:
    """Right where the JSON in a response is the gold and keeps the schema.

    Args:
        response: a text with JSON in it.
        gold: the right value, as JSON text, or as a Python value that is no text. Without one the schema decides.
        schema: a JSON schema that the value must keep; see `rlready.schemas` for what of it is read.

    Returns:
        Malformed JSON, a value that breaks the schema or another value is wrong; a response without JSON is no answer.
        A gold that cannot be read, or that breaks the schema, makes the grader fail. Part `fields`: the share of the
        gold's top-level entries that are right, where it is an object or a list.
    """
    wanted, problem = _gold(gold, schema)
    if problem:
        return failed(problem)
    visible = strip_thoughts(response)
    if not visible.strip():
        return no_answer("there is no answer")
    found = find_json(visible, _want(wanted, schema))
    if found.found == "none":
        return no_answer("the response has no JSON")
    if found.found == "broken":
        return wrong(f"the JSON is malformed: {found.why}")
    broken = violation(schema, found.value) if schema is not None else None
    if broken is not None:
        return wrong(f"the JSON breaks the schema: {told(broken)}", parts=_fields(found.value, wanted))
    if wanted is _NOTHING:
        return right("the JSON keeps the schema")
    parts = _fields(found.value, wanted)
    if same_value(found.value, wanted):
        return right("the JSON is the gold", parts=parts)
    return wrong(f"the JSON differs from the gold: {difference(found.value, wanted)}", parts=parts)


def _gold(gold: Any, schema: Any) -> tuple[Any, str]:
    """The gold as a value, and what is wrong with gold or schema."""
    problem = schema_problem(schema) if schema is not None else None
    if problem:
        return None, problem
    if gold is _NOTHING:
        return _NOTHING, "" if schema is not None else "there is neither a gold nor a schema"
    if isinstance(gold, str):
        try:
            gold = read_json(gold)
        except BadJsonError as error:
            return None, f"the gold {short(gold)} is no JSON: {error}"
    else:
        why = why_not_json(gold)
        if why:
            return None, f"the gold {short(gold)} is no JSON: {why}"
    broken = violation(schema, gold) if schema is not None else None
    return gold, f"the gold breaks the schema: {told(broken)}" if broken is not None else ""


def _want(gold: Any, schema: Mapping[str, Any] | None) -> Want:
    kind = schema.get("type") if schema is not None else None
    if isinstance(gold, Mapping) or (gold is _NOTHING and kind == "object"):
        return "object"
    return "list" if isinstance(gold, (list, tuple)) or (gold is _NOTHING and kind == "array") else "any"


def told(broken: Violation) -> str:
    """What breaks a schema, in words."""
    at = f'"{broken.argument}"' if broken.argument else "the value"
    if broken.kind == "missing_argument":
        return f"{at} is missing"
    if broken.kind == "unknown_argument":
        return f"{at} is not allowed"
    return f"{at} is {short(broken.value)}, not {broken.wanted or 'what is admitted'}"


def difference(given: Any, wanted: Any, path: str = "") -> str:
    """The first difference of two JSON values, in words."""
    at = f'at "{path}" ' if path else ""
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        for key in wanted:
            if key not in given:
                return f"{at}{short(key)} is missing"
        for key in given:
            if key not in wanted:
                return f"{at}{short(key)} is not wanted"
        key = next(k for k in wanted if not same_value(given[k], wanted[k]))
        return difference(given[key], wanted[key], f"{path}.{key}"[:80].lstrip("."))
    if isinstance(given, list) and isinstance(wanted, (list, tuple)) and len(given) == len(wanted):
        i = next(i for i, (a, b) in enumerate(zip(given, wanted, strict=True)) if not same_value(a, b))
        return difference(given[i], wanted[i], f"{path}[{i}]"[:80])
    return f"{at}{short(given)} is given and {short(wanted)} wanted"


def _fields(given: Any, wanted: Any) -> dict[str, float]:
    if isinstance(wanted, Mapping) and wanted:
        if not isinstance(given, Mapping):
            return {"fields": 0.0}
        return {"fields": sum(k in given and same_value(given[k], v) for k, v in wanted.items()) / len(wanted)}
    if isinstance(wanted, (list, tuple)) and wanted:
        pairs = zip(given, wanted, strict=False) if isinstance(given, list) else ()
        return {"fields": sum(same_value(a, b) for a, b in pairs) / len(wanted)}
    return {}


def json_value(column: str | None = "answer", *, schema: Mapping[str, Any] | None = None) -> RewardFn:
    """Reward the JSON value in `task.data[column]`; see `verify_json`. Without a column the schema alone decides.

    Raises:
        UserError: there is neither column nor schema, or the schema cannot be used.
    """
    if column is None and schema is None:
        raise UserError("rewards.json_value needs a column with the gold, or a schema.")
    problem = schema_problem(schema) if schema is not None else None
    if problem:
        raise UserError(f"rewards.json_value: {problem}.")

    def json_value(task: Task, trajectory: Trajectory) -> Score:
        if column is None:
            return verify_json(answer_text(trajectory), schema=schema).as_score()
        if column not in task.data:
            return Score.failed(f'the task has no "{column}"')
        return verify_json(answer_text(trajectory), task.data[column], schema=schema).as_score()

    return declare(json_value, name="json_value", columns=[] if column is None else [column])


def grade_json_extract(record: Record) -> Graded:
    """The JSON of a record against its `reference` (JSON text) or, where there is none, its `schema`; or both."""
    gold = record.get("reference", _NOTHING)
    return verify_json(prediction(record), gold, schema=option(record, "schema", None, dict))
