"""Teachers that write the card and the reasoning traces of logged episodes: a program, or a large language model.

A trace may use only what could be known before the outcome. A program keeps to that by construction; a language model
is shown the true outcome to explain it, so traces that merely quote it are refused and asked for again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlready.aio import run_sync
from rlready.dream.format import Annotation, Unparsable
from rlready.dream.memory import Notes
from rlready.dream.roles import Template
from rlready.endpoint import Endpoint, Writer
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive, rng

GIVEAWAYS = ("recorded next state", "recorded outcome", "recorded reward", "was given", "as given", "true next state")


class Annotator(Protocol):
    """Annotates logs. None where no acceptable annotation was found; such an episode is left out and counted."""

    def annotate(self, episodes: Sequence[LoggedEpisode]) -> list[Annotation | None]:
        """One annotation per episode, in order."""
        ...


class Hindsight(Protocol):
    """A world's own program that reads a log in hindsight."""

    def annotate(self, episode: LoggedEpisode, rng: random.Random) -> Annotation:
        """Infer the hidden start and follow it through the episode."""
        ...


class ProgramAnnotator:
    """A world's hindsight program; what it must guess is drawn from noise hashed from (seed, episode)."""

    def __init__(self, hindsight: Hindsight, *, seed: int = 0) -> None:
        """Take a fitted program."""
        self.hindsight = hindsight
        self.seed = seed

    def annotate(self, episodes: Sequence[LoggedEpisode]) -> list[Annotation | None]:
        """One annotation per episode, in order."""
        return [
            self.hindsight.annotate(e, rng(self.seed, "annotate", i, e.task_id, e.seed)) for i, e in enumerate(episodes)
        ]


def paired(
    episodes: Sequence[LoggedEpisode], annotations: Sequence[Annotation | None]
) -> tuple[list[LoggedEpisode], list[Annotation]]:
    """The episodes that got an annotation, and those."""
    kept = [(e, a) for e, a in zip(episodes, annotations, strict=True) if a is not None]
    return [e for e, _ in kept], [a for _, a in kept]


@dataclass
class AnnotationReport:
    """What became of the steps that a language model was asked about."""

    steps: int = 0
    unparsable: int = 0
    quoting: int = 0
    strange_words: int = 0
    episodes_left_out: int = 0


@dataclass
class EndpointAnnotator:
    """A language model as teacher.

    Attributes:
        writer: the model; `EndpointAnnotator.at(base_url, model)` makes one.
        template: of the role "annotator".
        world: template of the role "world", which asks for the card; None leaves cards empty.
        words: where given, cards and traces may consist of these words only (a small model learns no others).
        attempts: tries per trace.
        report: counts so far.
    """

    writer: Writer
    template: Template = field(default_factory=lambda: Template.load("annotator"))
    world: Template | None = field(default_factory=lambda: Template.load("world"))
    words: Sequence[str] | None = None
    attempts: int = 3
    report: AnnotationReport = field(default_factory=AnnotationReport)

    @classmethod
    def at(cls, base_url: str, model: str, *, words: Sequence[str] | None = None) -> EndpointAnnotator:
        """A teacher behind an OpenAI-compatible endpoint."""
        return cls(Endpoint(base_url, model), words=words)

    def annotate(self, episodes: Sequence[LoggedEpisode]) -> list[Annotation | None]:
        """One annotation per episode, in order.

        Raises:
            UserError: the endpoint fails for good.
        """
        return run_sync(self.annotate_all(episodes))

    async def annotate_all(self, episodes: Sequence[LoggedEpisode]) -> list[Annotation | None]:
        """`annotate` for those who have an event loop already."""
        try:
            async with asyncio.TaskGroup() as together:
                tasks = [together.create_task(self._episode(e)) for e in episodes]
        except ExceptionGroup as group:  # not except*: what is raised there comes wrapped in a group on early 3.11
            mistakes, _ = group.split(UserError)
            if mistakes is None:
                raise
            raise _first(mistakes) from None
        finally:
            if isinstance(self.writer, Endpoint):
                await self.writer.close()
        out: list[Annotation | None] = [task.result() for task in tasks]
        self.report.episodes_left_out += sum(a is None for a in out)
        return out

    async def _episode(self, episode: LoggedEpisode) -> Notes | None:
        steps = [self._trace(episode, t) for t in range(len(episode.actions))]
        card, *traces = await asyncio.gather(self._card(episode), *steps)
        if card is None or any(t is None for t in traces):
            return None
        return Notes(card, tuple(t for t in traces if t is not None))

    async def _card(self, episode: LoggedEpisode) -> tuple[str, ...] | None:
        if self.world is None:
            return ()
        prompt = self.world.render(
            instruction=episode.instruction,
            trajectory=history(episode, len(episode.actions)),
            outcome="success" if episode.success else "failure" if episode.finished else "not closed",
            vocabulary=self._limits(),
        )
        for attempt in range(self.attempts):
            text = await self.writer.write(prompt, seed=derive(episode.task_id, episode.seed, "card", attempt))
            words = self._accept(self.world, text, "card")
            if words is not None and len(set(words)) == len(words):
                return words
        return None

    async def _trace(self, episode: LoggedEpisode, t: int) -> tuple[str, ...] | None:
        ends = episode.finished and t == len(episode.actions) - 1
        next_state = episode.replies[t] or "(the episode ends)"
        state = episode.replies[t - 1] if t else "(the start)"
        before = history(episode, t)
        prompt = self.template.render(
            instruction=episode.instruction,
            history=before or "(nothing yet)",
            state=state,
            action=episode.actions[t],
            next_state=next_state,
            reward=str(int(ends and episode.success)),
            vocabulary=self._limits(),
        )
        known = " ".join((episode.instruction, before, state, episode.actions[t]))
        self.report.steps += 1
        for attempt in range(self.attempts):
            text = await self.writer.write(prompt, seed=derive(episode.task_id, episode.seed, t, attempt))
            words = self._accept(self.template, text, "think")
            if words is None:
                continue
            if quotes_outcome(" ".join(words), next_state, known):
                self.report.quoting += 1
                continue
            return words
        return None

    def _accept(self, template: Template, text: str, tag: str) -> tuple[str, ...] | None:
        try:
            words = tuple(template.read(text)[tag].split())
        except Unparsable:
            self.report.unparsable += 1
            return None
        if self.words is not None and not set(self.words).issuperset(words):
            self.report.strange_words += 1
            return None
        return words

    def _limits(self) -> str:
        if self.words is None:
            return ""
        return "Use only these words, separated by spaces; write nothing where none applies: " + " ".join(self.words)


def history(episode: LoggedEpisode, steps: int) -> str:
    """The first steps of an episode, numbered, one line each for action and reply."""
    pairs = zip(episode.actions[:steps], episode.replies[:steps], strict=True)
    return "\n".join(f"{i}. action: {a}\n   reply: {r or '(none)'}" for i, (a, r) in enumerate(pairs, 1))


def quotes_outcome(trace: str, outcome: str, known: str, *, most: float = 0.5) -> bool:
    """Whether a trace merely repeats the outcome instead of reasoning towards it.

    That is: more than `most` of its words lie in runs of three or more (or the whole outcome, where that is shorter)
    that also occur in the outcome and not in what was known before; or it says that the outcome was shown.
    """
    words, goal, context = (_plain(t) for t in (trace, outcome, known))
    text = " ".join(words)
    if any(phrase in text for phrase in GIVEAWAYS):
        return True
    run = min(3, len(goal))
    if not words or not run:
        return False
    there = {tuple(goal[i : i + run]) for i in range(len(goal) - run + 1)}
    before = {tuple(context[i : i + run]) for i in range(len(context) - run + 1)}
    covered = [False] * len(words)
    for i in range(len(words) - run + 1):
        gram = tuple(words[i : i + run])
        if gram in there and gram not in before:
            covered[i : i + run] = [True] * run
    return sum(covered) > most * len(words)


def _plain(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() or c in "_-" else " " for c in text).split()


def _first(group: BaseExceptionGroup[UserError]) -> UserError:
    """The first error of a group, however deep."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
