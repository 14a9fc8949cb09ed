"""What can be said of dreamt episodes without a real environment: do they contradict themselves, and do they invent?

    contradictions   the same question, nothing written between, another answer; a field that changed by itself
    inventions       identifiers and numbers that stand nowhere: in no recorded reply of the kind, not in the history
    real_or_dream    can a simple classifier tell dreamt replies from recorded ones?

All are measured on recorded held-out episodes as well. Real environments invent too (a new task has new ids), so only
the difference counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlready.dream.base import Action, Reply
from rlready.dream.domain import Domain
from rlready.dream.library import Library
from rlready.dream.measure import documents
from rlready.dream.measure.jsonable import to_json
from rlready.dream.measure.numbers import mean
from rlready.dream.measure.walk import steps_of, writes
from rlready.dream.simulators.confidence import auroc
from rlready.dream.simulators.words import words
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive

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
    """Identifiers, numbers, dates, times and addresses of a text: words that hold a digit, or join parts by _ or @."""
    found = (m.group().lower() for m in _FACT.finditer(text))
    return {w for w in found if len(w) >= _FEWEST and (any(c.isdigit() for c in w) or "_" in w or "@" in w)}


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
                for value in facts_in(action.text):
                    self.entities[value] |= facts

    def holds(self, action: Action) -> set[str]:
        """Facts that a reply to an action may well hold."""
        return self.kinds.get(action.kind, set()).union(
            *(self.entities.get(value, set()) for value in facts_in(action.text))
        )


def inventions(episodes: Sequence[LoggedEpisode], domain: Domain, ground: Ground) -> Inventions:
    """Count inventions; see `Inventions`."""
    replies = facts = invented = guilty = 0
    example = ""
    rules = facts_in(domain.rules)
    for episode in episodes:
        seen = rules | facts_in(episode.instruction)
        for step, (action, reply) in enumerate(steps_of(domain, episode), 1):
            seen |= facts_in(action.text)
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
class RealOrDream:
    """Can a lexical classifier tell dreamt replies from recorded ones?

    Attributes:
        pairs: dreamt and recorded replies to the same kind of action that were compared.
        auc: how often the dreamt one of a pair got the higher score; .5 is indistinguishable, 1 is always told.
        noise: standard error, from folds.
        by_kind: the same by kind of action.
        tells: words that give dreams away, and words that are missing in them.
    """

    pairs: int
    auc: float
    noise: float
    by_kind: dict[str, float]
    tells: tuple[str, ...] = ()

    @property
    def told(self) -> bool:
        """True where dreams can be told, beyond two standard errors."""
        return self.auc - 2 * self.noise > 0.5


def real_or_dream(
    dreamt: Sequence[LoggedEpisode], recorded: Sequence[LoggedEpisode], domain: Domain, *, folds: int = 5, seed: int = 0
) -> RealOrDream:
    """Naive Bayes over words and word pairs by kind of action, cross-validated with whole tasks left out.

    Replies are compared within their kind of action only, so the mix of actions tells nothing, and scores are means
    over features, so length alone tells little.

    Args:
        dreamt: dreamt episodes.
        recorded: recorded ones, held out from the dream.
        domain: reads the actions.
        folds: of the cross-validation; a task's replies, dreamt and recorded, are in one fold.
        seed: of the folds.
    """
    items = [
        (action.kind, derive(seed, "fold", e.task_id) % folds, dream, _features(reply))
        for dream, episodes in ((True, dreamt), (False, recorded))
        for e in episodes
        for action, reply in steps_of(domain, e)
        if reply.text.strip()
    ]
    kinds = sorted({k for k, *_ in items})
    scored: dict[str, list[tuple[int, bool, float]]] = defaultdict(list)
    for fold in range(folds):
        for kind in kinds:
            train = [(dream, f) for k, at, dream, f in items if k == kind and at != fold]
            weights = _weights(train)
            for k, at, dream, features in items:
                if k == kind and at == fold:
                    scored[kind].append((fold, dream, mean([weights.get(f, 0.0) for f in features] or [0.0])))
    by_kind, total, won = dict[str, float](), 0, 0.0
    by_fold: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for kind, rows in scored.items():
        for fold in {f for f, *_ in rows}:
            inside = [(dream, s) for f, dream, s in rows if f == fold]
            pairs = sum(d for d, _ in inside) * sum(not d for d, _ in inside)
            if pairs:
                by_fold[fold].append((auroc([s for _, s in inside], [d for d, _ in inside]), pairs))
        mine = [
            (auroc([s for f, _, s in rows if f == fold], [d for f, d, _ in rows if f == fold]), fold)
            for fold in {f for f, *_ in rows}
        ]
        known = [a for a, _ in mine if not math.isnan(a)]
        if known:
            by_kind[kind] = mean(known)
    each = []
    for rows_ in by_fold.values():
        pairs = sum(n for _, n in rows_)
        total, won = total + pairs, won + sum(a * n for a, n in rows_)
        each.append(sum(a * n for a, n in rows_) / pairs)
    spread = (
        math.sqrt(sum((a - mean(each)) ** 2 for a in each) / (len(each) - 1) / len(each)) if len(each) > 1 else math.nan
    )
    return RealOrDream(total, won / total if total else math.nan, spread, by_kind, _tells(items))


def _features(reply: Reply) -> list[str]:
    found = words(reply.text[:2000])
    return list(dict.fromkeys([*found, *(f"{a} {b}" for a, b in zip(found, found[1:], strict=False))]))


def _weights(train: Sequence[tuple[bool, Sequence[str]]]) -> dict[str, float]:
    """Log odds of each feature for dreams, from shares of replies that hold it, add one half."""
    count = {True: Counter[str](), False: Counter[str]()}
    n = {True: 0, False: 0}
    for dream, features in train:
        n[dream] += 1
        count[dream].update(features)
    if not n[True] or not n[False]:
        return {}
    return {
        f: math.log((count[True][f] + 0.5) / (n[True] + 1)) - math.log((count[False][f] + 0.5) / (n[False] + 1))
        for f in count[True].keys() | count[False].keys()
    }


def _tells(items: Iterable[tuple[str, int, bool, Sequence[str]]], most: int = 6) -> tuple[str, ...]:
    rows = list(items)
    weights = _weights([(dream, features) for *_, dream, features in rows])
    seen = Counter(f for *_, features in rows for f in features)
    strong = sorted(weights, key=lambda f: (-abs(weights[f]) * math.sqrt(seen[f]), f))[:most]
    return tuple(f"{'more' if weights[f] > 0 else 'less'}: {f}" for f in strong if abs(weights[f]) > 0.1)


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
