"""Tool calls: those that a response makes against those that it should make.

Calls are read by `rlready.toolcalls` from `<tool_call>` blocks; with `form="either"` a response that is nothing but
JSON (fenced or not) is read as well: `{"name", "arguments"}`, a list of such, or OpenAI's `{"tool_calls": [...]}`.

The same call: the same name, and the same arguments in any order. Arguments are compared as JSON values: 3 equals 3.0,
no number equals a text, true is not 1, null equals null only, texts to the letter, lists in order. An argument may be
left out, or written, where the gold lists it under "optional", or where the tool's schema says that this value is its
default. Calls may come in any order unless order is asked for; each must be made as often as the gold has it.

Malformed is not abstention. A gold without calls is met by a response that says something and makes no call; a broken
call, or one in a form that is not read, is wrong wherever it stands. Where calls are wanted and none is tried, there
is no answer. With the tools' definitions, a call of an unknown tool or with arguments that break the schema is wrong,
and a gold that does so makes the grader fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlready.errors import UserError, did_you_mean
from rlready.jsontext import BadJsonError, read_json, same_value, why_not_json
from rlready.rewards.jsons import difference, told
from rlready.rewards.records import Record, field, option, prediction
from rlready.rewards.verdict import Graded, failed, no_answer, right, short, wrong
from rlready.schemas import schema_problem, violation
from rlready.scoring import RewardFn, answer_text, declare
from rlready.toolcalls import Call, as_call, parse_calls, without_thoughts
from rlready.types import Score, Task, Trajectory

__all__ = ["Form", "grade_tool_call", "tool_call", "verify_calls"]

Form = Literal["tagged", "either"]
FORMS = ("tagged", "either")
MAX_CALLS = 256
MAX_CHARACTERS = 2_000_000
_TRIED = re.compile(
    r"<\s?/?(?:tool_?calls?|function_?calls?|function|invoke)\b|<\|(?:tool|python_tag)|\[TOOL_CALLS\]"
    r"""|["'](?:tool_calls|function_call)["']\s?:""",
    re.IGNORECASE,
)
_NAME, _ARGUMENTS = (
    re.compile(rf"""["']?\b(?:{words})["']?\s{{0,9}}:""") for words in ("name", "arguments|parameters")
)
_WRITTEN_OUT = re.compile(r"[\s\[,;]*+[A-Za-z_][\w.]*+(?=\()")
_LOOKS_SO = frozenset({"arguments", "parameters", "function"})
_PAREN = re.compile(r"[()]")
_FENCED = re.compile(r"(`{3,}+)[^\n`]*\n(.*)\n[ \t]*\1", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Gold:
    """A call that is wanted: its name, its arguments, and which of them may be left out or added."""

    name: str
    arguments: Mapping[str, Any]
    optional: frozenset[str]


class _GoldError(ValueError):
    pass


def verify_calls(
    completion: str,
    gold: Any,
    *,
    any_order: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    form: Form = "tagged",
) -> Graded:
    """Right where the completion makes exactly the gold calls, no more and no fewer; see the module.

    Args:
        completion: the response.
        gold: a call `{"name", "arguments"}`, perhaps with "optional", a list of names; a list of calls; either as JSON
            text. None, an empty list or the text "null" wants no call.
        any_order: whether the order of calls is free.
        tools: definitions of the tools, `{"name", "parameters": schema}` or as OpenAI has them; every call is checked.
        form: where calls are read from: "tagged" blocks, which is what environments here run, or "either".

    Returns:
        Parts, where calls are wanted: `names`, the share of gold calls whose tool was called, and `calls`, the share
        matched with arguments.

    Raises:
        UserError: the form is unknown.
    """
    if form not in FORMS:
        raise did_you_mean("form of tool calls", str(form), FORMS)
    try:
        schemas = _schemas(tools)
        golds = _golds(gold)
        _check_golds(golds, schemas)
    except _GoldError as error:
        return failed(str(error))
    if len(completion) > MAX_CHARACTERS:
        return wrong(f"the response has more than {MAX_CHARACTERS:,} characters")
    visible = without_thoughts(completion).strip()
    if not visible:
        return no_answer("there is no answer")
    made = parse_calls(completion)
    if not made and form == "either":
        made = _bare(visible)
    if not made and _tried(visible):
        made = [Call("", None, "The call is in a form that is not read.")]
    if not golds:
        return wrong("a call is made where none is wanted") if made else right("no call is wanted, and none is made")
    if not made:
        return no_answer("no call is made")
    if len(made) > MAX_CALLS:
        return wrong(f"there are {len(made):,} calls, which are too many to be looked at")
    parts = {
        "names": _matched(golds, made, schemas, any_order, whole=False) / len(golds),
        "calls": _matched(golds, made, schemas, any_order, whole=True) / len(golds),
    }
    problem = next((call.problem for call in made if call.arguments is None), "") or _broken(made, schemas)
    if problem:
        return wrong(problem, parts=parts)
    if parts["calls"] == 1 and len(made) == len(golds):
        return right("the call is the gold" if len(golds) == 1 else "the calls are the gold", parts=parts)
    return wrong(_why(golds, made, schemas, any_order), parts=parts)


def _golds(gold: Any) -> list[_Gold]:
    if isinstance(gold, str):
        try:
            gold = read_json(gold)
        except BadJsonError as error:
            raise _GoldError(f"the gold calls {short(gold)} are no JSON: {error}") from None
    if isinstance(gold, Mapping) and "tool_calls" in gold:
        gold = gold["tool_calls"]
    if gold is None:
        return []
    calls = [gold] if isinstance(gold, Mapping) else gold
    if not isinstance(calls, (list, tuple)):
        raise _GoldError(f"the gold calls {short(gold)} are no call or list of calls")
    if len(calls) > MAX_CALLS:
        raise _GoldError(f"the gold has more than {MAX_CALLS} calls")
    return [_gold(call) for call in calls]


def _gold(value: Any) -> _Gold:
    optional = value.get("optional", ()) if isinstance(value, Mapping) else ()
    if not isinstance(optional, (list, tuple)) or not all(isinstance(name, str) for name in optional):
        raise _GoldError(f'"optional" of the gold call {short(value)} is no list of names')
    call = _call(value)
    if call.arguments is None:
        raise _GoldError(f'the gold call {short(value)} has no "name" and "arguments"')
    why = why_not_json(call.arguments)
    if why:
        raise _GoldError(f"the arguments of the gold call {short(value)} are no JSON: {why}")
    return _Gold(call.name, call.arguments, frozenset(optional))


def _call(value: Any) -> Call:
    """The call that a value is, in our form or OpenAI's."""
    if isinstance(value, Mapping):
        inner = value.get("function")
        return as_call(dict(inner) if isinstance(inner, Mapping) and "name" not in value else dict(value))
    return as_call(value)


def _schemas(tools: Any) -> dict[str, Mapping[str, Any]] | None:
    """The schema of each tool's arguments by the tool's name; None where no tools are given."""
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise _GoldError(f"the tools {short(tools)} are no list of definitions")
    out: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(name, str) or not name:
            raise _GoldError(f'the tool {short(tool)} has no "name"')
        schema = inner.get("parameters")
        schema = {"type": "object", "properties": {}} if schema is None else schema
        problem = schema_problem(schema)
        if problem:
            raise _GoldError(f'the tool "{name}": {problem}')
        out[name] = schema
    return out


def _check_golds(golds: Sequence[_Gold], schemas: Mapping[str, Mapping[str, Any]] | None) -> None:
    for gold in golds if schemas is not None else ():
        problem = _problem(gold.name, gold.arguments, schemas)
        if problem:
            raise _GoldError(f"the gold is wrong by its own tools: {problem}")


def _problem(name: str, arguments: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]] | None) -> str:
    """How a call breaks what its tool asks for, in words."""
    if schemas is None:
        return ""
    if name not in schemas:
        return f"there is no tool {short(name)}"
    broken = violation(schemas[name], dict(arguments), closed=True)
    return "" if broken is None else f"the arguments of {short(name)} break its schema: {told(broken)}"


def _broken(made: Sequence[Call], schemas: Mapping[str, Mapping[str, Any]] | None) -> str:
    return next((p for call in made if (p := _problem(call.name, call.arguments or {}, schemas))), "")


def _bare(visible: str) -> list[Call]:
    """The calls of a response that is nothing but JSON; none where it is not."""
    fenced = _FENCED.fullmatch(visible)
    try:
        value = read_json(fenced[2] if fenced else visible)
    except BadJsonError:
        return []
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    items = value if isinstance(value, list) else [value]
    looks = all(isinstance(item, dict) and _LOOKS_SO & item.keys() for item in items)
    return [_call(item) for item in items] if looks else []


def _tried(visible: str) -> bool:
    """Whether a text without readable calls is an attempt at one."""
    if _TRIED.search(visible) or (_NAME.search(visible) and _ARGUMENTS.search(visible)):
        return True
    text, at = visible.strip("`\n ]"), 0
    while at < len(text):  # f(...), g(...), and nothing else
        head = _WRITTEN_OUT.match(text, at)
        if head is None:
            return False
        depth = 0
        for paren in _PAREN.finditer(text, head.end()):
            depth += 1 if paren[0] == "(" else -1
            if depth == 0:
                at = paren.end()
                break
        else:
            return True  # cut off
    return at > 0


def _same(
    gold: _Gold, call: Call, schemas: Mapping[str, Mapping[str, Any]] | None, *, whole: bool = True
) -> bool:  # fmt: skip
    if call.arguments is None or call.name != gold.name:
        return False
    return not whole or _differing(gold, call.arguments, schemas) is None


def _differing(
    gold: _Gold, arguments: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]] | None
) -> str | None:
    """How arguments differ from the gold's, in words; None where they are the same."""
    for name, value in arguments.items():
        if name in gold.arguments:
            if not same_value(value, gold.arguments[name]):
                return difference({name: value}, {name: gold.arguments[name]})
        elif name not in gold.optional and not _is_default(gold.name, name, value, schemas):
            return f"{short(name)} is not wanted"
    for name, value in gold.arguments.items():
        missing = name not in arguments and name not in gold.optional
        if missing and not _is_default(gold.name, name, value, schemas):
            return f"{short(name)} is missing"
    return None


def _is_default(tool: str, name: str, value: Any, schemas: Mapping[str, Mapping[str, Any]] | None) -> bool:
    properties = (schemas or {}).get(tool, {}).get("properties") or {}
    schema = properties.get(name)
    return isinstance(schema, Mapping) and "default" in schema and same_value(schema["default"], value)


def _matched(
    golds: Sequence[_Gold],
    made: Sequence[Call],
    schemas: Mapping[str, Mapping[str, Any]] | None,
    any_order: bool,
    *,
    whole: bool,
) -> int:
    """How many golds can be paired with calls, each with one of its own."""
    if not any_order:
        return sum(_same(g, c, schemas, whole=whole) for g, c in zip(golds, made, strict=False))
    fits = [[j for j, call in enumerate(made) if _same(g, call, schemas, whole=whole)] for g in golds]
    taken: dict[int, int] = {}  # call -> gold
    for first in range(len(golds)):  # a search for a path that frees a call, one gold after another
        reached: dict[int, int] = {}  # call -> the gold that it was reached from
        todo, free = [first], None
        while todo and free is None:
            at = todo.pop()
            for j in fits[at]:
                if j in reached:
                    continue
                reached[j] = at
                if j not in taken:
                    free = j
                    break
                todo.append(taken[j])
        while free is not None:
            at = reached[free]
            before = next((j for j, g in taken.items() if g == at), None)
            if before is not None:
                del taken[before]
            taken[free] = at
            free = before if at != first else None
    return len(taken)


def _why(
    golds: Sequence[_Gold], made: Sequence[Call], schemas: Mapping[str, Mapping[str, Any]] | None, any_order: bool
) -> str:
    """Why good calls are not the gold ones."""
    if len(made) != len(golds):
        return f"{len(made)} calls are made and {len(golds)} wanted"
    called = {call.name for call in made}
    for gold in golds:
        if gold.name not in called:
            return f"{short(gold.name)} is not called, but {short(made[0].name)}"
    for gold, call in zip(golds, made, strict=True) if not any_order else ((g, c) for g in golds for c in made):
        if gold.name == call.name and not any(_same(gold, other, schemas) for other in made):
            differs = _differing(gold, call.arguments or {}, schemas)
            if differs is not None:
                return f"the arguments of {short(gold.name)} differ: {differs}"
    return "the calls come in another order, or another number of times"


def tool_call(
    column: str = "calls",
    *,
    any_order: bool = True,
    tools: str | Sequence[Mapping[str, Any]] | None = None,
    form: Form = "tagged",
) -> RewardFn:
    """Reward exactly the tool calls in `task.data[column]`; see `verify_calls`.

    Args:
        column: where the gold calls are; None or an empty list there wants no call.
        any_order: whether the order of calls is free.
        tools: definitions of all tools, or the column that holds a task's own.
        form: "tagged" or "either".

    Raises:
        UserError: the form is unknown, or a definition cannot be used.
    """
    if form not in FORMS:
        raise did_you_mean("form of tool calls", str(form), FORMS)
    if not isinstance(tools, str):
        try:
            _schemas(tools)
        except _GoldError as error:
            raise UserError(f"rewards.tool_call: {error}.") from None
    columns = [column, tools] if isinstance(tools, str) else [column]

    def tool_call(task: Task, trajectory: Trajectory) -> Score:
        for name in columns:
            if name not in task.data:
                return Score.failed(f'the task has no "{name}"')
        known = task.data[tools] if isinstance(tools, str) else tools
        gold, text = task.data[column], answer_text(trajectory)
        return verify_calls(text, gold, any_order=any_order, tools=known, form=form).as_score()

    return declare(tool_call, name="tool_call", columns=columns)


def grade_tool_call(record: Record) -> Graded:
    """The calls of a record; fields `tools`, `any_order` and `form` (here "either") are those of `verify_calls`."""
    return verify_calls(
        prediction(record),
        field(record, "reference"),
        any_order=option(record, "any_order", True, bool),
        tools=option(record, "tools", None, list),
        form=option(record, "form", "either", str),
    )
