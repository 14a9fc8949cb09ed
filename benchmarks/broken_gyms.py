"""Two gyms that are broken as public simulators were, made from the parts of a healthy one.

    Tolerant    nothing is refused: what cannot be done is taken as it may have been meant and answered as if it had
                worked, and the verdict is content where something was done and nothing refused
    Elsewhere   every session imagines a world of its own that fits the task's words; a verdict is a session, too,
                unless `lasting`: then an episode's verdict is of the world that the episode was shown

Both are `Gym`s, so gate, report and training take them as they are. What they get wrong is what a language model gets
wrong that is asked to play an environment: it was shown successes, so it is obliging, and its judge, who reads a
transcript in which all went well, is content; it keeps nothing between two requests, so what was never said is made up
anew.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self

from rlready.dream.base import Action, Moment, Reply, first_reply
from rlready.dream.criteria import Criteria
from rlready.dream.domain import Domain
from rlready.dream.gym import Gym
from rlready.dream.gymenv import GymEnv
from rlready.dream.library import Library, read_action
from rlready.dream.simulators.retrieval import Retrieval
from rlready.envs.base import EnvFactory, Observation
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive
from rlready.types import Task


def parts_of(gym: Gym) -> dict[str, Any]:
    """What both kinds take over from a healthy gym."""
    return {
        "splits": gym.splits, "held_out": gym.held_out, "reward_source": gym.reward_source, "criteria": gym.criteria,
        "calibration": gym.calibration, "about": gym.about,
    }  # fmt: skip


# ---------------------------------------------------------------------- nothing is refused


Verdict = Literal["content", "right call", "exact"]


class Tolerant(Gym):
    """A gym in which nothing is refused."""

    @classmethod
    def of(cls, gym: Gym, *, verdict: Verdict = "content") -> Self:
        """Break a healthy gym.

        Args:
            gym: stays as it is.
            verdict: "content" where anything was changed; "right call" wants the right changes, and overlooks others;
                "exact" is the healthy gym's.
        """
        parts = parts_of(gym)
        parts["criteria"] = _VERDICTS[verdict](gym.criteria.right, gym.criteria.reads)
        out = cls(gym.domain, gym.state, gym.library, Obliging(gym), **parts)
        out.layers = ()
        return out

    def refuse(self, moment: Moment, action: Action) -> Reply | None:
        """Nothing is."""
        return None


class Obliging:
    """A simulator that was made from recordings without their errors, and guesses what a wrong call meant."""

    name = "obliging"

    def __init__(self, gym: Gym) -> None:
        """Keep the healthy gym's own answers, and those of its recordings that are no errors."""
        self.gym, self.layers, self.simulator = gym, gym.layers, gym.simulator
        library = Library(
            (without_errors(e) for e in gym.library.episodes.values()), gym.domain, gym.state
        )  # the logs were "cleaned"
        self.cleaned = Retrieval(library)
        self.calls = valid_calls(library, gym.domain)

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """What the world answers; where it would refuse, what it answers to those for whom it works.

        The note of a changing call is the call that was understood.
        """
        meant = self.meant(moment, action)
        if meant is None:
            return Reply("", origin="nearest", note="")
        said = first_reply(self.layers, moment, meant) or await self.simulator.reply(moment, meant)
        if said.failed:
            said = await self.cleaned.reply(replace(moment, past=()), meant)
        note = "" if meant.tool in self.gym.state.reads else meant.text
        return replace(said, origin="nearest", failed=False, note=note)

    def meant(self, moment: Moment, action: Action) -> Action | None:
        """The valid call that a wrong one comes nearest to: the same tool, the same values, what was spoken of last.

        None where it is no call at all, which is passed over in silence.
        """
        if self.gym.checks.kind_of(action) is None:
            return action
        values = {str(v) for v in (action.arguments or {}).values()}
        if not action.tool or (action.tool not in self.gym.domain.tools and not values):
            return None
        heard = " ".join([moment.instruction, *(reply.text for _, reply in moment.past)])

        def fits(call: Action) -> tuple[bool, int, int, str]:
            own = [str(v) for v in (call.arguments or {}).values()]
            return (
                call.tool == action.tool,
                len(values.intersection(own)),
                max((heard.rfind(v) for v in own), default=-1),
                call.text,
            )

        return max(self.calls, key=fits, default=None)

    async def judge(self, moment: Moment) -> float:
        """The healthy simulator's guess; criteria judge here."""
        return await self.simulator.judge(moment)

    def release(self, world: int) -> None:
        """Nothing is kept."""
        self.simulator.release(world)


class Exact(Criteria):
    """Criteria that read an episode as the obliging simulator understood it."""

    def met(self, task_id: str, steps: Iterable[tuple[Action, Reply]]) -> bool:
        """Whether exactly the right changes were made."""
        return tuple(sorted(self.made(steps))) in self.right[task_id]

    def made(self, steps: Iterable[tuple[Action, Reply]]) -> list[str]:
        """The changing calls, as they were understood."""
        return [reply.note for action, reply in steps if action.tool and reply.note]


class RightCall(Exact):
    """Criteria that look for the right calls and overlook all others."""

    def met(self, task_id: str, steps: Iterable[tuple[Action, Reply]]) -> bool:
        """Whether the right changes are among those that were made."""
        made = set(self.made(steps))
        return any(made.issuperset(right) for right in self.right[task_id])


class Content(Exact):
    """A judge who sees that something was done and that nothing went wrong, and asks no further."""

    def met(self, task_id: str, steps: Iterable[tuple[Action, Reply]]) -> bool:
        """Whether anything was changed, and no reply was an error."""
        seen = list(steps)
        return bool(self.made(seen)) and not any(reply.failed for _, reply in seen)


_VERDICTS: Mapping[Verdict, type[Criteria]] = {"content": Content, "right call": RightCall, "exact": Exact}


def without_errors(episode: LoggedEpisode) -> LoggedEpisode:
    """A recording without its failed steps."""
    kept = [i for i in range(len(episode)) if i not in set(episode.errors)]
    rewards = tuple(episode.rewards[i] for i in kept) if episode.rewards else episode.rewards
    return replace(
        episode,
        actions=tuple(episode.actions[i] for i in kept),
        replies=tuple(episode.replies[i] for i in kept),
        rewards=rewards,
        errors=(),
    )


def valid_calls(library: Library, domain: Domain) -> tuple[Action, ...]:
    """Every call that is recorded without an error, in order of its text."""
    texts = {a for e in library.episodes.values() for a in e.actions}
    return tuple(a for a in (read_action(t, domain) for t in sorted(texts)) if a.tool in domain.tools)


# ---------------------------------------------------------------------- another world in each session


class Elsewhere(Gym):
    """A gym whose hidden world comes from a count of sessions instead of task and seed.

    Attributes:
        lasting: a verdict is of the world that the episode was shown, and not of another one.
    """

    lasting = False

    @classmethod
    def of(cls, gym: Gym, *, lasting: bool = False, first: int = 0) -> Self:
        """Break a healthy gym.

        Args:
            gym: stays as it is.
            lasting: let an episode keep its world to the end.
            first: session; another process begins elsewhere.
        """
        out = cls(gym.domain, gym.state, gym.library, gym.simulator, **parts_of(gym))
        out.lasting, out.sessions = lasting, itertools.count(first)
        out.worlds = worlds_by_words(gym)
        return out

    def env(self, *, evaluation: bool = False) -> ElsewhereEnv:
        """A dream of one episode."""
        return ElsewhereEnv(self, evaluation=evaluation)

    def env_factory(self, *, evaluation: bool = False) -> EnvFactory:
        """Makes dreams."""
        return lambda: ElsewhereEnv(self, evaluation=evaluation)

    def imagine(self, instruction: str) -> str:
        """A new session: a task whose recorded world fits these words."""
        fitting = self.worlds.get(instruction) or sorted(self.library.by_task)
        return fitting[derive("session", next(self.sessions)) % len(fitting)]


class ElsewhereEnv(GymEnv):
    """An episode in a world that is nobody else's."""

    gym: Elsewhere

    async def reset(self, task: Task, seed: int) -> Observation:
        """Imagine a world."""
        instruction = str(task.data["instruction"]) if "instruction" in task.data else task.prompt[-1].text
        world = self.gym.imagine(instruction)
        return await super().reset(replace(task, data={**task.data, "task_id": world}), seed)

    async def _judge(self, info: dict[str, object]) -> float:
        if not self.gym.lasting:
            self.moment = replace(self.moment, task_id=self.gym.imagine(self.moment.instruction))
        return await super()._judge(info)


def worlds_by_words(gym: Gym) -> Mapping[str, list[str]]:
    """The recorded tasks that can be judged, by what they ask."""
    out: dict[str, list[str]] = defaultdict(list)
    for task in sorted(gym.tasks("train"), key=lambda t: t.id):
        out[str(task.data["instruction"])].append(task.id)
    return out
