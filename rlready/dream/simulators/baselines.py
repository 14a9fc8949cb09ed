"""The two baselines that every simulator is measured beside: the nearest recorded transition, and no change at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.library import Library
from rlready.dream.simulators.words import flat
from rlready.experience.retrieve import Case, Encoder, HashedEncoder, Query, Retriever


class NearestTransition:
    """The reply of the plain nearest recorded transition, word for word.

    State text (the instruction and the last reply) and action text are compared as one; kinds of action are not told
    apart and no values are put in. An episode is judged as the finished recording whose instruction and actions are
    nearest was.
    """

    name = "nearest"

    def __init__(self, library: Library, *, encoder: Encoder | None = None, exclude_own: bool = False) -> None:
        """Index a library; see `Retrieval` for `encoder` and `exclude_own`."""
        self.library, self.exclude_own = library, exclude_own
        coder = encoder or HashedEncoder(512)
        self._steps, self._ends = Retriever(coder), Retriever(coder)
        self._place: dict[tuple[str, str, str], int] = {}
        for id in library:
            episode, steps = library.episodes[id], library.steps(id)
            cases = []
            for t, (action, reply) in enumerate(steps):
                case = Case(_state(episode.instruction, steps[:t], action), "", reply.text, id, episode.task_id)
                self._place.setdefault((id, case.state, case.reply), t)
                cases.append(case)
            self._steps.add(cases)
            if library.judged(id):
                end = _all(episode.instruction, steps)
                self._ends.add([Case(end, "", f"{episode.success:d}", id, episode.task_id)])

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """The nearest recorded reply; the confidence is its likeness. Empty where nothing was recorded."""
        task = moment.task_id if self.exclude_own else None
        query = Query(_state(moment.instruction, moment.past, action), "", None, task)
        hits = self._steps.search([query], 1)[0]
        if not hits:
            return Reply("", origin="nearest", confidence=0.0)
        case = hits[0].case
        step = self._place[case.trajectory, case.state, case.reply]
        reply = self.library.steps(case.trajectory)[step][1]
        return replace(reply, origin="nearest", confidence=min(1.0, max(0.0, hits[0].score)), note=case.trajectory)

    async def judge(self, moment: Moment) -> float:
        """1 or 0, as the nearest finished recording was judged; the base rate where there is none."""
        task = moment.task_id if self.exclude_own else None
        hits = self._ends.search([Query(_all(moment.instruction, moment.past), "", None, task)], 1)[0]
        return float(hits[0].case.reply == "1") if hits else self.library.base_rate

    def release(self, world: int) -> None:
        """Nothing is cached for a world."""


class NoChange:
    """Answers every action with the previous reply, nothing at the start; judges by the base rate."""

    name = "no_change"

    def __init__(self, library: Library, *, exclude_own: bool = False) -> None:
        """Take a library for its base rate; it has no use for `exclude_own`."""
        self.library, self.exclude_own = library, exclude_own
        self._base = library.base_rate

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """The previous reply again."""
        text = moment.past[-1][1].text if moment.past else ""
        return Reply(text, origin="nearest", confidence=0.0)

    async def judge(self, moment: Moment) -> float:
        """The base rate."""
        return self._base

    def release(self, world: int) -> None:
        """Nothing is cached for a world."""


def _state(instruction: str, past: Sequence[tuple[Action, Reply]], action: Action) -> str:
    last = past[-1][1].text if past else ""
    return f"{flat(instruction)} {flat(last)} {flat(action.text)}"


def _all(instruction: str, steps: Sequence[tuple[Action, Reply]]) -> str:
    return f"{flat(instruction)} {' '.join(flat(action.text) for action, _ in steps)}"
