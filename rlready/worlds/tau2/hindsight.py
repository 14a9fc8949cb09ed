"""Hindsight: what a finished log reveals of its hidden start, and the problems that were open after each step.

An experience model that must predict replies and verdicts needs to know which hidden world it is in, and to keep
account of what is still wrong; without that its verdicts reward luck. Both are inferred here from the log alone: the
ticket, the actions, the reply words, and whether it succeeded. Three sources, in this order:

1. what replies and errors show (`belief`);
2. a success: whatever would still be open at its end cannot have been wrong;
3. for what is left, how often the fact was seen to be wrong in other logs with this ticket. The draw is repeated
   until the verdict is explained: a failure needs an open problem, a success must have none.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.worlds.tau2.belief import FACTS, MODES, PENDING, Belief, Value, facts_of, is_problem

PROBLEMS: tuple[str, ...] = (*(f for f in FACTS if f != "mode"), *MODES, PENDING)
"""Every word that a card or a trace can contain."""

TRIES = 60
_SMOOTHING = 2.0


@dataclass(frozen=True)
class Annotation:
    """An episode in hindsight.

    Attributes:
        card: the problems that were open at the start, in fixed order: the hidden world.
        traces: for each action the problems that were open after it.
        revealed: the facts that the log itself settles, and whether each was a problem; the rest of the card was drawn.
        explained: whether card and traces agree with the verdict (True where the episode was never closed).
    """

    card: list[str]
    traces: list[list[str]]
    revealed: Mapping[str, bool] = field(default_factory=dict)
    explained: bool = True


class Hindsight:
    """Fact frequencies of a set of logs, and the annotation of single logs with them."""

    def __init__(self) -> None:
        """Without logs; call `fit`."""
        self._seen: Counter[tuple[str, str]] = Counter()
        self._wrong: Counter[tuple[str, str]] = Counter()
        self._modes: Counter[str] = Counter()

    def fit(self, episodes: Iterable[LoggedEpisode]) -> Hindsight:
        """Count, for each ticket and fact, in how many of the logs that show the fact it was a problem at the start.

        Raises:
            UserError: there are no episodes.
        """
        self._seen.clear()
        self._wrong.clear()
        self._modes.clear()
        any_episode = False
        for episode in episodes:
            any_episode = True
            for fact, value in _observed(episode).items():
                wrong = is_problem(fact, value, episode.instruction)
                for key in ((episode.instruction, fact), ("", fact)):
                    self._seen[key] += 1
                    self._wrong[key] += wrong
                if fact == "mode" and wrong:
                    self._modes[str(value)] += 1
        if not any_episode:
            raise UserError("Hindsight cannot be fitted without episodes; give it the agent's logs.")
        return self

    def frequency(self, ticket: str, fact: str) -> float:
        """Share of the ticket's logs in which the fact was a problem, drawn towards the share over all tickets."""
        overall = (self._wrong["", fact] + 0.5) / (self._seen["", fact] + 1)
        return (self._wrong[ticket, fact] + _SMOOTHING * overall) / (self._seen[ticket, fact] + _SMOOTHING)

    def annotate(self, episode: LoggedEpisode, rng: random.Random) -> Annotation:
        """Infer the start and follow the open problems.

        Args:
            episode: a log of this world.
            rng: draws the facts that the log leaves open.
        """
        ticket = episode.instruction
        known = _observed(episode)
        if episode.finished and episode.success:
            known |= self._excluded(episode, known)
        unknown = [f for f in facts_of(ticket) if f not in known]
        traces: list[list[str]] = []
        card: list[str] = []
        explained = False
        for _ in range(TRIES if unknown else 1):
            start = known | {f: self._draw(ticket, f, rng) for f in unknown}
            card, *traces = _follow(episode, start)
            end = [p for p in (traces or [card])[-1] if p != PENDING]
            explained = not episode.finished or episode.success == (not end)
            if explained:
                break
        revealed = {f: is_problem(f, v, ticket) for f, v in known.items()}
        return Annotation(card, traces, revealed, explained)

    def _excluded(self, episode: LoggedEpisode, known: Mapping[str, Value]) -> dict[str, Value]:
        """Facts that cannot have been problems, since they would still be open at the end of a success."""
        out: dict[str, Value] = {}
        for fact in facts_of(episode.instruction):
            if fact not in known:
                bad: Value = "2g" if fact == "mode" else True
                if _word(fact, bad) in _follow(episode, {**known, fact: bad})[-1]:
                    out[fact] = "5g" if fact == "mode" else False
        return out

    def _draw(self, ticket: str, fact: str, rng: random.Random) -> Value:
        wrong = rng.random() < self.frequency(ticket, fact)
        if fact != "mode":
            return wrong
        modes = [m for m in self._modes if is_problem("mode", m, ticket)]
        if not wrong:
            return "5g"
        return rng.choices(modes, [self._modes[m] for m in modes])[0] if modes else "2g"


def _observed(episode: LoggedEpisode) -> dict[str, Value]:
    """The values at the start that the replies show."""
    belief = Belief(episode.instruction)
    for action, reply in zip(episode.actions, episode.replies, strict=True):
        belief.step(action, reply)
    return belief.start


def _follow(episode: LoggedEpisode, start: Mapping[str, Value]) -> list[list[str]]:
    """The open problems at the start and after each action."""
    belief = Belief(episode.instruction, start)
    out = [belief.open()]
    for action, reply in zip(episode.actions, episode.replies, strict=True):
        belief.step(action, reply)
        out.append(belief.open())
    return out


def _word(fact: str, value: Value) -> str:
    return f"m{value}" if fact == "mode" else fact
