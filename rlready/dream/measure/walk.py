"""Recorded episodes as the moments a dream would be asked at, history as recorded (teacher-forced).

The world of a held-out episode is not known, so its moments have no anchor and start from an empty state; what was
looked up on the way enters the state as it is seen. As in `GymEnv`, a reading tool that is called before anything was
written asks the world itself: the simulator then hears neither history nor state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.library import facts_of, read_action
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.dream.state import StateRules


@dataclass(frozen=True, slots=True)
class Asked:
    """One recorded step.

    Attributes:
        episode: index of the episode.
        step: index of the action.
        moment: for code layers, with all that happened.
        blank: what the simulator hears: `moment`, or the world alone.
        action: as the one parser reads it.
        truth: what was recorded.
        silent: the closing action, to which nothing was answered: there is no reply to score.
    """

    episode: int
    step: int
    moment: Moment
    blank: Moment
    action: Action
    truth: Reply
    silent: bool


def steps_of(domain: Domain, episode: LoggedEpisode) -> list[tuple[Action, Reply]]:
    """The actions and replies of a recorded episode."""
    failed, last = set(episode.errors), len(episode) - 1
    return [
        (
            read_action(text, domain),
            Reply(
                reply,
                failed=i in failed,
                done=episode.finished and i == last,
                reward=episode.rewards[i] if episode.rewards else None,
                origin="recorded",
            ),
        )
        for i, (text, reply) in enumerate(zip(episode.actions, episode.replies, strict=True))
    ]


def writes(action: Action, reply: Reply, reads: Collection[str]) -> bool:
    """Whether a step may have changed the world: a call that is no reading and was not refused."""
    return bool(action.tool) and action.tool not in reads and not reply.failed


def walk(
    episode: LoggedEpisode, domain: Domain, rules: StateRules, *, index: int = 0, seed: int = 0
) -> Iterator[Asked]:
    """The moments of an episode, in order."""
    world = derive("open loop", episode.task_id, episode.instruction, seed)
    moment = Moment(episode.task_id, episode.instruction, world, state=rules.start(()))
    untouched = True
    for step, (action, truth) in enumerate(steps_of(domain, episode)):
        asks_world = untouched and action.tool in rules.reads
        blank = replace(moment, past=(), facts=(), state={}) if asks_world else moment
        silent = step == len(episode) - 1 and not truth.text.strip()
        yield Asked(index, step, moment, blank, action, truth, silent)
        untouched = untouched and not writes(action, truth, rules.reads)
        state = rules.observe(moment.state, action, truth)
        moment = replace(moment, past=(*moment.past, (action, truth)), state=state)


def finished_moment(episode: LoggedEpisode, domain: Domain, rules: StateRules, *, seed: int = 0) -> Moment:
    """The moment after the last action: what a judge is shown, with what was looked up before anything was written."""
    past = steps_of(domain, episode)
    state = rules.start(())
    for action, reply in past:
        state = rules.observe(state, action, reply)
    world = derive("open loop", episode.task_id, episode.instruction, seed)
    return Moment(episode.task_id, episode.instruction, world, tuple(past), state, facts_of(past, rules.reads))


def looks_failed(text: str) -> bool:
    """Whether a reply reads as an error, by the rule that logs are read with where they mark none themselves."""
    head = text.lstrip()
    if head[:5].lower() == "error":
        return True
    if not head.startswith("{"):
        return False
    try:
        found = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and bool(found.get("error"))
