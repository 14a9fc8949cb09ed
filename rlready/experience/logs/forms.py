"""What a form of log is to the reader: how it is told, and how its records become recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rlready.experience.logs.facts import Notes
from rlready.experience.logs.load import Record
from rlready.experience.logs.report import LogReport, UnreadableError
from rlready.experience.logs.spans import Span
from rlready.experience.recording import Recording

Way = tuple[str | int, ...]


class Reader(Protocol):
    """Reads the records of one file, in order."""

    def read(self, record: Record) -> Iterable[Recording]:
        """The recordings that this record completes.

        Raises:
            UnreadableError: the record does not fit.
        """
        ...

    def finish(self) -> Iterable[Recording]:
        """What is still open at the end of the file."""
        ...


@dataclass(frozen=True, slots=True)
class RunForm:
    """A form whose records are whole runs, or steps of them in order.

    Attributes:
        name: as a user writes it.
        fits: whether a decoded record is of this form.
        reader: makes the reader of one file.
    """

    name: str
    fits: Callable[[Any], bool]
    reader: Callable[[LogReport], Reader]


@dataclass(frozen=True, slots=True)
class SpanForm:
    """A form whose records are spans, which may stand anywhere in the files.

    Attributes:
        name: as a user writes it.
        fits: whether a decoded record is of this form.
        items: the spans in a record: the way to each, and the span as logged.
        keys: (trace, session) of a span as logged; "" where it does not say.
        span: reads one span.
    """

    name: str
    fits: Callable[[Any], bool]
    items: Callable[[Any], Iterator[tuple[Way, Any]]]
    keys: Callable[[Any], tuple[str, str]]
    span: Callable[[Any, Notes], Span]


Form = RunForm | SpanForm


_SHAPE = (AttributeError, TypeError, KeyError, IndexError, ValueError, RecursionError)
T = TypeVar("T")


def attempt(name: str, work: Callable[[], T]) -> T:
    """Read something of a record whose parts may be of any type.

    Raises:
        UnreadableError: a part was not of the type that the form has there.
    """
    try:
        return work()
    except UnreadableError:
        raise
    except _SHAPE as error:
        raise UnreadableError(f"a part of it is not as in {name} ({type(error).__name__}: {error})") from error


def itself(value: Any) -> Iterator[tuple[Way, Any]]:
    """A record that is one span."""
    yield (), value


def text(value: Any) -> str:
    """An id or a name as text; "" for what is none."""
    return value if isinstance(value, str) else str(value) if type(value) is int else ""
