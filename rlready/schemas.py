"""JSON schemas of arguments and answers, checked.

Of JSON Schema the keywords that tools' schemas use are read (type, enum, const, properties, required,
additionalProperties, items, anyOf, oneOf, allOf, local $ref, bounds of numbers, texts and lists, pattern), and no
notice is taken of others, so what is rejected is wrong and what is accepted may still be. A pattern is matched in
bounded time, whatever the text.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TYPE_NAMES", "Violation", "longest_text", "schema_problem", "short", "violation"]

TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_SAID = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.lt,
    "maximum": operator.gt,
    "exclusiveMinimum": operator.le,
    "exclusiveMaximum": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """How a value breaks a schema.

    Attributes:
        kind: "missing_argument", "unknown_argument", "wrong_type" or "inadmissible" (not one of few allowed values, or
            outside its bounds).
        argument: the argument's name, with the path inside it: "flights[0].date".
        value: what was given; None where it is missing.
        wanted: what would be right, in words.
    """

    kind: str
    argument: str
    value: Any = None
    wanted: str = ""

    @property
    def top(self) -> str:
        """The argument's own name, without the path inside it."""
        return re.split(r"[.\[]", self.argument, maxsplit=1)[0]


def violation(schema: Mapping[str, Any], value: Any, *, closed: bool = False) -> Violation | None:
    """The first way in which arguments break their schema; None where they keep it.

    Args:
        schema: of the arguments, an object's.
        value: the arguments.
        closed: arguments that the schema does not list are wrong, also where it does not say so.
    """
    return _check(schema, value, "", schema, closed)


def _check(schema: Any, value: Any, path: str, root: Mapping[str, Any], closed: bool = False) -> Violation | None:
    if schema is True or schema == {} or not isinstance(schema, Mapping):
        return Violation("unknown_argument", path, value, "") if schema is False else None
    if "$ref" in schema:
        target = _resolve(schema["$ref"], root)
        return None if target is schema else _check(target, value, path, root, closed)
    kinds = schema.get("type")
    if kinds is not None and not _is_of(value, kinds):
        return Violation("wrong_type", path, value, _said(kinds))
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        return Violation("inadmissible", path, value, "one of " + ", ".join(map(_short, schema["enum"])))
    if "const" in schema and not _same(value, schema["const"]):
        return Violation("inadmissible", path, value, _short(schema["const"]))
    if isinstance(value, dict):
        found = _check_object(schema, value, path, root, closed)
    elif isinstance(value, list):
        found = _check_list(schema, value, path, root)
    else:
        found = _check_bounds(schema, value, path)
    return found or _check_unions(schema, value, path, root, closed)


def _check_object(
    schema: Mapping[str, Any], value: Mapping[str, Any], path: str, root: Mapping[str, Any], closed: bool
) -> Violation | None:
    properties = schema.get("properties") or {}
    rest = schema.get("additionalProperties", not (closed and "properties" in schema))
    under = f"{path}." if path else ""
    for name, item in value.items():
        if name in properties:
            found = _check(properties[name], item, under + name, root)
        elif rest is False:
            return Violation("unknown_argument", under + name, item)
        else:
            found = _check(rest, item, under + name, root)
        if found is not None:
            return found
    for name in schema.get("required") or ():
        if name not in value:
            return Violation("missing_argument", under + name)
    return None


def _check_list(schema: Mapping[str, Any], value: list[Any], path: str, root: Mapping[str, Any]) -> Violation | None:
    items = schema.get("items")
    if isinstance(items, Mapping):
        for i, item in enumerate(value):
            found = _check(items, item, f"{path}[{i}]", root)
            if found is not None:
                return found
    if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
        return Violation("inadmissible", path, value, "a list of another length")
    return None


def _check_bounds(schema: Mapping[str, Any], value: Any, path: str) -> Violation | None:
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", len(value)):
            return Violation("inadmissible", path, value, "a text of another length")
        if "pattern" in schema:
            wanted = _misses(schema["pattern"], value)
            if wanted is not None:
                return Violation("inadmissible", path, value, wanted)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        for word, broken in _BOUNDS.items():
            bound = schema.get(word)
            if isinstance(bound, (int, float)) and not isinstance(bound, bool) and broken(value, bound):
                return Violation("inadmissible", path, value, "a number within its bounds")
    return None


def _misses(pattern: Any, value: str) -> str | None:
    """What a text lacks that its pattern asks for; matching is bounded, whatever pattern and text are."""
    longest = longest_text(pattern)
    if longest is None:  # a pattern in another dialect, or one that no bound holds for, says nothing here
        return None
    if len(value) > longest:
        return f"a text of at most {longest:,} characters, as its pattern is matched against no more"
    return None if re.search(pattern, value) else f"a text like {pattern}"


_REPEAT = re.compile(r"[*+]|\{(\d*)(?:,(\d*))?\}")
_LONGEST_PATTERN = 1000
"""Characters, each choice counted once more; looking through a longer one takes a time that has no bound itself."""
_MATCHING = 10**8
"""Steps that a match may take at most."""
_SET = re.compile(r"\[(\^?\]?[^\]]*)\]")


@functools.lru_cache(maxsize=256)
def longest_text(pattern: Any) -> int | None:
    """The longest text that a search for a pattern is bounded for; None where none is, or where it is no pattern.

    Backtracking is at worst a power of the text's length, one for the start and one for each repeat; a repeat within
    a repeat has no such bound.
    """
    if not isinstance(pattern, str) or len(pattern) > _LONGEST_PATTERN:
        return None
    if re.search(r"\\[1-9]|\(\?P=", pattern):  # a reference back has no bound either
        return None
    plain = re.sub(r"\\.", "x", pattern, flags=re.DOTALL)
    if any("[" in inner or re.search(r"--|&&|~~|\|\|", inner) for inner in _SET.findall(plain)):
        return None  # operations on sets, which Python will read otherwise one day
    plain = _SET.sub("x", plain)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    repeats, choices, open_groups = 0, 0, []
    inside = False  # whether the current group holds a repeat or a choice
    at = 0
    while at < len(plain):
        sign = plain[at]
        at += 1
        closed = False
        if sign == "(":
            open_groups.append(inside)
            inside = False
            continue
        if sign == ")" and open_groups:
            closed, outer = inside, open_groups.pop()
            inside = outer or inside
        elif sign == "|":
            inside = inside or bool(open_groups)
            choices += 1
            continue
        found = _REPEAT.match(plain, at)
        if found and not _is_short(found):
            if closed:
                return None
            repeats += 1
            inside = True
        if found:
            at = found.end()
    if choices + len(pattern) > _LONGEST_PATTERN or repeats > 6:
        return None
    return max(16, int((_MATCHING / (1 + choices)) ** (1 / (repeats + 1)))) if repeats else 10**6


def _is_short(repeat: re.Match[str]) -> bool:
    """Whether a repeat takes at most one round ("{1}", "{0,1}"), or a number of rounds that is given and small."""
    least, most = repeat.group(1), repeat.group(2)
    if repeat.group(0) in "*+":
        return False
    rounds = least if most is None else most
    return (bool(rounds) and int(rounds[:9]) <= 1) or (most is None and bool(least) and int(least[:9]) <= 64)


def schema_problem(schema: Any) -> str | None:
    """Why a schema cannot be used to judge with, in words; None where it can.

    `violation` passes over what it does not know, which is right for tools of others; a grader that passes over a slip
    in its own gold would pay for anything.
    """
    if not isinstance(schema, Mapping):
        return f"the schema is a {type(schema).__name__}, not an object"
    todo: list[tuple[Any, str, int]] = [(schema, "", 0)]
    visited: set[int] = set()
    known: dict[int, int | None] = {}
    seen = 0
    while todo:
        at, path, depth = todo.pop()
        visited.add(id(at))
        seen += 1
        where = f' at "{path}"' if path else ""
        if isinstance(at, bool):
            continue
        if not isinstance(at, Mapping):
            return f"the schema{where} is a {type(at).__name__}, not an object"
        if depth > 50 or seen > 10_000:
            return "the schema is nested too deeply, or too large"
        kinds = at.get("type", [])
        for kind in (kinds,) if isinstance(kinds, str) else kinds if isinstance(kinds, (list, tuple)) else (kinds,):
            if not isinstance(kind, str) or kind not in _SAID:
                return f"the schema{where} has the unknown type {_short(kind)}"
        if "pattern" in at and longest_text(at["pattern"]) is None:
            return f"the pattern {_short(at['pattern'])} of the schema{where} is none, or its matching has no bound"
        for word, wanted in (("enum", list), ("required", list), ("properties", Mapping), ("$defs", Mapping)):
            if word in at and not isinstance(at[word], wanted):
                return f'"{word}" of the schema{where} is a {type(at[word]).__name__}'
        if not all(isinstance(name, str) for name in at.get("required", ())):
            return f'"required" of the schema{where} is no list of names'
        for word in ("minItems", "maxItems", "minLength", "maxLength"):
            if word in at and (isinstance(at[word], bool) or not isinstance(at[word], (int, float))):
                return f'"{word}" of the schema{where} is {_short(at[word])}, not a number'
        under = f"{path}." if path else ""
        todo += [(part, under + str(name), depth + 1) for name, part in (at.get("properties") or {}).items()]
        for word in ("anyOf", "oneOf", "allOf"):
            parts = at.get(word) or ()
            if not isinstance(parts, (list, tuple)):
                return f'"{word}" of the schema{where} is a {type(parts).__name__}'
            todo += [(part, path, depth + 1) for part in parts]
        todo += [(at[word], path, depth + 1) for word in ("items", "additionalProperties") if word in at]
        todo += [(part, str(name), depth + 1) for name, part in (at.get("$defs") or {}).items()]
        if "$ref" in at:
            target = _resolve(at["$ref"], schema)
            todo += [(target, str(at["$ref"]), depth + 1)] if id(target) not in visited else []
        count, problem = _alternatives(at, schema, known)
        if problem:
            return problem
        if count > MAX_ALTERNATIVES:
            return f"the schema{where} has too many alternatives"
    return None


MAX_ALTERNATIVES = 10_000


def _alternatives(at: Any, root: Any, known: dict[int, int | None], depth: int = 0) -> tuple[int, str]:
    """How many schemas one and the same value is checked against, following references, and what is wrong with them."""
    if not isinstance(at, Mapping):
        return 1, ""
    if depth > 100:
        return 1, "the schema has references that are nested too deeply"
    if id(at) in known:
        count = known[id(at)]
        return (1, "the schema has a reference that leads round in a circle") if count is None else (count, "")
    known[id(at)] = None
    if "$ref" in at:
        target = _resolve(at["$ref"], root)
        if not isinstance(target, Mapping) or not target:
            return 1, f"the reference {_short(at['$ref'])} in the schema leads nowhere"
        parts = [target]
    else:
        parts = [part for word in ("anyOf", "oneOf", "allOf") if isinstance(at.get(word), list) for part in at[word]]
    total = 1
    for part in parts:
        count, problem = _alternatives(part, root, known, depth + 1)
        if problem:
            return total, problem
        total += count
    known[id(at)] = total
    return total, ""


def _check_unions(
    schema: Mapping[str, Any], value: Any, path: str, root: Mapping[str, Any], closed: bool
) -> Violation | None:
    for part in schema.get("allOf") or ():
        found = _check(part, value, path, root, False)
        if found is not None:
            return found
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if parts:
            broken = [_check(part, value, path, root, closed) for part in parts]
            if None not in broken:
                if len(broken) == 1 or isinstance(value, (dict, list)):
                    # the alternative that went furthest tells most
                    return max((b for b in broken if b is not None), key=lambda b: len(b.argument))
                return Violation("wrong_type", path, value, " or ".join(b.wanted for b in broken if b and b.wanted))
    return None


def _resolve(ref: Any, root: Mapping[str, Any]) -> Any:
    """A local reference; an unknown one accepts everything."""
    at: Any = root
    if not isinstance(ref, str) or not ref.startswith("#"):
        return {}
    for part in ref.lstrip("#/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if part and (not isinstance(at, Mapping) or part not in at):
            return {}
        at = at[part] if part else at
    return at


def _is_of(value: Any, kinds: Any) -> bool:
    if isinstance(kinds, str):
        kinds = (kinds,)
    own = TYPE_NAMES.get(type(value), "null")
    if own in kinds or (own == "integer" and "number" in kinds):
        return True
    if own == "number" and "integer" in kinds:
        return bool(value.is_integer())
    return not any(kind in _SAID for kind in kinds)  # a type of another dialect says nothing here


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _said(kinds: Any) -> str:
    names = (kinds,) if isinstance(kinds, str) else kinds
    return " or ".join(_SAID.get(name, str(name)) for name in names)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


short = _short
"""A value as JSON of at most 80 characters, as messages show it."""
