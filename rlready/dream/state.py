"""The typed state of a dream, and the layer that answers from it.

What can be computed or looked up is; a model does the rest. The state is a JSON document:

    {"entities": {READER: {ID: [DOCUMENT, SHOWN_BY]}},      documents by the tool that reads them and their id
     "missing":  {READER: {ID: true}},                      ids of which a tool said that there is no document
     "replies":  {CALL: {"text", "failed", "kind", "on"}},  what a call was answered, while nothing has changed it
     "written":  {KIND: [VALUE, ...]}}                      what was changed so far, and the values it was called with

It changes by merge patches (RFC 7386); a document stands in a list, since a patch replaces lists whole.

The rules are learned from recordings and verified on those of other tasks; only rules that were right in 95% of their
answers, in at least three held recordings, are used (`Evidence`). In the order in which they answer:

    entity      a document that was read, listed, returned by a tool that wrote it, or changed by one, is what its
                reader returns
    repeat      a call of a reading tool made again, with nothing written between, is answered as before
    refusal     a call that failed, made again with nothing written between, fails as before
    effect      what a writing tool does to a document that is known: its reply is the patched document, a sentence, or
                the error that the value of one field brings about
    unknown     a tool called with an id of which a tool has said that there is no document
    arithmetic  the value of an expression
    constant    a tool that always says the same, and is told nothing that could be wrong (or always fails)
    shared      a reading tool's call, nothing written yet, that recordings of several tasks answer alike
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlready.dream.base import Action, Moment, Reply, State
from rlready.dream.domain import Domain, parse
from rlready.dream.staterules.arithmetic import Sum
from rlready.dream.staterules.documents import FORMS, Reader, merge_patch, parse_object
from rlready.dream.staterules.effects import Effect, Unknown, fill
from rlready.dream.staterules.harvest import Place, found, parse_json
from rlready.dream.staterules.reads import leaves
from rlready.experience.episode import LoggedEpisode

RULES = ("entity", "repeat", "refusal", "effect", "unknown", "arithmetic", "constant", "shared")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What held recordings say of one rule.

    Attributes:
        rule: one of `RULES` (kind "*": over all tools, for those of them that held recordings seldom or never ask and
            never contradict), "read" (a kind changes nothing), "keep" (a writer leaves what a reader shows) or
            "persist" (what a writer's reply shows of a document still stands at the next look at it).
        kind: the kind of action it answers.
        by: the writer, for "entity", "keep" and "persist"; "writes" or "fails" for effects; "fails" for shared errors,
            which prove nothing of the calls that do not fail; "" elsewhere.
        support: held steps for which it had an answer.
        recordings: held recordings in which it had one.
        accuracy: share of these answers that were the recorded ones, to the letter.
        used: whether it is relied on.
        example: a call and the answer, shortened.
    """

    rule: str
    kind: str
    by: str = ""
    support: int = 0
    recordings: int = 0
    accuracy: float = 0.0
    used: bool = False
    example: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Rule, kind and writer."""
        return (self.rule, self.kind, self.by)


@dataclass(frozen=True)
class StateRules:
    """The layer that knows what the state says (origin "state").

    Attributes:
        plain: the domain has no tools: the kind of an action is its first word.
        reads: kinds of action that change nothing.
        keeps: "writer reader same|apart": what a reader was told stands after that writer (see `reads.find_keeps`).
        readers: tools that read one document by id.
        views: tools whose replies are documents, to the reader of such documents.
        holds: tools whose replies hold documents within, with the places and their readers (see `harvest`).
        effects: what writing tools do to known documents.
        unknown: what tools say of documents that there are not.
        sums: tools that calculate.
        constants: kinds that always say the same, as (text, failed).
        shared: calls that recordings of several tasks answer alike, as (text, failed).
        allowed: "rule kind by" of the rules that are relied on; None relies on all (to verify them).
        evidence: for the report, rejected rules included.
    """

    plain: bool = False
    reads: frozenset[str] = frozenset()
    keeps: frozenset[tuple[str, str, str]] = frozenset()
    readers: Mapping[str, Reader] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, tuple[tuple[Place, str], ...]] = field(default_factory=dict)
    effects: Mapping[str, Effect] = field(default_factory=dict)
    unknown: Mapping[str, Unknown] = field(default_factory=dict)
    sums: Mapping[str, Sum] = field(default_factory=dict)
    constants: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    shared: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    allowed: Mapping[tuple[str, str, str], float] | None = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def learn(cls, episodes: Sequence[LoggedEpisode], domain: Domain) -> StateRules:
        """Learn the rules and verify each on recordings that it was not learned from."""
        from rlready.dream.staterules.learn import learn  # it builds on this module

        return learn(episodes, domain)

    # ------------------------------------------------------------------ the state

    def kind(self, action: Action) -> str:
        """What an action's rules go by: the tool; "say" for words beside tools; the first word of a text command."""
        if action.tool or not self.plain:
            return action.kind
        return action.text.split(None, 1)[0].lower()[:40] if action.text.strip() else "say"

    def start(self, facts: Sequence[tuple[Action, Reply]] = ()) -> State:
        """The state of a world of which some facts are known: a recording's reads made before anything was written."""
        state: State = {}
        for action, reply in facts:
            state = self.observe(state, action, reply)
        return state

    def observe(self, state: State, action: Action, reply: Reply) -> State:
        """The state after an action and its reply; `state` itself stays as it is."""
        patch = self.patch(state, action, reply)
        return merge_patch(state, patch) if patch else state

    def patch(self, state: State, action: Action, reply: Reply) -> dict[str, Any]:
        """How an action and its reply change the state, as a merge patch; {} where they do not.

        Wrong actions that the checks answered, and errors that were put in on purpose (`perturb`), change nothing.
        """
        if action.problem or reply.origin in ("check", "perturbed"):
            return {}
        kind = self.kind(action)
        values = leaves(action.arguments) if action.arguments is not None else ()
        if reply.failed:
            return self._refused(action, reply, kind, values)
        out: dict[str, Any] = {}
        if kind not in self.reads:
            self._forget(state, kind, values, out)
            before = state.get("written", {}).get(kind, ())
            out["written"] = {kind: list(dict.fromkeys((*before, *values)))}
        if kind in self.views:
            document = self._document(kind, reply.text)
            if document is not None:
                reader = self.views[kind]
                id = str(document[self.readers[reader].field])
                self._know(out, reader, id, document, kind, state)
                if kind == reader:
                    return out
        elif kind in self.effects and action.arguments is not None:
            self._change(state, action.arguments, reply, kind, out)
        if kind in self.holds:
            self._harvest(state, kind, reply.text, out)
        if kind in self.reads and kind not in self.constants and self.confidence("repeat", kind, "") is not None:
            out.setdefault("replies", {})[action.text] = _entry(reply, kind, values)
        return out

    def _document(self, kind: str, text: str) -> dict[str, Any] | None:
        """A reply as a document of its reader's kind, if it is one and its text can be given back to the letter."""
        reader = self.readers[self.views[kind]]
        document = parse_object(text)
        if document is None or not reader.like(document) or FORMS[reader.form](document) != text:
            return None
        return document if isinstance(document[reader.field], (str, int)) else None

    def _refused(self, action: Action, reply: Reply, kind: str, values: tuple[str, ...]) -> dict[str, Any]:
        """The patch of a call that failed: it fails again; and the document that it names may be none."""
        out: dict[str, Any] = {}
        if self.confidence("refusal", kind, "") is not None:
            out["replies"] = {action.text: _entry(reply, kind, values)}
        none = self.unknown.get(kind)
        arguments = action.arguments
        if none is not None and arguments is not None and none.argument in arguments:
            said = fill(none.text, arguments)
            if said == reply.text:
                out["missing"] = {none.reader: {str(arguments[none.argument]): True}}
        return out

    def _know(
        self, out: dict[str, Any], reader: str, id: str, document: Mapping[str, Any], kind: str, state: State
    ) -> None:
        """Put into a patch that a document is known."""
        out.setdefault("entities", {}).setdefault(reader, {})[id] = [document, kind]
        if id in state.get("missing", {}).get(reader, ()):
            out.setdefault("missing", {}).setdefault(reader, {})[id] = None

    def _change(self, state: State, arguments: Mapping[str, Any], reply: Reply, kind: str, out: dict[str, Any]) -> None:
        """Put into a patch what a tool that does not show the document has changed in it, where that is known."""
        effect = self.effects[kind]
        id = effect.id(arguments)
        held = state.get("entities", {}).get(effect.reader, {}).get(id)
        if held is None or id is None or self.confidence("entity", effect.reader, kind) is None:
            return
        said = effect.answer(held[0], arguments)
        after = effect.after(held[0], arguments)
        if after is not None and (said is None or said == (reply.text, False)):
            self._know(out, effect.reader, id, after, kind, state)

    def _harvest(self, state: State, kind: str, text: str, out: dict[str, Any]) -> None:
        """Put into a patch the documents that a reply holds within, but for those that are known to be so."""
        value = parse_json(text)
        for place, name in self.holds[kind] if value is not None else ():
            reader = self.readers[name]
            if self.confidence("entity", name, kind) is None:
                continue
            known = state.get("entities", {}).get(name, {}) if kind in self.reads else {}
            for document in found(value, place):
                id = document.get(reader.field)
                if type(id) not in (str, int) or not reader.like(document):
                    continue
                held = known.get(str(id))
                if held is None or held[0] != document:
                    self._know(out, name, str(id), document, kind, state)

    def _forget(self, state: State, kind: str, values: tuple[str, ...], out: dict[str, Any]) -> None:
        """Drop what a writer may have changed: all that no verified rule says it leaves alone."""
        touched = frozenset(values)
        for text, entry in state.get("replies", {}).items():
            how = "same" if touched.intersection(entry["on"]) else "apart"
            if entry["failed"] or (kind, entry["kind"], how) not in self.keeps:
                out.setdefault("replies", {})[text] = None
        for reader, documents in state.get("entities", {}).items():
            for id in documents:
                if (kind, reader, "same" if id in touched else "apart") not in self.keeps:
                    out.setdefault("entities", {}).setdefault(reader, {})[id] = None
        for reader, ids in state.get("missing", {}).items():
            for id in ids:
                if id in touched or (kind, reader, "apart") not in self.keeps:
                    out.setdefault("missing", {}).setdefault(reader, {})[id] = None

    # ------------------------------------------------------------------ answers

    def reply(self, moment: Moment, action: Action) -> Reply | None:
        """What the state says, or None. `confidence` is the rule's accuracy on held recordings."""
        for rule, by, text, failed in self.answers(moment.state, action):
            sure = self.confidence(rule, self.kind(action), by)
            if sure is not None:
                return Reply(text, failed, origin="state", confidence=sure, note=rule)
        return None

    def confidence(self, rule: str, kind: str, by: str) -> float | None:
        """The accuracy of a rule that is relied on; None for one that is not."""
        return 1.0 if self.allowed is None else self.allowed.get((rule, kind, by))

    def answers(self, state: State, action: Action) -> Iterator[tuple[str, str, str, bool]]:
        """Every rule's answer, verified or not, as (rule, writer, text, failed)."""
        if action.problem:
            return
        kind, arguments = self.kind(action), action.arguments
        reader = self.readers.get(kind)
        if reader is not None and arguments is not None and len(arguments) == 1 and reader.argument in arguments:
            held = state.get("entities", {}).get(kind, {}).get(str(arguments[reader.argument]))
            if held is not None:
                yield "entity", held[1], FORMS[reader.form](held[0]), False
        said = state.get("replies", {}).get(action.text)
        if said is not None:
            yield ("refusal" if said["failed"] else "repeat"), "", said["text"], said["failed"]
        yield from self._known_effects(state, kind, arguments)
        if kind in self.sums and arguments is not None:
            value = self.sums[kind].reply(arguments)
            if value is not None:
                yield "arithmetic", "", value, False
        if kind in self.constants:
            yield "constant", "", *self.constants[kind]
        known = self.shared.get(action.text)
        if known is not None and self._untouched(state, kind, arguments):
            yield "shared", ("fails" if known[1] else ""), *known

    def _known_effects(
        self, state: State, kind: str, arguments: Mapping[str, Any] | None
    ) -> Iterator[tuple[str, str, str, bool]]:
        """What a call does to a document that is known, or known to be none."""
        if arguments is None:
            return
        effect, none = self.effects.get(kind), self.unknown.get(kind)
        if effect is not None and (id := effect.id(arguments)) is not None:
            held = state.get("entities", {}).get(effect.reader, {}).get(id)
            said = None if held is None else effect.answer(held[0], arguments)
            if said is not None:
                yield "effect", ("fails" if said[1] else "writes"), *said
        if none is not None and str(arguments.get(none.argument)) in state.get("missing", {}).get(none.reader, ()):
            text = fill(none.text, arguments)
            if text is not None:
                yield "unknown", "", text, True

    def _untouched(self, state: State, kind: str, arguments: Mapping[str, Any] | None) -> bool:
        """Whether nothing was written that may have changed what a call reads."""
        written = state.get("written")
        if not written:
            return True
        values = leaves(arguments)
        return all(
            (writer, kind, "same" if not touched.isdisjoint(values) else "apart") in self.keeps
            for writer, touched in ((w, frozenset(v)) for w, v in written.items())
        )

    # ------------------------------------------------------------------ records

    def describe(self) -> list[dict[str, Any]]:
        """Every rule with its evidence, those that are used first, as JSON-ready records for the report."""
        order = sorted(self.evidence, key=lambda e: (not e.used, e.rule, -e.support, e.kind, e.by))
        return [asdict(e) for e in order]

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "plain": self.plain,
            "reads": sorted(self.reads),
            "keeps": sorted(map(list, self.keeps)),
            "readers": {kind: asdict(reader) for kind, reader in self.readers.items()},
            "views": dict(self.views),
            "holds": {kind: [[list(place), reader] for place, reader in held] for kind, held in self.holds.items()},
            "effects": {kind: effect.to_json() for kind, effect in self.effects.items()},
            "unknown": {kind: asdict(value) for kind, value in self.unknown.items()},
            "sums": {kind: asdict(value) for kind, value in self.sums.items()},
            "constants": {kind: list(value) for kind, value in self.constants.items()},
            "shared": {text: list(value) for text, value in self.shared.items()},
            "allowed": None if self.allowed is None else [[*key, sure] for key, sure in sorted(self.allowed.items())],
            "evidence": [asdict(e) for e in self.evidence],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> StateRules:
        """Inverse of `to_json`."""
        allowed, sums = record["allowed"], record["sums"]
        return cls(
            plain=record["plain"],
            reads=frozenset(record["reads"]),
            keeps=frozenset((w, r, how) for w, r, how in record["keeps"]),
            readers={
                k: Reader(v["argument"], v["field"], v["form"], tuple(v["keys"])) for k, v in record["readers"].items()
            },
            views=dict(record["views"]),
            holds={k: tuple((tuple(place), reader) for place, reader in v) for k, v in record["holds"].items()},
            effects={k: Effect.from_json(v) for k, v in record["effects"].items()},
            unknown={k: Unknown(**v) for k, v in record["unknown"].items()},
            sums={
                k: Sum(**{**v, "arguments": tuple(v["arguments"]), "forms": tuple(v["forms"])}) for k, v in sums.items()
            },
            constants={k: (v[0], v[1]) for k, v in record["constants"].items()},
            shared={k: (v[0], v[1]) for k, v in record["shared"].items()},
            allowed=None if allowed is None else {(rule, kind, by): sure for rule, kind, by, sure in allowed},
            evidence=tuple(Evidence(**e) for e in record["evidence"]),
        )


def _entry(reply: Reply, kind: str, values: Sequence[str]) -> dict[str, Any]:
    return {"text": reply.text, "failed": reply.failed, "kind": kind, "on": list(values)}


def facts_of(episode: LoggedEpisode, rules: StateRules) -> list[tuple[Action, Reply]]:
    """What a recording says of its world: its reads made before anything was written, each call once."""
    out: dict[str, tuple[Action, Reply]] = {}
    errors = frozenset(episode.errors)
    for t, (text, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
        action = Action(text) if rules.plain else parse(text)[0]
        if action.problem:
            continue
        failed = t in errors
        if rules.kind(action) in rules.reads:
            out.setdefault(action.text, (action, Reply(reply, failed, origin="recorded")))
        elif not failed:
            break
    return list(out.values())
