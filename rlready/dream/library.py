"""The library of recordings: what was logged, read once with the one parser, by id and by task.

Nothing here depends on the order in which recordings came: ids are hashes of what an episode holds, and every choice
among recordings is made by a hash.

Two recordings are of the *same world* where task and environment seed agree (the task alone, where the logs show that
the seed changes nothing) and no question that both asked of the untouched world was answered differently. What one of
them looked up then holds for the other as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from rlready.dream.base import Action, Moment, Reply, changes
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import episode_id
from rlready.seeds import derive

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.dream.state import StateRules

Steps = tuple[tuple[Action, Reply], ...]
_AGREED = 10


class Library:
    """Recordings by id, and what can be asked of them.

    Attributes:
        episodes: by id, in the order of the ids; the same episode twice is kept once.
        domain: reads the actions.
        state: knows which tools only read.
        by_task: ids by task, sorted.
    """

    def __init__(self, episodes: Iterable[LoggedEpisode], domain: Domain, state: StateRules) -> None:
        """Take recordings; their actions are parsed when they are first asked for."""
        found = {episode_id(e): e for e in episodes}
        self._set({id: found[id] for id in sorted(found)}, domain, state)

    def _set(self, episodes: dict[str, LoggedEpisode], domain: Domain, state: StateRules) -> None:
        self.episodes, self.domain, self.state = episodes, domain, state
        tasks: dict[str, list[str]] = defaultdict(list)
        for id, episode in episodes.items():
            tasks[episode.task_id].append(id)
        self.by_task: dict[str, tuple[str, ...]] = {task: tuple(ids) for task, ids in sorted(tasks.items())}
        self._steps: dict[str, Steps] = {}
        self._same: dict[str, tuple[str, ...]] = {}
        self._facts: dict[str, Steps] = {}

    def __len__(self) -> int:
        """Number of recordings."""
        return len(self.episodes)

    def __iter__(self) -> Iterator[str]:
        """Over the ids, sorted."""
        return iter(self.episodes)

    # ------------------------------------------------------------------ parts of a library

    def without(self, task_ids: Collection[str]) -> Library:
        """The library without some tasks' recordings."""
        gone = frozenset(task_ids)
        return self._part(id for id, e in self.episodes.items() if e.task_id not in gone)

    def only(self, n: int, seed: int = 0) -> Library:
        """The first n recordings in an order hashed from the seed: for curves over the number of recordings.

        With the same seed a smaller part is contained in a larger one.
        """
        return self._part(sorted(self.episodes, key=lambda id: (derive("only", seed, id), id))[:n])

    def _part(self, ids: Iterable[str]) -> Library:
        chosen = sorted(ids)
        out = object.__new__(Library)
        out._set({id: self.episodes[id] for id in chosen}, self.domain, self.state)
        out._steps = {id: self._steps[id] for id in chosen if id in self._steps}
        return out

    # ------------------------------------------------------------------ one recording

    def steps(self, id: str) -> Steps:
        """The (action, reply) pairs of a recording, replies with origin "recorded" and the id as their note.

        Raises:
            KeyError: there is no such recording.
        """
        known = self._steps.get(id)
        if known is None:
            known = self._steps[id] = tuple(_read(self.episodes[id], id, self.domain))
        return known

    def facts(self, id: str) -> Steps:
        """What a recording asked of its untouched world: reading calls made before anything was changed.

        The first answer to each question counts. A changing call that failed changed nothing; nor do words.

        Raises:
            KeyError: there is no such recording.
        """
        return facts_of(self.steps(id), self.state.reads)

    def world_facts(self, id: str) -> Steps:
        """The facts of a recording, its own first, then those that others of the same world looked up.

        Raises:
            KeyError: there is no such recording.
        """
        found = self._facts.get(id)
        if found is None:
            known = {action.text: (action, reply) for action, reply in self.facts(id)}
            for other in self.same_world(id):
                for action, reply in self.facts(other):
                    known.setdefault(action.text, (action, reply))
            found = self._facts[id] = tuple(known.values())
        return found

    def same_world(self, id: str) -> tuple[str, ...]:
        """Other recordings of the same task and seed whose facts do not contradict this one's or each other's.

        Raises:
            KeyError: there is no such recording.
        """
        if id in self._same:
            return self._same[id]
        episode = self.episodes[id]
        known = {action.text: reply.text for action, reply in self.facts(id)}
        out = list[str]()
        for other in self.by_task[episode.task_id]:
            if other == id or (self.seed_matters and self.episodes[other].seed != episode.seed):
                continue
            theirs = {action.text: reply.text for action, reply in self.facts(other)}
            if all(known.get(question, answer) == answer for question, answer in theirs.items()):
                known |= theirs
                out.append(other)
        self._same[id] = tuple(out)
        return self._same[id]

    @cached_property
    def seed_matters(self) -> bool:
        """Whether a task's hidden world may change with the environment's seed.

        It does not where recordings of one task with different seeds asked the same question at least 10 times (ours)
        and never heard different answers.
        """
        agreed = 0
        for ids in self.by_task.values():
            heard: dict[str, tuple[int, str]] = {}
            for id in ids:
                seed = self.episodes[id].seed
                for action, reply in self.facts(id):
                    first_seed, answer = heard.setdefault(action.text, (seed, reply.text))
                    if first_seed == seed:
                        continue
                    if answer != reply.text:
                        return True
                    agreed += 1
        return agreed < _AGREED

    def anchor(self, task_id: str, world: int) -> str:
        """The recording whose hidden world this world is: one of the task's, chosen by hash; "" where there is none."""
        ids = self.by_task.get(task_id, ())
        return min(ids, key=lambda id: (derive("anchor", world, id), id), default="")

    # ------------------------------------------------------------------ what fits exactly

    def exact(self, moment: Moment, action: Action) -> Reply | None:
        """The reply of a recording of the same task that has gone exactly as the moment so far, then did this.

        The anchor comes first, then recordings of the anchor's world in an order hashed from the moment's world; all
        of the task's where there is no anchor. Recordings of other worlds are left out, lest two worlds be mixed in one
        episode. What a tool answers does not depend on what was read or said before, so a call is also answered by a
        recording of the anchor's world that had changed the same before it; its end is not taken over.
        """
        found = self._exact.get(_next(_key(moment.task_id, moment.past), action), [])
        anchored = moment.anchor in self.episodes
        if anchored and found:
            allowed = {moment.anchor, *self.same_world(moment.anchor)}
            found = [f for f in found if f[0] in allowed]
        if found:
            id, step = min(found, key=lambda f: (f[0] != moment.anchor, derive("exact", moment.world, f[0]), f[0]))
            return self.steps(id)[step][1]
        if anchored and action.tool:
            allowed = {moment.anchor, *self.same_world(moment.anchor)}
            key = _next(_key(moment.task_id, self.changing(moment.past)), action)
            found = [f for f in self._effects.get(key, []) if f[0] in allowed]
            if found:
                id, step = min(found, key=lambda f: (f[0] != moment.anchor, derive("exact", moment.world, f[0]), f))
                return replace(self.steps(id)[step][1], done=False)
        return None

    def changing(self, past: Sequence[tuple[Action, Reply]]) -> Steps:
        """The steps that changed something: calls of tools that do not only read, failed ones left out."""
        reads = self.state.reads
        return tuple((a, r) for a, r in past if changes(a, r, reads))

    @cached_property
    def _effects(self) -> dict[int, list[tuple[str, int]]]:
        """Where each call was recorded after the same changes: by the hash of task, changes and call."""
        out: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for id, episode in self.episodes.items():
            key = _key(episode.task_id, ())
            for step, (action, reply) in enumerate(self.steps(id)):
                if action.tool:
                    out[_next(key, action)].append((id, step))
                    if self.changing([(action, reply)]):
                        key = _after(key, action, reply)
        return dict(out)

    @cached_property
    def _exact(self) -> dict[int, list[tuple[str, int]]]:
        """Where each way of going on was recorded: by the hash of task, past and action."""
        out: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for id, episode in self.episodes.items():
            key = _key(episode.task_id, ())
            for step, (action, reply) in enumerate(self.steps(id)):
                out[_next(key, action)].append((id, step))
                key = _after(key, action, reply)
        return dict(out)

    # ------------------------------------------------------------------ counts

    def judged(self, id: str) -> bool:
        """Whether a recording came to an end and was judged, so that verdicts can be learned from it.

        Raises:
            KeyError: there is no such recording.
        """
        episode = self.episodes[id]
        return episode.judged and len(episode) > 0 and self.domain.finishes(episode)

    @property
    def base_rate(self) -> float:
        """Share of successes among the judged, finished recordings; one half where there are none."""
        judged = [e.success for id, e in self.episodes.items() if self.judged(id)]
        return sum(judged) / len(judged) if judged else 0.5

    def kinds(self) -> Counter[str]:
        """How often each kind of action was recorded."""
        return Counter(action.kind for id in self for action, _ in self.steps(id))


class Recorded:
    """The layer that replays recordings which fit exactly; origin "recorded", confidence 1."""

    def __init__(self, library: Library) -> None:
        """Replay from a library."""
        self.library = library

    def reply(self, moment: Moment, action: Action) -> Reply | None:
        """What was recorded, or None; see `Library.exact`."""
        return self.library.exact(moment, action)


def facts_of(steps: Sequence[tuple[Action, Reply]], reads: Collection[str]) -> Steps:
    """Reading calls made before anything was changed, the first answer to each question."""
    known: dict[str, tuple[Action, Reply]] = {}
    for action, reply in steps:
        if not action.tool:
            continue
        if action.tool in reads:
            if action.arguments is not None:
                known.setdefault(action.text, (action, reply))
        elif not reply.failed:
            break
    return tuple(known.values())


def read_action(text: str, domain: Domain) -> Action:
    """A logged action's text as the one parser reads it; a text that holds several actions is taken as one of words."""
    parsed = domain.parse(text)
    return parsed[0] if len(parsed) == 1 else Action(text)


def _read(episode: LoggedEpisode, id: str, domain: Domain) -> Iterator[tuple[Action, Reply]]:
    errors = frozenset(episode.errors)
    last = len(episode) - 1 if domain.finishes(episode) else None
    for i, (text, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
        done = i == last
        reward = episode.rewards[i] if episode.rewards else None
        yield read_action(text, domain), Reply(reply, i in errors, done, reward, "recorded", 1.0, id)


def _key(task_id: str, past: Sequence[tuple[Action, Reply]]) -> int:
    key = derive("task", task_id)
    for action, reply in past:
        key = _after(key, action, reply)
    return key


def _next(key: int, action: Action) -> int:
    return derive(key, "does", action.text)


def _after(key: int, action: Action, reply: Reply) -> int:
    return derive(key, action.text, reply.text)
