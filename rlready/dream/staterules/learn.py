"""Learn `StateRules` from recordings, and verify each rule on recordings of other tasks.

The tasks are dealt into two halves by a hash. Rules are learned on one half and asked about every step of the other,
with the recorded past before them, and the other way round; both counts together are a rule's evidence. What is kept is
then learned from all recordings and limited to the rules that were right in 95% of the answers, in at least three held
recordings. Where the logs have but few tasks, the episodes are dealt instead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rlready.dream.base import Action, Reply, State
from rlready.dream.domain import Domain, parse
from rlready.dream.state import Evidence, StateRules
from rlready.dream.staterules.arithmetic import learn_sum
from rlready.dream.staterules.documents import Reader, learn_reader, parse_object
from rlready.dream.staterules.harvest import Place, learn_places
from rlready.dream.staterules.learn_effects import learn_effects, unknown_of_readers
from rlready.dream.staterules.reads import (
    MIN_RECORDINGS,
    Pair,
    Support,
    find_keeps,
    find_reads,
    find_writers,
    leaves,
    verb,
)
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive

RIGHT = 0.95
MAX_SHARED = 20_000
MAX_HELD = 2_000
"""Held recordings of each half that the rules are asked about: more would take time and tell no more."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode as the learners read it: its number, its task, and its steps."""

    number: int
    task: str
    steps: tuple[tuple[Action, str, Reply], ...]


@dataclass(slots=True)
class _Tally:
    right: int = 0
    asked: int = 0
    recordings: set[int] = field(default_factory=set)
    example: str = ""

    def add(self, other: _Tally) -> None:
        self.right += other.right
        self.asked += other.asked
        self.recordings |= other.recordings
        self.example = self.example or other.example


def learn(episodes: Sequence[LoggedEpisode], domain: Domain) -> StateRules:
    """See `StateRules.learn`."""
    plain = not domain.tools
    played = _play(episodes, plain)
    by_task = len({p.task for p in played}) >= 4
    halves: tuple[list[Played], list[Played]] = ([], [])
    for p in played:
        halves[derive("state", p.task) % 2 if by_task else derive("state", p.task, p.number) % 2].append(p)
    looks = _look(played, plain)
    tallies: dict[tuple[str, str, str], _Tally] = defaultdict(_Tally)
    for here, there in (halves, halves[::-1]):
        _verify(_fit(here, looks), there[:: 1 + len(there) // (MAX_HELD + 1)], tallies)
    rules = _fit(played, looks)
    persist = _persist(played, looks)
    for (_, reader, by), tally in persist.items():
        direct = tallies["entity", reader, by]
        if len(direct.recordings) < MIN_RECORDINGS:  # a document that stands is what its reader would show
            direct.add(tally)
    proof = [_judge(key, tally) for key, tally in sorted(tallies.items())]
    allowed = {e.key: e.accuracy for e in proof if e.used}
    pooled = [_judge(key, tally) for key, tally in sorted(_pool(tallies, looks).items())]
    for e in (e for e in pooled if e.used):
        for kind, by in _pairs_of(e, looks):
            own = tallies.get((e.rule, kind, by))
            if own is None or own.right == own.asked:
                allowed.setdefault((e.rule, kind, by), e.accuracy)
    proof = [replace(e, used=e.key in allowed) for e in proof] + pooled
    proof += [_judge(key, tally) for key, tally in sorted(persist.items())]
    proof += [
        Evidence("read", kind, "", s.pairs, s.recordings, s.agree / s.pairs if s.pairs else 0.0, kind in looks.reads)
        for kind, s in sorted(looks.support.items())
    ]
    proof += [
        Evidence("keep", reader, f"{writer} ({how})", s.pairs, s.recordings, s.agree / s.pairs, _holds(s))
        for (writer, reader, how), s in sorted(looks.keeps.items())
    ]
    constants = {k: v for k, v in rules.constants.items() if ("constant", k, "") in allowed}
    sums = {k: v for k, v in rules.sums.items() if ("arithmetic", k, "") in allowed}
    shared = {}
    for text, said in rules.shared.items():
        kind = rules.kind(Action(text) if plain else parse(text)[0])
        known = ("shared", kind, "fails" if said[1] else "") in allowed
        if known and kind not in constants and kind not in sums:
            shared[text] = said
    return replace(rules, constants=constants, sums=sums, shared=shared, allowed=allowed, evidence=tuple(proof))


def _play(episodes: Sequence[LoggedEpisode], plain: bool) -> list[Played]:
    kinds = StateRules(plain=plain)
    known: dict[str, tuple[Action, str]] = {}
    out = []
    for number, episode in enumerate(episodes):
        errors = frozenset(episode.errors)
        steps = []
        for t, (text, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
            at = known.get(text)
            if at is None:
                action = Action(text) if plain else parse(text)[0]
                at = known[text] = (action, kinds.kind(action))
            steps.append((*at, Reply(reply, t in errors, origin="recorded")))
        out.append(Played(number, episode.task_id, tuple(steps)))
    return out


# ---------------------------------------------------------------------- learning


def _pool(tallies: Mapping[tuple[str, str, str], _Tally], looks: _Looks) -> dict[tuple[str, str, str], _Tally]:
    """The rules that are no tool's own, counted over all tools. What is said twice is left out."""
    out: dict[tuple[str, str, str], _Tally] = defaultdict(_Tally)
    for (rule, kind, by), tally in sorted(tallies.items()):
        if kind == "say" and not looks.plain:
            continue
        if rule in ("repeat", "refusal", "unknown") or (rule == "entity" and by in looks.views):
            out[rule, "*", ""].add(tally)
        elif rule == "shared" or (rule == "effect" and by == "fails"):  # what one tool writes proves nothing of another
            out[rule, "*", by].add(tally)
    return out


def _pairs_of(pooled: Evidence, looks: _Looks) -> list[tuple[str, str]]:
    """The (kind, writer) pairs that a rule counted over all tools may speak for."""
    if pooled.rule == "entity":
        return sorted((reader, by) for by, reader in looks.views.items())
    kinds = looks.reads if pooled.rule in ("repeat", "shared") else looks.support
    return sorted((kind, pooled.by) for kind in kinds if looks.plain or kind != "say")


@dataclass(frozen=True, slots=True)
class _Looks:
    """What pairs of looks at the same thing say, over all recordings: a count for each kind, nothing fitted."""

    plain: bool
    reads: frozenset[str]
    support: Mapping[str, Support]
    keeps: Mapping[tuple[str, str, str], Support]
    readers: Mapping[str, Reader]
    views: Mapping[str, str]
    holds: Mapping[str, tuple[tuple[Place, str], ...]]


Calls = Mapping[str, Sequence[tuple[Mapping[str, object], str]]]


def _calls(played: Sequence[Played]) -> dict[str, list[tuple[Mapping[str, object], str]]]:
    """The tool calls that did not fail, by tool, with their replies."""
    out: defaultdict[str, list[tuple[Mapping[str, object], str]]] = defaultdict(list)
    for p in played:
        for action, kind, reply in p.steps:
            if action.arguments is not None and not reply.failed:
                out[kind].append((action.arguments, reply.text))
    return dict(sorted(out.items()))


def _look(played: Sequence[Played], plain: bool) -> _Looks:
    calls = _calls(played)
    kinds = sorted({kind for p in played for action, kind, _ in p.steps if not action.problem})
    readers = {
        kind: reader
        for kind, seen in calls.items()
        if verb(kind) != "write" and (reader := learn_reader(seen)) is not None
    }
    while True:  # a tool that proves to write is no reader; what it shows was written, and the count begins again
        views = _views(calls, readers)
        pairs = [pair for p in played for pair in _pairs(p, readers, views)]
        if not plain:  # what is said twice is no look at anything
            pairs = [pair for pair in pairs if pair.reader != "say"]
        reads, support = find_reads(pairs, kinds, find_writers(pairs, kinds))
        if readers.keys() <= reads:
            break
        readers = {kind: reader for kind, reader in readers.items() if kind in reads}
    return _Looks(plain, reads, support, find_keeps(pairs, reads), readers, views, learn_places(calls, readers))


def _fit(played: Sequence[Played], looks: _Looks) -> StateRules:
    """All rules that some recordings suggest, none of them verified."""
    calls = _calls(played)
    heard: defaultdict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    where: defaultdict[str, set[int]] = defaultdict(set)
    for p in played:
        for action, kind, reply in p.steps:
            if not action.problem:
                heard[kind][reply.text, reply.failed] += 1
                where[kind].add(p.number)
    constants = {}
    for kind, texts in heard.items():
        (said, n) = max(texts.items(), key=lambda item: (item[1], item[0]))
        if n >= RIGHT * texts.total() and len(where[kind]) >= MIN_RECORDINGS:
            constants[kind] = said
    good = {kind for kind, (_, failed) in constants.items() if not failed}
    naming = Counter(kind for p in played for a, kind, _ in p.steps if kind in good and _names(a, looks.plain))
    for kind, n in naming.items():
        if n > (1 - RIGHT) * heard[kind].total():
            del constants[kind]
    rules = StateRules(
        plain=looks.plain,
        reads=looks.reads,
        keeps=frozenset(key for key, s in looks.keeps.items() if _holds(s)) | _apart(looks),
        readers=looks.readers,
        views=looks.views,
        holds=looks.holds,
        sums={kind: found for kind, seen in calls.items() if (found := learn_sum(seen)) is not None},
        constants=constants,
        shared=_shared(played, looks.reads),
        allowed=None,
    )
    steps = ((p.number, *step) for p in played for step in p.steps)
    rules = replace(rules, unknown=unknown_of_readers(steps, rules))
    effects, unknown = learn_effects([(p.number, p.steps) for p in played], rules)
    return replace(rules, effects=effects, unknown=unknown)


def _apart(looks: _Looks) -> frozenset[tuple[str, str, str]]:
    """Tools that show the document which they write, and so far left others of its kind as they were.

    Counted over all such tools of a reader; a tool that was once seen to change another document is left out.
    """
    out: set[tuple[str, str, str]] = set()
    for reader in looks.readers:
        keys = [(kind, reader, "apart") for kind, of in looks.views.items() if of == reader and kind != reader]
        seen = [(key, looks.keeps[key]) for key in keys if key in looks.keeps]
        support = Support(*(sum(getattr(s, name) for _, s in seen) for name in ("agree", "pairs", "recordings")))
        if seen and _holds(support):
            broken = {key for key, s in seen if s.agree < s.pairs}
            out.update(key for key in keys if key not in broken)
    return frozenset(out)


def _names(action: Action, plain: bool) -> bool:
    """Whether an action names something, which may be named wrongly: a value of one word, a number, a command's object.

    A tool that said "done" of every order it was given would otherwise say so of orders that do not exist.
    """
    if plain:
        return len(action.text.split()) > 1
    return any(len(value.split()) == 1 for value in leaves(action.arguments))


def _holds(s: Support) -> bool:
    return s.recordings >= MIN_RECORDINGS and s.agree >= RIGHT * s.pairs


def _views(calls: Calls, readers: Mapping[str, Reader]) -> dict[str, str]:
    """The tools whose replies are documents of a reader's kind, in four fifths of a sample of their calls."""
    out = {kind: kind for kind in readers}
    for kind, seen in calls.items():
        if kind in readers:
            continue
        documents = [d for _, text in seen[:200] if (d := parse_object(text)) is not None]
        if not documents or len(documents) < 0.8 * len(seen[:200]):
            continue
        for name, reader in readers.items():
            if sum(reader.like(d) for d in documents) >= 0.8 * len(documents):
                out[kind] = name
                break
    return out


def _pairs(p: Played, readers: Mapping[str, Reader], views: Mapping[str, str]) -> list[Pair]:
    """Looks at the same thing in one episode, each with the look before it."""
    out: list[Pair] = []
    last: dict[str, int] = {}
    shown: dict[tuple[str, str], tuple[int, object]] = {}
    values = [leaves(action.arguments) for action, _, _ in p.steps]
    for j, (action, kind, reply) in enumerate(p.steps):
        if action.problem or reply.failed:
            continue
        i = last.get(action.text)
        if i is not None:
            agree = p.steps[i][2].text == reply.text
            out.append(_pair(p, values, i, j, kind, agree, own=False))
        last[action.text] = j
        reader = views.get(kind)
        document = parse_object(reply.text) if reader is not None else None
        if reader is None or document is None or not readers[reader].like(document):
            continue
        key = (reader, str(document[readers[reader].field]))
        if key in shown:
            i, before = shown[key]
            if p.steps[i][0].text != action.text:
                out.append(_pair(p, values, i, j, reader, before == document, own=kind != reader))
        shown[key] = (j, document)
    return out


def _pair(p: Played, values: Sequence[tuple[str, ...]], i: int, j: int, reader: str, agree: bool, *, own: bool) -> Pair:
    """The pair of steps i and j; `own`: the second look is another tool's, which may have written what it shows."""
    on = frozenset(values[j])
    between, same = set(), set()
    for t in range(i + 1, j + 1 if own else j):
        action, kind, reply = p.steps[t]
        if not reply.failed and not action.problem:
            between.add(kind)
            if not on.isdisjoint(values[t]):
                same.add(kind)
    return Pair(reader, frozenset(between), frozenset(same), agree, p.number)


def _persist(played: Sequence[Played], looks: _Looks) -> dict[tuple[str, str, str], _Tally]:
    """Whether what writers showed of a document still stood at the next look at it, whoever looked.

    Of the fields that a writer changed, those that the next looker never changes itself are compared. Where there are
    none, nothing is learned.
    """
    views: list[list[tuple[str, str, str, dict[str, object], int]]] = []
    for p in played:
        shown: defaultdict[tuple[str, str], list[tuple[str, str, str, dict[str, object], int]]] = defaultdict(list)
        for action, kind, reply in p.steps:
            reader = looks.views.get(kind)
            document = parse_object(reply.text) if reader is not None and not reply.failed else None
            if reader is None or document is None or not looks.readers[reader].like(document):
                continue
            id = str(document[looks.readers[reader].field])
            shown[reader, id].append((reader, kind, action.text, document, p.number))
        views += shown.values()
    own: defaultdict[str, set[str]] = defaultdict(set)
    for seen in views:
        for (_, _, _, before, _), (reader, kind, _, after, _) in pairwise(seen):
            if kind != reader:
                own[kind].update(_changed(before, after))
    out: dict[tuple[str, str, str], _Tally] = defaultdict(_Tally)
    for seen in views:
        for first, (reader, by, text, written, number), (_, kind, _, after, _) in zip(
            seen, seen[1:], seen[2:], strict=False
        ):
            left = _changed(first[3], written) - own[kind] if by != reader else set()
            if left:
                tally = out["persist", reader, by]
                tally.asked += 1
                tally.right += all(after.get(key) == written.get(key) for key in left)
                tally.recordings.add(number)
                tally.example = tally.example or _cut(text)
    return out


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _shared(played: Sequence[Played], reads: frozenset[str]) -> dict[str, tuple[str, bool]]:
    """Calls of reading tools before anything was written, with the reply that most recordings of them got."""
    heard: defaultdict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for p in played:
        for action, kind, reply in p.steps:
            if kind in reads:
                if not action.problem:
                    heard[action.text][reply.text, reply.failed] += 1
            elif not reply.failed:
                break
    often = sorted(heard.items(), key=lambda item: (-item[1].total(), item[0]))[:MAX_SHARED]
    return {text: max(seen.items(), key=lambda item: (item[1], item[0]))[0] for text, seen in sorted(often)}


# ---------------------------------------------------------------------- verifying


def _verify(rules: StateRules, held: Sequence[Played], tallies: dict[tuple[str, str, str], _Tally]) -> None:
    """Ask every rule about every held step, with the recorded past before it."""
    for p in held:
        state: State = {}
        for action, kind, reply in p.steps:
            for rule, by, text, _ in rules.answers(state, action):
                tally = tallies[rule, kind, by]
                tally.asked += 1
                tally.right += text == reply.text
                tally.recordings.add(p.number)
                if not tally.example or (text != reply.text and " WRONG " not in tally.example):
                    tally.example = _example(action.text, text, reply.text)
            state = rules.observe(state, action, reply)


def _example(call: str, text: str, recorded: str) -> str:
    """A call and its answer; of a wrong answer also what was recorded, from where they part."""
    if text == recorded:
        return f"{_cut(call)} -> {_cut(text)}"
    part = next((i for i, (a, b) in enumerate(zip(text, recorded, strict=False)) if a != b), 0)
    part = max(0, part - 20)
    return f"{_cut(call)} -> WRONG {_cut(text[part:])} RECORDED {_cut(recorded[part:])}"


def _cut(text: str, length: int = 160) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def _judge(key: tuple[str, str, str], tally: _Tally) -> Evidence:
    rule, kind, by = key
    accuracy = tally.right / tally.asked
    used = accuracy >= RIGHT and len(tally.recordings) >= MIN_RECORDINGS
    return Evidence(rule, kind, by, tally.asked, len(tally.recordings), accuracy, used, tally.example)
