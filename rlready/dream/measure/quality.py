"""What can be said of dreamt episodes without a real environment: do they contradict themselves, and do they invent?

    contradictions   the same question, nothing written between, another answer; a field that changed by itself
    inventions       identifiers and numbers that stand nowhere: in no recorded reply of the kind, not in the history
    the pair test    can a simple classifier tell dreamt replies from recorded ones (`measure.real_or_dream`)?

All are measured on recorded held-out episodes as well. Real environments invent too (a new task has new ids), so only
the difference counts.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlready.dream.base import Action
from rlready.dream.domain import Domain
from rlready.dream.library import Library
from rlready.dream.measure import documents
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.numbers import mean
from rlready.dream.measure.real_or_dream import RealOrDream, real_or_dream
from rlready.dream.measure.walk import steps_of, writes
from rlready.experience.episode import LoggedEpisode

_FACT = re.compile(r"[^\W_]+(?:[_@.:/-][^\W_]+)*")
_FEWEST = 2
"""Shorter facts (single digits) stand everywhere and tell nothing."""


@dataclass(frozen=True)
class Contradictions:
    """How often episodes contradict themselves.

    Attributes:
        episodes: looked at.
        repeated: questions asked again with nothing written between.
        answers: of these, the ones answered otherwise.
        fields: fields of an entity's document that changed with nothing written between, in replies of other calls.
        per_episode: (answers + fields) / episodes.
        example: the first one.
    """

    episodes: int
    repeated: int
    answers: int
    fields: int
    per_episode: float
    example: str = ""


def contradictions(episodes: Sequence[LoggedEpisode], domain: Domain, reads: Collection[str]) -> Contradictions:
    """Count contradictions; see `Contradictions`."""
    repeated = answers = moved = 0
    example = ""
    for episode in episodes:
        known: dict[str, str] = {}
        entities: dict[documents.Entity, tuple[str, documents.Leaves]] = {}
        for step, (action, reply) in enumerate(steps_of(domain, episode), 1):
            if writes(action, reply, reads):
                known.clear()
                entities.clear()
                continue
            if action.tool not in reads:
                continue
            place = f"task {episode.task_id}, step {step}"
            if action.text in known:
                repeated += 1
                if not documents.same(known[action.text], reply.text):
                    answers += 1
                    example = example or f"{place}: {action.text} gave {known[action.text]!r}, then {reply.text!r}."
            known[action.text] = reply.text
            document = documents.parse(reply.text)
            entity = documents.entity_of(action, document)
            if entity is None or reply.failed:
                continue
            leaves = documents.leaves(document)
            before = entities.get(entity)
            if before is not None and before[0] != action.text:
                other = sorted(p for p in before[1].keys() & leaves.keys() if before[1][p] != leaves[p])
                moved += len(other)
                if other and not example:
                    example = f"{place}: {other[0]} of {entity[1]} is {before[1][other[0]]}, then {leaves[other[0]]}."
            entities[entity] = (action.text, leaves)
    n = len(episodes)
    return Contradictions(n, repeated, answers, moved, (answers + moved) / n if n else math.nan, example)


@dataclass(frozen=True)
class Inventions:
    """Facts in replies that stand nowhere.

    Attributes:
        replies: that hold any fact (an identifier, number, date or address).
        facts: in them.
        invented: of these, the ones that stand neither in the action, nor in what was asked and said before, nor in
            recordings of the entity, nor in any recorded reply to that kind of action.
        share: invented / facts. What was computed rightly counts too, so compare with the recorded share.
        replies_share: share of the replies with at least one.
        example: the first one.
    """

    replies: int
    facts: int
    invented: int
    share: float
    replies_share: float
    example: str = ""


def facts_in(text: str) -> set[str]:
    """Identifiers, numbers, dates, times and addresses of a text: words that hold a digit, or join parts by _ or @.

    Of a JSON document the values count, not the names of its fields.
    """
    document = documents.parse(text)
    if document is not None:
        text = " ".join(documents.leaves(document).values())
    found = (m.group().lower() for m in _FACT.finditer(text))
    return {w for w in found if len(w) >= _FEWEST and (any(c.isdigit() for c in w) or "_" in w or "@" in w)}


def named(action: Action) -> set[str]:
    """The facts that an action names: in its arguments, or in its words."""
    return facts_in(action.text if action.arguments is None else json.dumps(dict(action.arguments), ensure_ascii=False))


class Ground:
    """What recordings hold: facts by kind of action, and by the values that a call names."""

    def __init__(self, library: Library) -> None:
        """Read a library."""
        self.kinds: dict[str, set[str]] = defaultdict(set)
        self.entities: dict[str, set[str]] = defaultdict(set)
        for id in library:
            for action, reply in library.steps(id):
                facts = facts_in(reply.text)
                self.kinds[action.kind] |= facts
                for value in named(action):
                    self.entities[value] |= facts

    def holds(self, action: Action) -> set[str]:
        """Facts that a reply to an action may well hold."""
        return self.kinds.get(action.kind, set()).union(*(self.entities.get(v, set()) for v in named(action)))


def inventions(episodes: Sequence[LoggedEpisode], domain: Domain, ground: Ground) -> Inventions:
    """Count inventions; see `Inventions`."""
    replies = facts = invented = guilty = 0
    example = ""
    rules = facts_in(domain.rules)
    for episode in episodes:
        seen = rules | facts_in(episode.instruction)
        for step, (action, reply) in enumerate(steps_of(domain, episode), 1):
            seen |= named(action)
            said = facts_in(reply.text)
            new = sorted(said - seen - ground.holds(action)) if said else []
            replies, facts, invented = replies + bool(said), facts + len(said), invented + len(new)
            guilty += bool(new)
            if new and not example:
                example = f"task {episode.task_id}, step {step}: {action.text[:120]} is told of {', '.join(new[:5])}."
            seen |= said
    return Inventions(
        replies,
        facts,
        invented,
        invented / facts if facts else math.nan,
        guilty / replies if replies else math.nan,
        example,
    )


@dataclass(frozen=True)
class Quality:
    """Dreamt episodes beside recorded ones.

    Attributes:
        episodes: dreamt.
        contradictions, recorded_contradictions: of both.
        inventions, recorded_inventions: of both.
        length_ratio: mean length of dreamt replies over recorded ones, mean over kinds of action; 1 is wanted.
        pair_test: real or dream?
    """

    episodes: int
    contradictions: Contradictions
    recorded_contradictions: Contradictions
    inventions: Inventions
    recorded_inventions: Inventions
    length_ratio: float
    pair_test: RealOrDream

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record: dict[str, Any] = to_json(self)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Quality:
        """Inverse of `to_json`."""
        return from_json(cls, record)


def quality(
    dreamt: Sequence[LoggedEpisode],
    recorded: Sequence[LoggedEpisode],
    library: Library,
    domain: Domain,
    reads: Collection[str],
    *,
    seed: int = 0,
) -> Quality:
    """Measure dreamt episodes.

    Args:
        dreamt: played in the dream, by whoever; best on the tasks of `recorded`.
        recorded: held-out recordings.
        library: what the dream was made from.
        domain: reads the actions.
        reads: tools that change nothing.
        seed: of the pair test's folds.
    """
    ground = Ground(library)
    return Quality(
        len(dreamt),
        contradictions(dreamt, domain, reads),
        contradictions(recorded, domain, reads),
        inventions(dreamt, domain, ground),
        inventions(recorded, domain, ground),
        length_ratio(dreamt, recorded, domain),
        real_or_dream(dreamt, recorded, domain, seed=seed),
    )


def length_ratio(dreamt: Sequence[LoggedEpisode], recorded: Sequence[LoggedEpisode], domain: Domain) -> float:
    """Mean characters of dreamt over recorded replies by kind of action, mean over the kinds that both have."""
    sides = []
    for episodes in (dreamt, recorded):
        lengths: dict[str, list[float]] = defaultdict(list)
        for e in episodes:
            for action, reply in steps_of(domain, e):
                lengths[action.kind].append(float(len(reply.text)))
        sides.append({k: mean(v) for k, v in lengths.items()})
    return mean([sides[0][k] / sides[1][k] for k in sides[0].keys() & sides[1].keys() if sides[1][k] > 0])
