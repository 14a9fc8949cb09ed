"""Learn what writing tools do to known documents, from documents before and after recorded calls.

A *sample* is one call that names a document which the episode has shown before. The field that decides the case is the
one whose cases give the most right answers, where a wrong one counts nineteen times (an answer is used where 95% are
right); cases that fewer than three recordings show are left out. Where no field is needed, a field that the tool itself
sets is taken all the same, if it has few values: so nothing is said of a value that was never seen.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlready.dream.staterules.documents import learn_form, merge_patch, parse_object
from rlready.dream.staterules.effects import (
    GONE,
    Change,
    Effect,
    Outcome,
    Path,
    Unknown,
    at,
    case_of,
    diff,
    fill,
    ordered,
    parts,
    same,
    template,
)
from rlready.dream.staterules.reads import MIN_RECORDINGS, leaves

if TYPE_CHECKING:
    from rlready.dream.base import Action, Reply, State
    from rlready.dream.state import StateRules

    Episode = tuple[int, Sequence[tuple[Action, str, Reply]]]

RIGHT = 0.95
WRONG = RIGHT / (1 - RIGHT)
MAX_EPISODES = 2_000
MAX_SAMPLES = 1_000
MAX_VALUES = 12
MAX_PATHS = 30


@dataclass(slots=True)
class Sample:
    """One call that names a document: what was known of it before, the reply, and what was seen of it after.

    Attributes:
        number: of the episode.
        arguments: of the call.
        before: the document as it was known; None where it was not.
        missing: a tool had said that there is no such document.
        failed: the reply is an error.
        text: the reply.
        after: the document as the reply, or the next look at it, shows it; None where nothing does.
    """

    number: int
    arguments: Mapping[str, Any]
    before: dict[str, Any] | None
    missing: bool
    failed: bool
    text: str
    after: dict[str, Any] | None = None


Key = tuple[str, str, str]
"""Tool, reader, argument."""


def learn_effects(episodes: Sequence[Episode], rules: StateRules) -> tuple[dict[str, Effect], dict[str, Unknown]]:
    """The effects of writing tools, and what tools say of documents that there are not, by tool.

    Args:
        episodes: number and steps (action, kind, reply) of each.
        rules: that know readers, views and what tools say of unknown documents, and are not limited (`allowed` None).
    """
    samples = collect(episodes[:: 1 + len(episodes) // (MAX_EPISODES + 1)], rules)
    effects: dict[str, Effect] = {}
    unknown = dict(rules.unknown)
    best: dict[str, float] = defaultdict(float)
    for (kind, reader, argument), seen in sorted(samples.items()):
        said = _unknown(seen, argument, rules.unknown.get(reader))
        if said is not None:
            unknown.setdefault(kind, Unknown(reader, argument, said))
        known = [s for s in seen if s.before is not None]
        score, effect = _effect(known[:: 1 + len(known) // (MAX_SAMPLES + 1)], kind, reader, argument, rules)
        if score > best[kind]:
            best[kind], effects[kind] = score, effect
    return effects, unknown


def unknown_of_readers(calls: Iterable[tuple[int, Action, str, Reply]], rules: StateRules) -> dict[str, Unknown]:
    """What readers say of an id that there is not: the commonest error of calls that are well-formed, by reader.

    Args:
        calls: number of the episode, action, kind and reply of each step.
        rules: that know the readers.
    """
    heard: defaultdict[str, Counter[str]] = defaultdict(Counter)
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, action, kind, reply in calls:
        reader = rules.readers.get(kind)
        if reader is None or not reply.failed or not action.arguments or action.arguments.keys() != {reader.argument}:
            continue
        if type(action.arguments[reader.argument]) is str:
            text = template(reply.text, action.arguments)
            heard[kind][text] += 1
            where[kind, text].add(number)
    out = {}
    for kind, texts in sorted(heard.items()):
        text, n = max(texts.items(), key=lambda item: (item[1], item[0]))
        if len(where[kind, text]) >= MIN_RECORDINGS and n >= 0.8 * texts.total():
            out[kind] = Unknown(kind, rules.readers[kind].argument, text)
    return out


# ---------------------------------------------------------------------- samples


def collect(episodes: Sequence[Episode], rules: StateRules) -> dict[Key, list[Sample]]:
    """The samples of every tool that does not only read, for each kind of document and argument that names one."""
    named = _named(episodes, rules)
    out: defaultdict[Key, list[Sample]] = defaultdict(list)
    for number, steps in episodes:
        if not any(kind not in rules.reads for action, kind, _ in steps if action.arguments):
            continue
        state: State = {}
        waiting: dict[tuple[str, str], Sample] = {}
        for action, kind, reply in steps:
            writes = kind not in rules.reads and not action.problem
            if writes and not reply.failed:
                touched = leaves(action.arguments)
                for key in list(waiting):
                    if (kind, key[0], "same" if key[1] in touched else "apart") not in rules.keeps:
                        del waiting[key]
            if writes and action.arguments:
                for reader, argument, id in _targets(kind, action.arguments, state, named, rules):
                    sample = _sample(number, action.arguments, reader, id, state, reply)
                    out[kind, reader, argument].append(sample)
                    if not reply.failed and kind in rules.views:
                        sample.after = parse_object(reply.text)
                    elif not reply.failed:
                        waiting[reader, id] = sample
            elif kind in rules.readers and not reply.failed and action.arguments:
                id = str(action.arguments.get(rules.readers[kind].argument))
                if (kind, id) in waiting:
                    waiting.pop((kind, id)).after = parse_object(reply.text)
            state = rules.observe(state, action, reply)
    return dict(out)


def _sample(number: int, arguments: Mapping[str, Any], reader: str, id: str, state: State, reply: Reply) -> Sample:
    held = state.get("entities", {}).get(reader, {}).get(id)
    missing = id in state.get("missing", {}).get(reader, {})
    return Sample(number, arguments, None if held is None else held[0], missing, reply.failed, reply.text)


def _named(episodes: Sequence[Episode], rules: StateRules) -> dict[str, str]:
    """The argument that names the document, of every writing tool that returns it: its value is the document's id."""
    hits: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for _, steps in episodes:
        for action, kind, reply in steps:
            if kind in rules.reads or kind not in rules.views or reply.failed or not action.arguments:
                continue
            document = parse_object(reply.text)
            field = rules.readers[rules.views[kind]].field
            if document is None or field not in document:
                continue
            total[kind] += 1
            hits[kind].update(name for name, value in action.arguments.items() if same(value, document[field]))
    out = {}
    for kind, names in hits.items():
        name, n = max(names.items(), key=lambda item: (item[1], item[0]), default=("", 0))
        if n and n >= RIGHT * total[kind]:
            out[kind] = name
    return out


def _targets(
    kind: str, arguments: Mapping[str, Any], state: State, named: Mapping[str, str], rules: StateRules
) -> Iterator[tuple[str, str, str]]:
    """The documents that a call may be about, as (reader, argument, id)."""
    if kind in rules.views:
        name = named.get(kind, "")
        if type(arguments.get(name)) in (str, int):
            yield rules.views[kind], name, str(arguments[name])
        return
    for reader in rules.readers:
        documents, missing = (state.get(part, {}).get(reader, {}) for part in ("entities", "missing"))
        for name, value in arguments.items():
            if type(value) in (str, int) and (str(value) in documents or str(value) in missing):
                yield reader, name, str(value)


def _unknown(samples: Sequence[Sample], argument: str, of_reader: Unknown | None) -> str | None:
    """What a tool says of a document that there is not: what its reader says, where the tool says it too, and only so.

    Else what it said in three recordings of documents that another tool had not found.
    """
    failed = [s for s in samples if s.failed]
    if of_reader is not None:
        said = [s for s in failed if fill(of_reader.text, {of_reader.argument: s.arguments[argument]}) == s.text]
        if _enough(said) and sum(s.before is not None for s in said) <= (1 - RIGHT) * len(said):
            return template(said[0].text, {argument: said[0].arguments[argument]})
    missing = [s for s in samples if s.missing]
    texts = Counter(template(s.text, s.arguments) for s in missing if s.failed)
    text, n = max(texts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return text if n >= RIGHT * len(missing) and _enough(missing) else None


def _enough(samples: Iterable[Sample]) -> bool:
    return len({s.number for s in samples}) >= MIN_RECORDINGS


# ---------------------------------------------------------------------- cases


def _effect(
    samples: Sequence[Sample], kind: str, reader: str, argument: str, rules: StateRules
) -> tuple[float, Effect]:
    """The effect with the most right answers, and its score: right ones, less nineteen for each wrong one."""
    shows = kind in rules.views
    texts = [s.text for s in samples if not s.failed]
    form = (learn_form(texts) if shows else None) or rules.readers[reader].form
    blank = Effect(reader, argument, shows, form)
    score, best = _cases(samples, blank)
    fields = _fields(samples, rules.readers[reader].field)
    if best.cases and best.cases[""].changes:
        own = {change.path for change in best.cases[""].changes if not change.source and change.value is not None}
        for path in fields:
            if path in own:
                found = _cases(samples, replace(blank, decides=path))
                if found[0] >= 0.8 * score and all(o.changes is not None for o in found[1].cases.values()):
                    return found
    if score < len(samples):
        for path in fields:
            found = _cases(samples, replace(blank, decides=path))
            if found[0] > score:
                score, best = found
    return score, best


def _fields(samples: Sequence[Sample], id_field: str) -> list[Path]:
    """The fields that may decide: single values, two to twelve different ones; those with the fewest first."""
    values: defaultdict[Path, set[str]] = defaultdict(set)
    for s in samples:
        for path, value in parts(s.before):
            if path != (id_field,) and not isinstance(value, (dict, list)) and len(values[path]) <= MAX_VALUES:
                values[path].add(case_of(s.before, path))
    for path, seen in values.items():
        if any(at(s.before, path) is GONE for s in samples):
            seen.add("")
    return sorted((p for p, seen in values.items() if len(seen) <= MAX_VALUES), key=lambda p: (len(values[p]), p))


def _cases(samples: Sequence[Sample], blank: Effect) -> tuple[float, Effect]:
    groups: defaultdict[str, list[Sample]] = defaultdict(list)
    for s in samples:
        groups[case_of(s.before, blank.decides)].append(s)
    cases: dict[str, Outcome] = {}
    score = 0.0
    for case, seen in sorted(groups.items()):
        outcome = _outcome(seen, blank) if _enough(seen) else None
        if outcome is None:
            continue
        effect = replace(blank, cases={case: outcome})
        right = sum(_fits(effect, outcome, s) for s in seen)
        if right >= RIGHT * len(seen):
            cases[case] = outcome
            score += right - WRONG * (len(seen) - right)
    return score, replace(blank, cases=cases)


def _outcome(samples: Sequence[Sample], effect: Effect) -> Outcome | None:
    """What most of the samples of one case share; None where they share nothing."""
    failed = [s for s in samples if s.failed]
    if 2 * len(failed) > len(samples):
        return Outcome(True, _commonest(failed))
    well = [s for s in samples if not s.failed]
    text = None if effect.shows else _commonest(well)
    changes = _changes([s for s in well if s.after is not None])
    return None if text is None and changes is None else Outcome(False, text, changes)


def _commonest(samples: Sequence[Sample]) -> str:
    texts = Counter(template(s.text, s.arguments) for s in samples)
    return max(texts.items(), key=lambda item: (item[1], item[0]))[0]


def _fits(effect: Effect, outcome: Outcome, sample: Sample) -> bool:
    """Whether an effect says of a sample what was recorded: the reply, and the document after."""
    assert sample.before is not None
    if sample.failed or effect.shows or outcome.text is not None:
        return effect.answer(sample.before, sample.arguments) == (sample.text, sample.failed)
    return sample.after is None or same(effect.after(sample.before, sample.arguments), sample.after)


# ---------------------------------------------------------------------- changes


def _changes(samples: Sequence[Sample]) -> tuple[Change, ...] | None:
    """The changes that turn the documents before into those after, in 95% of the samples; None where none do."""
    if not _enough(samples):
        return None
    moved = [dict(diff(s.before or {}, s.after or {})) for s in samples]
    paths = list(dict.fromkeys(path for places in moved for path in places))
    if len(paths) > MAX_PATHS or any(a != b and a == b[: len(a)] for a in paths for b in paths):
        return None
    found = [c for path in paths if (c := _change(path, samples, moved)) is not None]
    outcome = Outcome(changes=tuple(found))
    right = 0
    for s in samples:
        right += same(merge_patch(s.before, outcome.patch(s.before, s.arguments)), s.after)
    return outcome.changes if right >= RIGHT * len(samples) else None


def _change(path: Path, samples: Sequence[Sample], moved: Sequence[Mapping[Path, Any]]) -> Change | None:
    """What explains most of what stands at a path after the calls; None for no change."""
    values: dict[str, Any] = {}
    texts: Counter[str] = Counter()
    sources: dict[Path, None] = {}
    for s, places in zip(samples, moved, strict=True):
        if path not in places:
            continue
        value = places[path]
        text = "" if value is GONE else json.dumps(value)
        values[text] = None if value is GONE else value
        texts[text] += value is not None  # what becomes null has no merge patch
        if len(sources) < MAX_PATHS:
            before = at(s.before, path)
            sources |= {p: None for p, part in parts(s.arguments) if same(ordered(part, before), value)}
    options = [Change(path, source) for source in sources if source[-1] == path[-1]]
    options += [Change(path, (), values[text]) for text, n in texts.most_common(2) if n]
    options += [Change(path, source) for source in sources if source[-1] != path[-1]]
    best, right = None, sum(path not in places for places in moved)
    for option in options:
        n = sum(same(option.of(s.before, s.arguments), at(s.after, path)) for s in samples)
        if n > right:
            best, right = option, n
    return best
