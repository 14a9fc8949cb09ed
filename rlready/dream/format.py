"""How an episode is written for the experience model: one growing sequence of words, whatever the domain.

    <s> instruction <card> card words <go>
    action ( demo <or> demo ) trace words <so> reply words <go>
    ...
    closing action ( ... ) trace words <so> <right>|<wrong> <end>

The *card* is the hidden world: what the model believes is so at the start. It is written by the model from the
instruction, once, and everything after it follows. The *trace* is the reasoning before each reply (for example, which
problems are still open). *Demos* are replies that were recorded in similar situations. Card, trace, reply and verdict
are trained; instruction, actions and demos are context. Everything is appended, so a sampler's prefix cache holds
through an episode.

Variations of tasks come from the same model: `<new> instruction <card> card <go> instruction <card> card <go>`, where
the second task is like the first and has one constraint more.

The fields `trace`, `card`, `demos` and `history` of `DreamFormat` are the ablations of the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from rlready.errors import UserError, did_you_mean
from rlready.experience.episode import LoggedEpisode
from rlready.types import Row

SPECIALS = ("<pad>", "<s>", "<new>", "<card>", "<go>", "(", "<or>", ")", "<so>", "<right>", "<wrong>", "<end>")
Segments = list[tuple[list[int], float]]


class Annotation(Protocol):
    """What a teacher says of an episode: the hidden start, and the reasoning before each reply.

    `traces[t]` belongs to action t; it may end before the closing action, which then repeats the last one.
    """

    @property
    def card(self) -> Sequence[str]:
        """Words of the hidden start."""
        ...

    @property
    def traces(self) -> Sequence[Sequence[str]]:
        """Words of the reasoning, one sequence per action."""
        ...


class Unparsable(Exception):
    """What the model wrote does not follow the layout; the text says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote after an action. `verdict` is None while the episode goes on."""

    trace: tuple[str, ...]
    reply: str
    verdict: bool | None = None


@dataclass(frozen=True)
class DreamFormat:
    """The words and the layout of one domain.

    Attributes:
        actions: every action's text (one word or several).
        closing: the action that ends an episode and is answered by the verdict.
        reply_words, note_words, instruction_words: what replies, cards and traces, and instructions may consist of.
        demos: how many recorded replies are shown before each answer; 0 for none.
        trace: write the reasoning before each reply.
        card: write the hidden start.
        history: how many earlier steps the model sees; None for all of them.
        demo_words: a demo is cut to this many words.
        open_ended: any step may end an episode (a world that sees success by itself), not only the closing action.
    """

    actions: tuple[str, ...]
    closing: str
    reply_words: tuple[str, ...]
    note_words: tuple[str, ...]
    instruction_words: tuple[str, ...]
    demos: int = 2
    trace: bool = True
    card: bool = True
    history: int | None = None
    demo_words: int = 12
    open_ended: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be read back.

        Raises:
            UserError: the closing action is no action, or a word of the domain is one of the layout's own.
        """
        if self.closing not in self.actions:
            raise did_you_mean("closing action", self.closing, self.actions)
        own = set(SPECIALS).intersection(self.words)
        if own:
            raise UserError(
                f"The words {sorted(own)} belong to the dream's layout; have the state mapper write others."
            )

    @classmethod
    def build(
        cls,
        actions: Iterable[str],
        closing: str,
        vocabulary: Iterable[str],
        episodes: Iterable[LoggedEpisode] = (),
        annotations: Iterable[Annotation] = (),
        **switches: Any,
    ) -> DreamFormat:
        """Collect the words: a world's vocabulary, and what the logs and their annotations add to it."""
        seen: set[str] = set()
        instructions: set[str] = set()
        notes: set[str] = set()
        for episode in episodes:
            instructions.update(episode.instruction.split())
            for reply in episode.replies:
                seen.update(reply.split())
        for annotation in annotations:
            notes.update(annotation.card, *annotation.traces)
        # A world's vocabulary lists the words of notes too; they are replies only where a reply had them.
        replies = ({word for text in vocabulary for word in text.split()} - notes) | seen
        return cls(
            tuple(actions), closing, _sorted(replies), _sorted(notes), _sorted(instructions | replies), **switches
        )

    # ------------------------------------------------------------------ words and ids

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word of the domain, sorted; ids follow the layout's own."""
        actions = {word for action in self.actions for word in action.split()}
        return _sorted(actions.union(self.reply_words, self.note_words, self.instruction_words))

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The token of every id."""
        return SPECIALS + self.words

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The id of every token."""
        return {token: i for i, token in enumerate(self.tokens)}

    @cached_property
    def _reply_ids(self) -> frozenset[int]:
        return frozenset(self.ids[w] for w in self.reply_words)

    @cached_property
    def _note_ids(self) -> frozenset[int]:
        return frozenset(self.ids[w] for w in self.note_words)

    @cached_property
    def known(self) -> frozenset[str]:
        """The actions, for a look-up."""
        return frozenset(self.actions)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: go on, or a verdict."""
        return (self.ids["<go>"], self.ids["<right>"], self.ids["<wrong>"])

    def encode(self, words: str | Iterable[str]) -> list[int]:
        """Ids of words.

        Raises:
            UserError: a word is not in the vocabulary.
        """
        try:
            return [self.ids[word] for word in (words.split() if isinstance(words, str) else words)]
        except KeyError as error:
            raise UserError(
                f"The experience model does not know the word {error.args[0]!r}. Add it to the world's vocabulary and "
                "fit the model again, or have the state mapper write a known word."
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids, the layout's own included; for people."""
        return " ".join(self.tokens[i] for i in ids)

    # ------------------------------------------------------------------ pieces

    def head(self, instruction: str) -> list[int]:
        """How every episode starts, up to where the card is to be written."""
        return [self.ids["<s>"], *self.encode(instruction), self.ids["<card>"]]

    def card_ids(self, card: Iterable[str]) -> list[int]:
        """The card as the model writes it."""
        return [*self.encode(card), self.ids["<go>"]]

    def ask(self, action: str, demos: Sequence[tuple[str, str]] = ()) -> list[int]:
        """An action and the demonstrations for it, up to where the answer is to be written.

        Args:
            action: the action's text.
            demos: recorded (action, reply) pairs, best first; the action is written where it is another one.
        """
        ids = self.encode(action)
        if self.demos:
            ids.append(self.ids["("])
            for i, (other, reply) in enumerate(demos[: self.demos]):
                ids += [self.ids["<or>"]] * (i > 0)
                ids += (self.encode(other) if other != action else []) + self._demo(reply)
        ids.append(self.ids[")"])
        return ids

    def answer(self, trace: Iterable[str], reply: str, verdict: bool | None = None) -> list[int]:
        """What the model is to write after an action."""
        ids = [*self.encode(trace), self.ids["<so>"]] if self.trace else []
        end = "<go>" if verdict is None else "<right>" if verdict else "<wrong>"
        return [*ids, *self.encode(reply), self.ids[end]]

    def recent(self, steps: Sequence[list[int]]) -> list[int]:
        """The earlier steps that the model sees, as one run of ids."""
        kept = steps if self.history is None else steps[max(0, len(steps) - self.history) :]
        return [i for step in kept for i in step]

    def _demo(self, reply: str) -> list[int]:
        verdict = {RIGHT: "<right>", WRONG: "<wrong>"}.get(reply)
        return [self.ids[verdict]] if verdict else self.encode(reply.split()[: self.demo_words])

    def key(self, instruction: str, open_now: Sequence[str], replies: Sequence[str]) -> str:
        """The text by which similar situations are found.

        With traces that is the instruction and the present trace; without them the instruction and the last two
        replies.
        """
        now = " ".join(open_now) if self.trace else " / ".join(replies[-2:])
        return f"{instruction} | {now}"

    # ------------------------------------------------------------------ reading what the model wrote

    def parse_card(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The card in a completion.

        Raises:
            Unparsable: it does not end, repeats a word, or holds anything but note words.
        """
        if not ids or ids[-1] != self.ids["<go>"]:
            raise Unparsable("the card does not end")
        body = ids[:-1]
        if not self._note_ids.issuperset(body):
            raise Unparsable(f"the card holds other words than notes: {self.decode(body)}")
        if len(set(body)) != len(body):
            raise Unparsable(f"the card repeats a word: {self.decode(body)}")
        return tuple(self.tokens[i] for i in body)

    def parse_answer(self, ids: Sequence[int], *, closing: bool) -> Answer:
        """The trace, reply and verdict in a completion.

        Raises:
            Unparsable: a part is missing, in the wrong place or made of the wrong words, or the verdict comes before
                the closing action.
        """
        so, go = self.ids["<so>"], self.ids["<go>"]
        if not ids or ids[-1] not in self.stop_ids:
            raise Unparsable("the answer does not end")
        body, trace = list(ids[:-1]), list[int]()
        if self.trace:
            if body.count(so) != 1:
                raise Unparsable(f"the answer has {body.count(so)} marks between trace and reply")
            at = body.index(so)
            trace, body = body[:at], body[at + 1 :]
        if not self._note_ids.issuperset(trace):
            raise Unparsable(f"the trace holds other words than notes: {self.decode(trace)}")
        if not self._reply_ids.issuperset(body):
            raise Unparsable(f"the reply holds other words than replies: {self.decode(body)}")
        ends = ids[-1] != go
        if closing and (body or not ends):
            raise Unparsable("the closing action was not answered by a verdict alone")
        if not closing and not body:
            raise Unparsable("nothing came back from an action")
        if not closing and ends and not self.open_ended:
            raise Unparsable("a verdict came before the closing action")
        verdict = ids[-1] == self.ids["<right>"] if ends else None
        return Answer(tuple(self.tokens[i] for i in trace), self.decode(body), verdict)

    def parse_task(self, ids: Sequence[int]) -> tuple[str, tuple[str, ...]]:
        """The instruction and card in a completion after `<new> ... <go>`.

        Raises:
            Unparsable: there is no instruction, or the card does not follow.
        """
        mark = self.ids["<card>"]
        if mark not in ids:
            raise Unparsable("the new task has no card")
        at = list(ids).index(mark)
        allowed = set(self.instruction_words)
        words = [self.tokens[i] for i in ids[:at]]
        if not words or not allowed.issuperset(words):
            raise Unparsable(f"the new instruction is empty or holds other words than instructions: {' '.join(words)}")
        return " ".join(words), self.parse_card(ids[at + 1 :])

    # ------------------------------------------------------------------ training rows

    def rows(
        self, episode: LoggedEpisode, annotation: Annotation, demos: Sequence[Sequence[tuple[str, str]]] | None = None
    ) -> list[Row]:
        """The training rows of an episode: one, or one per step where the history is limited.

        Args:
            episode: what was logged.
            annotation: its card and traces.
            demos: per action the recorded (action, reply) pairs to show.

        Raises:
            UserError: a reply before the closing action is empty, an action or word is unknown, or traces are missing.
        """
        steps = self._steps(episode, annotation, demos)
        head: Segments = [(self.head(episode.instruction), 0.0)]
        card = self.card_ids(annotation.card) if self.card else []
        if self.history is None:
            end = [self.ids["<end>"]] if episode.finished else []
            body = [part for ask, answer in steps for part in ((ask, 0.0), (answer, 1.0))]
            return [Row.from_segments([*head, (card, 1.0), *body, (end, 1.0)])]
        rows = []
        for t, (ask, answer) in enumerate(steps):
            before = self.recent([a + b for a, b in steps[:t]])
            rows.append(Row.from_segments([*head, (card, float(t == 0)), (before, 0.0), (ask, 0.0), (answer, 1.0)]))
        return rows

    def _steps(
        self, episode: LoggedEpisode, annotation: Annotation, demos: Sequence[Sequence[tuple[str, str]]] | None
    ) -> list[tuple[list[int], list[int]]]:
        if self.trace and len(annotation.traces) < len(episode.actions) - episode.finished:
            raise UserError(
                f"Task {episode.task_id}: the annotation has {len(annotation.traces)} traces for "
                f"{len(episode.actions)} actions. Annotate every step."
            )
        out = []
        for t, action, truth in self.steps(episode, annotation):
            ask = self.ask(action, demos[t] if demos is not None else ())
            out.append((ask, self.answer(truth.trace, truth.reply, truth.verdict)))
        return out

    def steps(self, episode: LoggedEpisode, annotation: Annotation) -> Iterator[tuple[int, str, Answer]]:
        """Number, action and true answer of every step the model is to learn.

        Texts that are no actions change nothing and are answered in code, so their steps are left out.

        Raises:
            UserError: a reply before the end is empty, or a step that does not close ends the episode.
        """
        last = len(episode.actions) - 1
        for t, (action, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
            if action not in self.known:
                continue
            ends = episode.finished and t == last
            if ends and action != self.closing and not self.open_ended:
                raise UserError(
                    f"Task {episode.task_id}: the episode ends with {action!r}, not with {self.closing!r}. "
                    "Set open_ended=True where the world ends episodes by itself."
                )
            if action != self.closing and not reply.split():
                raise UserError(
                    f"Task {episode.task_id}, step {t}: the reply to {action} is empty. "
                    "Have the state mapper say so in a word."
                )
            trace = tuple(trace_at(annotation, t)) if self.trace else ()
            verdict = episode.success if ends else None
            yield t, action, Answer(trace, "" if action == self.closing else reply, verdict)

    def task_row(self, seed: tuple[str, Sequence[str]], new: tuple[str, Sequence[str]]) -> Row:
        """The training row of a variation: from one (instruction, card) to one that is harder by a constraint."""
        context = self.vary(*seed)
        target = [*self.encode(new[0]), self.ids["<card>"], *self.card_ids(new[1])]
        return Row.from_segments([(context, 0.0), (target, 1.0)])

    def vary(self, instruction: str, card: Sequence[str]) -> list[int]:
        """The prompt that asks for a variation of a task."""
        return [self.ids["<new>"], *self.encode(instruction), self.ids["<card>"], *self.card_ids(card)]

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> DreamFormat:
        """Inverse of `to_json`."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return cls(**fields)


RIGHT = "(right)"
WRONG = "(wrong)"


def verdict_reply(success: bool) -> str:
    """How a verdict is recorded as the reply of a closing action, so that it can be retrieved like any other."""
    return RIGHT if success else WRONG


def trace_at(annotation: Annotation, t: int) -> Sequence[str]:
    """The trace of action t: its own, the last one where the annotation ends earlier, the card before any."""
    traces = annotation.traces
    return traces[t] if t < len(traces) else traces[-1] if traces else annotation.card


def open_before(annotation: Annotation, t: int) -> Sequence[str]:
    """What was known when action t was chosen: the trace of the step before, the card at the start."""
    return annotation.card if t == 0 else trace_at(annotation, t - 1)


def _sorted(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words)))
