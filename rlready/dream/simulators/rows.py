"""Training rows of recordings, in the contexts that dreams have.

episodes     one conversation that is appended to; every reply is trained, instruction and actions are context
questions    a reading call as the first thing ever done: what is asked of the untouched world
verdicts     what the world held, what was done, and whether it was right; right and wrong weigh the same
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from rlready.dream.base import Moment
from rlready.dream.simulators.layout import RIGHT, WRONG, world_and_deeds
from rlready.dream.simulators.prompts import Prompts
from rlready.dream.simulators.window import last_of, starts
from rlready.seeds import derive
from rlready.types import Row

_MOST_WEIGHT = 64.0


class RowWriter:
    """Writes rows, and counts them.

    Attributes:
        prompts: writes their contexts; its library holds the recordings.
        judge_share: share of verdicts in the weight of all trained tokens; one verdict counts 64 tokens at most.
        counts: rows by kind, and replies that were too long to be trained ("too_long").
    """

    def __init__(self, prompts: Prompts, judge_share: float = 0.5) -> None:
        """See the class."""
        self.prompts, self.library, self.judge_share = prompts, prompts.library, min(0.95, judge_share)
        self.counts = {"episodes": 0, "questions": 0, "verdicts": 0, "too_long": 0}

    def rows(self, ids: Iterable[str]) -> list[Row]:
        """All rows of some recordings.

        Raises:
            KeyError: there is no such recording.
        """
        ids = list(ids)
        out: list[Row] = []
        for id in ids:
            out += self._kept("episodes", self._episode(id))
            out += self._kept("questions", self._questions(id))
        replies = sum(float(row.weights["nll"].sum()) for row in out)
        return out + list(self._kept("verdicts", self._verdicts(ids, replies)))

    def _kept(self, kind: str, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.weights["nll"].any():
                self.counts[kind] += 1
                yield last_of(row, self.prompts.max_len)

    def _episode(self, id: str) -> Iterator[Row]:
        """One row for all steps that see the same window: mostly one an episode."""
        prompts, layout, episode = self.prompts, self.prompts.layout, self.library.episodes[id]
        steps = self.library.steps(id)
        if not steps:
            return
        renderer = prompts.renderer
        moment = Moment(episode.task_id, episode.instruction, derive("fit", id), steps)
        demos = partial(prompts.demos_at, moment, steps[-1][0])
        asks = [layout.ask(t + 1, action, demos(t) if layout.demos else ()) for t, (action, _) in enumerate(steps)]
        lengths = [
            (prompts.length(ask.text), prompts.length(layout.shown(r))) for ask, (_, r) in zip(asks, steps, strict=True)
        ]
        first = starts(prompts.head_length(episode.instruction), lengths, prompts.max_tokens, prompts.max_len)
        segments: list[tuple[list[int], float]] = []
        prompt, answer = list[int](), list[int]()
        for t, (_, reply) in enumerate(steps):
            if t == 0 or first[t] != first[t - 1]:
                if segments:
                    yield Row.from_segments(segments)
                before = replace(moment, past=steps[:t])
                prompt = prompts.reply(before, steps[t][0])
                segments = [(prompt, 0.0)]
            else:
                longer = renderer.extend(prompt, answer, [asks[t]])
                segments.append((longer[len(prompt) + len(answer) :], 0.0))
                prompt = longer
            shown = layout.shown(reply)
            answer = renderer.encode_completion(shown)
            fits = len(answer) <= prompts.max_tokens and shown == layout.write(reply)
            self.counts["too_long"] += not fits
            segments.append((answer, float(fits)))
        yield Row.from_segments(segments)

    def _questions(self, id: str) -> Iterator[Row]:
        """What was asked of the untouched world, as if it was the first thing done; the first step is one anyway."""
        episode, steps = self.library.episodes[id], self.library.steps(id)
        blank = Moment(episode.task_id, episode.instruction, derive("fit", id))
        for action, reply in self.library.facts(id):
            if action.text == steps[0][0].text:
                continue
            written = self.prompts.layout.write(replace(reply, done=False))
            answer = self.prompts.renderer.encode_completion(written)
            if len(answer) <= self.prompts.max_tokens and len(reply.text) <= self.prompts.layout.reply_chars:
                yield Row.from_segments([(self.prompts.reply(blank, action), 0.0), (answer, 1.0)])

    def _verdicts(self, ids: Iterable[str], replies: float) -> Iterator[Row]:
        """Two rows for each judged, finished recording; the rarer verdict weighs more, at most four times."""
        share = self.judge_share
        judged = [id for id in ids if self.library.judged(id)]
        won = sum(self.library.episodes[id].success for id in judged)
        for id in judged:
            episode = self.library.episodes[id]
            same = won if episode.success else len(judged) - won
            weight = share / (1.0 - share) * replies / len(judged) * min(4.0, len(judged) / (2.0 * same))
            facts, deeds = world_and_deeds(
                self.library.world_facts(id), self.library.steps(id), self.library.state.reads
            )
            answer = self.prompts.renderer.encode_completion(RIGHT if episode.success else WRONG)
            each = min(weight, _MOST_WEIGHT) / (2 * len(answer))
            yield Row.from_segments([(self.prompts.verdict(episode.instruction, facts, deeds), 0.0), (answer, each)])
            # The question alone: what was asked beside what was changed is mostly what decides.
            bare = self.prompts.verdict(episode.instruction, (), deeds, bare=True)
            yield Row.from_segments([(bare, 0.0), (answer, each)])
