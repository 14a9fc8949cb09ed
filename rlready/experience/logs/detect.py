"""Which form a log has: told from its first records, never guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlready.errors import UserError, did_you_mean
from rlready.experience.logs import (
    atif,
    braintrust,
    chat,
    langfuse,
    langsmith,
    mastra,
    otel,
    phoenix,
    posthog,
    transitions,
)
from rlready.experience.logs.forms import Form
from rlready.experience.logs.load import Record
from rlready.experience.logs.messages import keys_of

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        atif.FORM, otel.OTLP, langsmith.FORM, braintrust.FORM, posthog.FORM, mastra.FORM, langfuse.FORM, phoenix.FORM,
        otel.FLAT, transitions.FORM, chat.FORM,
    )
}  # fmt: skip
"""By name. The order matters only where a record fits several: the first is taken."""

LOOK = 50
"""So many records decide."""

_WRAPPERS = (
    "data", "runs", "events", "batch", "simulations", "traces", "spans", "observations", "results", "records", "items",
    "trajectories", "episodes", "rows", "objects", "logs",
)  # fmt: skip


def form_named(name: str) -> Form:
    """A form by its name.

    Raises:
        UserError: there is none of this name.
    """
    if name not in FORMS:
        raise did_you_mean("form of logs", name, FORMS)
    return FORMS[name]


def form_of(value: Any) -> Form | None:
    """The form of one record; None where none fits."""
    return next((form for form in FORMS.values() if form.fits(value)), None)


def unwrapped(record: Record) -> Iterator[Record]:
    """The records inside of a page of an API, such as `{"data": [...], "meta": ...}`; none where it is no page."""
    value = record.value
    if not isinstance(value, dict):
        return
    for key in _WRAPPERS:
        if isinstance(value.get(key), list):
            for index, each in enumerate(value[key]):
                inner = record.part(each, key, index)
                if (
                    form_of(each) is None
                    and isinstance(each, dict)
                    and any(isinstance(each.get(k), list) for k in _WRAPPERS)
                ):
                    yield from unwrapped(inner)
                else:
                    yield inner
            return


def detect(records: Iterable[Record]) -> Form | None:
    """The form that most of these records have; None where none has any."""
    votes: Counter[str] = Counter()
    for record in records:
        form = form_of(record.value)
        if form is None:
            for index, inner in enumerate(unwrapped(record)):
                if index == LOOK:
                    break
                if (found := form_of(inner.value)) is not None:
                    votes[found.name] += 1
        else:
            votes[form.name] += 1
    return FORMS[votes.most_common(1)[0][0]] if votes else None


def undetectable(file: Path, records: Iterable[Record]) -> UserError:
    """The error for a file of no known form: what was seen, and what is understood."""
    seen = next((keys_of(r.value) for r in records), None)
    what = "it holds no JSON record" if seen is None else f"its first record has the keys {seen}"
    return UserError(
        f"{file} is in no form of logs that is understood: {what}; understood are {', '.join(sorted(FORMS))}, "
        'so convert the log to one of them, for example {"messages": [...], "task_id": ..., "reward": ...} a line.'
    )
