"""Records of answers as mappings: reading their fields, and the graders of kinds whose verifiers stand elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.verdict import Graded, short

Record = Mapping[str, Any]

__all__ = ["field", "grade_language", "grade_math_answer", "grade_math_response", "option", "prediction"]


def field(record: Record, key: str) -> Any:
    """A field that must be there.

    Raises:
        UserError: it is not.
    """
    if key not in record:
        raise UserError(f'the record has no "{key}" (it has: {", ".join(map(str, record)) or "nothing"})')
    return record[key]


def prediction(record: Record) -> str:
    """The prediction; None is read as nothing.

    Raises:
        UserError: it is missing, or no text.
    """
    value = field(record, "prediction")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f'"prediction" must be a text, not {short(value)} (a {type(value).__name__})')
    return value


def option(record: Record, key: str, default: Any, *kinds: type) -> Any:
    """An optional field that must be of one of the types.

    Raises:
        UserError: it is there, but of another type.
    """
    value = record.get(key)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(_NAMES.get(k, k.__name__) for k in kinds)
        raise UserError(f'"{key}" must be {names}, not {short(value)}')
    return value


_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number", bool: "true or false"}


def grade_math_answer(record: Record) -> Graded:
    """A bare answer against the gold; fields `units`, `percent` and `cue_words` are those of `verify_math`."""
    return _math(record, response=False)


def grade_math_response(record: Record) -> Graded:
    """A whole response against the gold; fields as in `grade_math_answer`."""
    return _math(record, response=True)


def _math(record: Record, *, response: bool) -> Graded:
    from rlready.rewards.mathematics import verify_math

    rules: dict[str, Any] = {
        "units": option(record, "units", "given", str),
        "percent": option(record, "percent", "either", str),
        "cue_words": option(record, "cue_words", (), list),
    }
    return Graded.of(verify_math(prediction(record), field(record, "reference"), response=response, **rules))


def grade_language(record: Record) -> Graded:
    """The language of the prediction; `reference` is its code (ISO 639-1), or a list of codes that are accepted.

    The field `languages` limits what it is told apart among; see `language.verify_language`.
    """
    from rlready.rewards.language import verify_language

    wanted: str | Sequence[str] = field(record, "reference")
    return verify_language(prediction(record), wanted, among=option(record, "languages", None, list))
