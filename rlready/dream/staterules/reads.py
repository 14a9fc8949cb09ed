"""Which tools only read: learned from calls that were made twice.

Two calls with the same text are a *pair*. Where their replies agree, nothing that was done between them changed what
they read; where they differ, something did. The kinds of action that explain most of the differences are writers, one
after another, until what is left agrees. A kind that was between too few pairs is taken for a reader only by its name
(`get_user`; words that are said beside tools too), and one whose name is a verb of writing never. What failed is taken
to have changed nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_READING = """
    say     get list search find look lookup show read check view fetch query describe calculate compute think count
    browse inspect examine retrieve see compare ls cat grep help inventory status head pwd
"""
_WRITING = """
    update cancel book delete create set send add remove modify transfer exchange return pay buy place submit
    write move put insert drop post apply edit change reset start stop open close save upload purchase order
    approve reject assign register refund charge schedule reschedule toggle enable disable take give go click
    replace escalate type press rm mv cp mkdir touch execute exec run patch commit push merge reply comment rename
"""
READING, WRITING = frozenset(_READING.split()), frozenset(_WRITING.split())
TOLERATED = 0.05
MIN_RECORDINGS = 3
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def verb(kind: str) -> str:
    """What the first telling word of a tool's name says: "read", "write", or "" where none does."""
    for word in _WORDS.findall(kind):
        if word.lower() in READING:
            return "read"
        if word.lower() in WRITING:
            return "write"
    return ""


def leaves(value: Any) -> tuple[str, ...]:
    """The texts and numbers in a call's arguments, as texts of two characters or more, each once, in order."""
    if not value:
        return ()
    out: dict[str, None] = {}
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            if len(item) > 1:
                out[item] = None
        elif kind is dict:
            stack.extend(reversed(item.values()))
        elif kind is list:
            stack.extend(reversed(item))
        elif (kind is int or kind is float) and len(text := str(item)) > 1:
            out[text] = None
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two looks at the same thing.

    Attributes:
        reader: the kind of action that looked again.
        between: kinds of the actions that succeeded between, and of the second look where that was another tool's.
        same: those of `between` whose calls shared a value with the look.
        agree: whether both looks showed the same.
        recording: number of the episode.
    """

    reader: str
    between: frozenset[str]
    same: frozenset[str]
    agree: bool
    recording: int


@dataclass(frozen=True, slots=True)
class Support:
    """Evidence that a kind of action changes nothing: pairs that agree around it, pairs in all, and recordings."""

    agree: int
    pairs: int
    recordings: int


def find_writers(pairs: Sequence[Pair], kinds: Iterable[str]) -> frozenset[str]:
    """The kinds that are blamed for pairs that differ, and those whose names are verbs of writing.

    A look is blamed for its own difference only where nothing else stood between; a kind whose name is a verb of
    reading only once no other kind is suspected.
    """
    writers = {kind for kind in kinds if verb(kind) == "write"}
    grouped = Counter((p.between - {p.reader} or frozenset({p.reader}), p.reader, p.agree) for p in pairs)
    while True:
        bad: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for (around, reader, agree), n in grouped.items():
            if reader not in writers and not around & writers:
                for kind in around:
                    total[kind] += n
                    bad[kind] += 0 if agree else n
        guilty = [kind for kind, n in bad.items() if n > TOLERATED * total[kind]]
        if not guilty:
            return frozenset(writers)
        writers.add(max(guilty, key=lambda kind: (verb(kind) != "read", bad[kind] ** 2 / total[kind], kind)))


def find_reads(
    pairs: Sequence[Pair], kinds: Iterable[str], writers: frozenset[str]
) -> tuple[frozenset[str], dict[str, Support]]:
    """The kinds that change nothing, and the evidence for each kind."""
    agree: Counter[str] = Counter()
    total: Counter[str] = Counter()
    recordings: defaultdict[str, set[int]] = defaultdict(set)
    for pair in pairs:
        around = pair.between | {pair.reader}
        if (around - {pair.reader}) & writers:
            continue
        for kind in around:
            total[kind] += 1
            if pair.agree:
                agree[kind] += 1
                recordings[kind].add(pair.recording)
    support = {kind: Support(agree[kind], total[kind], len(recordings[kind])) for kind in kinds}
    reads = {
        kind
        for kind, seen in support.items()
        if kind not in writers and (seen.recordings >= MIN_RECORDINGS or verb(kind) == "read")
    }
    return frozenset(reads), support


def find_keeps(pairs: Sequence[Pair], reads: frozenset[str]) -> dict[tuple[str, str, str], Support]:
    """For every (writer, reader, "same" or "apart"): how often a reply stood after that writer alone had acted.

    "same" where a call of the writer shared a value with the look, "apart" where none did.
    """
    agree: Counter[tuple[str, str, str]] = Counter()
    total: Counter[tuple[str, str, str]] = Counter()
    recordings: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
    for pair in pairs:
        wrote = pair.between - reads
        if len(wrote) != 1 or pair.reader not in reads:
            continue
        (writer,) = wrote
        key = (writer, pair.reader, "same" if writer in pair.same else "apart")
        total[key] += 1
        agree[key] += pair.agree
        recordings[key].add(pair.recording)
    return {key: Support(agree[key], n, len(recordings[key])) for key, n in total.items()}
