"""A simulator without training: the reply of the most similar recording, with the present call's values put in.

Recorded transitions are compared within the same kind of action by what was done (for a tool call its arguments, which
count most) and by the situation (the instruction and the last replies). The success of a finished episode is the share
of successes among the most similar finished recordings: the same instruction, the same changes.

The index is lexical by default. Others measured learned embeddings for simulators and found that they never beat
hashing, so they plug in by choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.library import Library, Steps, facts_of
from rlready.dream.simulators.substitute import as_json, exchanges, identifiers, leaves, substitute
from rlready.dream.simulators.words import PART, PartEncoder, f1, flat
from rlready.experience.retrieve import Case, Encoder, Hit, Query, Retriever

_LAST = 2
_NEVER = 2.0
"""A cosine that none exceeds: repeated replies are kept, since they are what agreement is counted from."""


@dataclass(frozen=True, slots=True)
class StepCase(Case):
    """A recorded transition that knows its place: step `step` of recording `trajectory`."""

    step: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One retrieved transition.

    Attributes:
        action, reply: as recorded.
        text: the reply's text with the present values put in.
        score: likeness, in [-1, 1].
        id: of the recording.
    """

    action: Action
    reply: Reply
    text: str
    score: float
    id: str


class Retrieval:
    """Answers from the nearest recordings.

    The confidence is the best likeness times the agreement of the k best: the mean word F1 of their replies with the
    chosen one, weighted by likeness. It is raw; `simulators.confidence` calibrates it.

    Attributes:
        library: the recordings.
        k: how many are retrieved.
        exclude_own: whether recordings of the moment's own task are left out, as measuring does.
    """

    name = "retrieval"

    def __init__(
        self, library: Library, *, k: int = 8, encoder: Encoder | None = None, exclude_own: bool = False
    ) -> None:
        """Index a library.

        Args:
            library: the recordings.
            k: how many are retrieved for a reply, and for a verdict.
            encoder: of each part of a text; hashed word n-grams by default.
            exclude_own: never use recordings of the moment's own task.

        Raises:
            ValueError: k is not positive.
        """
        if k < 1:
            raise ValueError("Retrieval needs k >= 1.")
        self.k, self.exclude_own, self._encoder = k, exclude_own, encoder
        self._take(library)

    def _take(self, library: Library) -> None:
        self.library, encoder = library, self._encoder
        self._calls = Retriever(PartEncoder((2.0, 1.0), encoder), near=_NEVER, isolated=library.kinds())
        self._says = Retriever(PartEncoder((1.0, 1.0), encoder), near=_NEVER, isolated=library.kinds())
        self._ends = Retriever(PartEncoder((1.0, 2.0, 0.5), encoder), near=_NEVER)
        self._held = Retriever(PartEncoder((1.0, 2.0, 0.5, 1.5), encoder), near=_NEVER)
        self._base = library.base_rate
        self._kinds = frozenset(library.kinds())
        for id in library:
            self._add(id)

    def _add(self, id: str) -> None:
        episode, steps = self.library.episodes[id], self.library.steps(id)
        cases: dict[bool, list[Case]] = {True: [], False: []}
        for t, (action, reply) in enumerate(steps):
            text = self._text(episode.instruction, steps[max(0, t - _LAST) : t], action)
            told = f"{reply.text}{PART}{reply.failed:d}{reply.done:d}"
            cases[bool(action.tool)].append(StepCase(text, action.kind, told, id, episode.task_id, episode.source, t))
        self._calls.add(cases[True])
        self._says.add(cases[False])
        if self.library.judged(id):
            end, told = self._end(episode.instruction, steps), f"{episode.success:d}{PART}{id}"
            self._ends.add([Case(end, "end", told, id, episode.task_id)])
            if facts := _facts(self.library.world_facts(id)):
                self._held.add([Case(f"{end}{PART}{facts}", "end", told, id, episode.task_id)])

    # ------------------------------------------------------------------ the simulator

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """The best recording's reply; empty with confidence 0 where nothing of the kind was ever recorded."""
        found = self.nearest(moment, action)
        if not found:
            return Reply("", origin="nearest", confidence=0.0)
        best = found[0]
        weight = sum(max(f.score, 0.0) for f in found)
        agree = sum(max(f.score, 0.0) * _alike(f, best) for f in found) / weight if weight else 0.0
        confidence = min(1.0, max(0.0, best.score)) * agree
        return replace(best.reply, text=best.text, origin="nearest", confidence=confidence, note=best.id)

    async def candidates(self, moment: Moment, action: Action, n: int) -> list[tuple[float, Reply]]:
        """Different answers among the nearest recordings, each with the share of likeness that speaks for it."""
        found = self.nearest(moment, action, 4 * n)
        weights: dict[tuple[str, bool], float] = {}
        for f in found:
            key = (f.text, f.reply.failed)
            weights[key] = weights.get(key, 0.0) + max(f.score, 0.0) ** 8
        total = sum(weights.values()) or 1.0
        best = sorted(weights, key=lambda key: (-weights[key], key))[:n]
        origin = {(f.text, f.reply.failed): f for f in reversed(found)}
        return [
            (weights[key] / total, replace(origin[key].reply, text=key[0], origin="nearest", done=False))
            for key in best
        ]

    async def judge(self, moment: Moment) -> float:
        """Share of success among the nearest finished recordings, weighted by the 24th power of their likeness (ours).

        Recordings are compared twice: with what is known of the world, and, at a quarter of the weight, without, since
        not every fact matters and not every recording looked. The base rate counts as a tenth of a recording, so that
        it is the answer where nothing is alike.
        """
        task = moment.task_id if self.exclude_own else None
        end = self._end(moment.instruction, moment.past)
        known = {a.text: (a, r) for a, r in (*moment.facts, *facts_of(moment.past, self.library.state.reads))}
        asked = [(0.25, self._ends, end)] if known else [(1.0, self._ends, end)]
        if known:
            asked.append((1.0, self._held, f"{end}{PART}{_facts(tuple(known.values()))}"))
        won, total = 0.1 * self._base, 0.1
        for share, index, text in asked:
            for hit in index.search([Query(text, "end", None, task)], self.k)[0]:
                weight = share * max(hit.score, 0.0) ** 24
                won += weight * hit.case.reply.startswith("1")
                total += weight
        return won / total

    def release(self, world: int) -> None:
        """Nothing is cached for a world."""

    async def learn(self, library: Library, ids: Sequence[str], *, seed: int = 0) -> dict[str, float]:
        """Take a grown library: what was recorded can be retrieved."""
        self._take(library)
        return {"learn/recordings": float(len(library))}

    def state_dict(self) -> dict[str, Any]:
        """Nothing but what the library holds."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], library: Library) -> None:
        """Take the library that had grown."""
        self._take(library)

    # ------------------------------------------------------------------ what is retrieved

    def nearest(self, moment: Moment, action: Action, k: int | None = None) -> list[Found]:
        """The k nearest recorded transitions of the same kind of action, best first.

        Where the anchor's recording is within 0.02 of the best, it comes first: a world keeps to its own facts.
        """
        if action.kind not in self._kinds:
            return []
        index = self._calls if action.tool else self._says
        text = self._text(moment.instruction, moment.past[-_LAST:], action)
        task = moment.task_id if self.exclude_own else None
        hits = index.search([Query(text, action.kind, None, task)], k or self.k)[0]
        if moment.anchor:
            near = [h for h in hits if h.case.trajectory == moment.anchor and h.score >= hits[0].score - 0.02]
            hits = [*near[:1], *(h for h in hits if h not in near[:1])]
        return [self._found(hit, moment.past, action) for hit in hits]

    def _found(self, hit: Hit, past: Sequence[tuple[Action, Reply]], action: Action) -> Found:
        case = hit.case
        assert isinstance(case, StepCase)
        steps = self.library.steps(case.trajectory)
        recorded, reply = steps[case.step]
        if action.tool and recorded.text == action.text:
            return Found(recorded, reply, reply.text, hit.score, case.trajectory)
        pairs = {**identifiers(steps[: case.step], past), **exchanges(recorded, action)}
        kept = {str(value) for _, value in leaves(recorded.arguments or {})}
        now = {str(value) for _, value in leaves(action.arguments or {})}
        pairs = {a: b for a, b in pairs.items() if not (a in kept and a in now)}
        return Found(recorded, reply, substitute(reply.text, pairs), hit.score, case.trajectory)

    def _text(self, instruction: str, last: Sequence[tuple[Action, Reply]], action: Action) -> str:
        situation = " ".join([flat(instruction), *(flat(reply.text, 1000) for _, reply in last)])
        return f"{_features(action)}{PART}{situation}"

    def _end(self, instruction: str, steps: Sequence[tuple[Action, Reply]]) -> str:
        """What verdicts are compared by: the task, what was changed, the last reply."""
        changes = changing(steps, self.library)
        done = " ".join(f"{action.text.replace(' ', '')} {_features(action)}" for action, _ in changes) or "(nothing)"
        final = flat(steps[-1][1].text, 1000) if steps and not self.library.domain.tools else ""
        return f"{flat(instruction)}{PART}{done}{PART}{final}"


def changing(steps: Sequence[tuple[Action, Reply]], library: Library) -> Steps:
    """The steps that may have changed something, sorted by what was done.

    Where there are tools these are the calls of tools that do not only read, failed ones left out; elsewhere all steps.
    """
    if not library.domain.tools:
        return tuple(steps)
    return tuple(sorted(library.changing(steps), key=lambda step: step[0].text))


def _facts(facts: Steps) -> str:
    """What a world holds, as words."""
    return " ".join(sorted(word for fact in facts for word in _held(*fact)))


def _held(action: Action, reply: Reply) -> list[str]:
    """What a fact says, as words of their own: the fields of a document, the call's arguments left out."""
    if reply.failed:
        return [f"{action.tool}=failed"]
    own = {str(value) for _, value in leaves(action.arguments or {})}
    document = as_json(reply.text)
    if not isinstance(document, dict):
        return [f"{action.tool}={word}" for word in flat(reply.text, 400).split()]
    found = [(path, str(value)) for path, value in leaves(document)]
    return [f"{action.tool}.{'.'.join(path)}={flat(v).replace(' ', '_')}" for path, v in found if v not in own][:64]


def _features(action: Action) -> str:
    """What is compared of an action: each argument as one word and by its own words; the words of plain actions."""
    if action.arguments is None:
        return flat(action.text)
    out = []
    for path, value in leaves(action.arguments):
        own = flat(str(value))
        out += [f"{'.'.join(path)}={own.replace(' ', '_')}", own]
    return " ".join(out)


def _alike(a: Found, b: Found) -> float:
    if a.reply.failed != b.reply.failed or a.reply.done != b.reply.done:
        return 0.0
    return 1.0 if a.text == b.text else f1(a.text[:2000], b.text[:2000])
