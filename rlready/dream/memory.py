"""What the experience model is grounded in: recorded transitions, and its own finished dreams beside them.

The memory turns annotated episodes into retrievable cases and answers "what came back when this was done in a
situation like this". Its contents are fixed between two calls of `commit`, so that within one round of rollouts the
same actions get the same demonstrations: dreams that end meanwhile are staged, and join (within quota, oldest
evicted) at the next commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlready.dream.format import Annotation, DreamFormat, open_before, verdict_reply
from rlready.experience.episode import LoggedEpisode
from rlready.experience.retrieve import Case, Encoder, Query, Retriever
from rlready.experience.store import SYNTHETIC, ExperienceStore, episode_id

Demos = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Notes:
    """A plain annotation: words of the hidden start, and of the reasoning per action."""

    card: Sequence[str]
    traces: Sequence[Sequence[str]]


class DreamMemory:
    """Cases for retrieval, kept in an experience store.

    Attributes:
        coevolve: whether finished dreams become cases.
        exclude_task: whether a query is kept from all cases of its own task, not only from its own trajectory.
        max_synthetic: dreams kept; the oldest go first.
        version: policy version that is dreaming now; stamped on the dreams.
    """

    def __init__(
        self,
        form: DreamFormat,
        *,
        store: ExperienceStore | None = None,
        encoder: Encoder | None = None,
        coevolve: bool = True,
        exclude_task: bool = True,
        max_synthetic: int = 1000,
    ) -> None:
        """Index what the store holds already (entries without an annotation in their notes are left out)."""
        self.form = form
        self.store = store if store is not None else ExperienceStore()
        self.coevolve = coevolve
        self.exclude_task = exclude_task
        self.max_synthetic = max_synthetic
        self.retriever = Retriever(encoder, isolated=(form.closing,))
        self.version = 0
        self._staged: list[tuple[LoggedEpisode, Notes]] = []
        self._found: dict[tuple[str, str, str | None], Demos] = {}  # since the cases last changed
        cases: list[Case] = []
        for entry in self.store:
            if "card" in entry.notes:
                notes = Notes(entry.notes["card"], entry.notes["traces"])
                cases += cases_of(form, entry.id, entry.episode, notes)
        self.retriever.add(cases)

    def seed(self, episodes: Sequence[LoggedEpisode], annotations: Sequence[Annotation]) -> int:
        """Add recorded episodes; return how many distinct cases that gave."""
        cases: list[Case] = []
        for episode, annotation in zip(episodes, annotations, strict=True):
            id = self.store.append(episode, _json(annotation))
            if id is not None:
                cases += cases_of(self.form, id, episode, annotation)
        self._found = {}
        return self.retriever.add(cases)

    def demos(self, instruction: str, now: Sequence[str], replies: Sequence[str], action: str, task: str) -> Demos:
        """Recorded (action, reply) pairs like this situation, best first.

        Args:
            instruction: of the task.
            now: the present trace (the card at the start).
            replies: what came back so far.
            action: what is being done.
            task: id of the task, whose own cases stay out where `exclude_task` says so.
        """
        if not self.form.demos:
            return []
        own = task if self.exclude_task else None
        key = (self.form.key(instruction, now, replies), action, own)
        found = self._found.get(key)
        if found is None:
            hits = self.retriever.topk(key[0], action, self.form.demos, task=own)
            found = self._found[key] = [(hit.case.action, hit.case.reply) for hit in hits]
        return found

    def demos_for(self, episodes: Sequence[LoggedEpisode], annotations: Sequence[Annotation]) -> list[list[Demos]]:
        """The demos of every step of recorded episodes, each without its own trajectory (and task)."""
        if not self.form.demos:
            return [[[] for _ in e.actions] for e in episodes]
        queries: list[Query] = []
        for episode, annotation in zip(episodes, annotations, strict=True):
            own = episode_id(episode)
            task = episode.task_id if self.exclude_task else None
            queries += [Query(c.state, c.action, own, task) for c in cases_of(self.form, own, episode, annotation)]
        found = iter(self.retriever.search(queries, self.form.demos))
        return [
            [[(h.case.action, h.case.reply) for h in next(found)] if a in self.form.known else [] for a in e.actions]
            for e in episodes
        ]

    def stage(self, episode: LoggedEpisode, notes: Notes) -> None:
        """Keep a finished dream for the next commit."""
        if self.coevolve:
            self._staged.append((episode, notes))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within, finished dreams are forgotten: those of a check or an evaluation do not join the memory."""
        staged, self._staged = self._staged, []
        try:
            yield
        finally:
            self._staged = staged

    def state_dict(self) -> dict[str, Any]:
        """The dreams that joined, oldest first, and the staged ones; what was recorded is not part of it."""
        dreams = [e for e in self.store if e.episode.source == SYNTHETIC]
        return {
            "version": self.version,
            "dreams": [[e.id, e.episode.to_json(), dict(e.notes)] for e in dreams],
            "staged": [[episode.to_json(), _json(notes)] for episode, notes in self._staged],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the dreams back, in place of those there are."""
        self._staged = [(LoggedEpisode.from_json(record), Notes(**notes)) for record, notes in state["staged"]]
        self._found = {}
        self.version = int(state["version"])
        self.retriever.remove(self.store.evict(0, source=SYNTHETIC))
        for id, record, notes in state["dreams"]:
            episode = LoggedEpisode.from_json(record)
            self.store.append(episode, notes, id=id)
            self.retriever.add(cases_of(self.form, id, episode, Notes(notes["card"], notes["traces"])))

    def commit(self, version: int | None = None) -> dict[str, float]:
        """Let the staged dreams join, evict the oldest beyond the quota; return counts to log.

        Args:
            version: of the policy that dreams from now on.
        """
        if version is not None:
            self.version = version
        added = 0
        self._found = {}
        # Rollouts end in any order; what the memory holds must not depend on it.
        for episode, notes in sorted(self._staged, key=lambda pair: episode_id(pair[0])):
            id = self.store.append(episode, _json(notes))
            if id is not None:
                added += self.retriever.add(cases_of(self.form, id, episode, notes))
        staged = len(self._staged)
        self._staged = []
        evicted = self.store.evict(self.max_synthetic, source=SYNTHETIC)
        self.retriever.remove(evicted)
        return {
            "memory/staged": float(staged),
            "memory/new_cases": float(added),
            "memory/evicted": float(len(evicted)),
            "memory/cases": float(len(self.retriever)),
        }


def cases_of(form: DreamFormat, id: str, episode: LoggedEpisode, annotation: Annotation) -> list[Case]:
    """One case per step of an episode; the closing action's reply is its verdict."""
    cases = []
    for t, action, truth in form.steps(episode, annotation):
        state = form.key(episode.instruction, open_before(annotation, t), episode.replies[:t])
        reply = truth.reply if truth.verdict is None else verdict_reply(truth.verdict)
        cases.append(Case(state, action, reply, id, episode.task_id, episode.source))
    return cases


def _json(annotation: Annotation) -> dict[str, list[str] | list[list[str]]]:
    return {"card": list(annotation.card), "traces": [list(t) for t in annotation.traces]}
