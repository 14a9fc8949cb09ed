"""Small gyms for the tests of playing in them: the order desk of `measure.desk`, with any simulator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from rlready.dream.gym import Gym
from rlready.dream.gymenv import GymEnv
from rlready.dream.library import Library
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.state import StateRules
from rlready.envs.base import Step
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import rng
from tests.dream.measure.desk import DOMAIN, LIST, READS, cancel, doc, episode, get

STATE = StateRules(reads=READS)
ERROR = json.dumps({"error": "it has been sent"})
CLOSE = "Done."


def recorded(n: int = 12, *, from_: int = 0) -> list[LoggedEpisode]:
    """Runs at the desk: every second order is open and to be cancelled, the others are to be left alone."""
    out = []
    for i in range(from_, from_ + n):
        order, open_, chance = f"W{i}", i % 2 == 0, rng("desk", i)
        price = 10 + i
        status = "open" if open_ else "sent"
        steps = [(LIST, json.dumps([order]))] if chance.random() < 0.5 else []
        steps.append((get(order), doc(order, status, price)))
        if open_:
            steps.append((cancel(order), doc(order, "cancelled", price)))
        out.append(episode(*steps, (CLOSE, ""), task_id=f"t{i}", success=True))
        blind = (cancel(order), doc(order, "cancelled", price) if open_ else ERROR)
        errors = () if open_ else (0,)
        out.append(episode(blind, (CLOSE, ""), task_id=f"t{i}", success=True, errors=errors))
        out.append(episode((CLOSE, ""), task_id=f"t{i}", success=not open_))
    return out


def gym_of(simulator: Any = None, *, runs: Sequence[LoggedEpisode] | None = None, **options: Any) -> Gym:
    """A gym; a simulator that is given answers all that code does not know."""
    library = Library(recorded() if runs is None else runs, DOMAIN, STATE)
    return Gym(DOMAIN, STATE, library, simulator or Retrieval(library), **options)


def fresh(simulator: Any, **options: Any) -> Gym:
    """A gym without recordings: a simulator has to say it all."""
    return gym_of(simulator, runs=[], **{"splits": {"train": []}, **options})


async def play(gym: Gym, actions: Sequence[str], *, task: str = "t0", seed: int = 0, **options: Any) -> list[Step]:
    """Steps of one episode, up to its end."""
    env: GymEnv = gym.env(**options)
    number = task.removeprefix("t")
    words = f"Cancel order W{number} if it is open."
    await env.reset(gym.task(task, words), seed)
    out = []
    for action in actions:
        out.append(await env.step(action))
        if not env.open:
            break
    await env.close()
    return out


def played(gym: Gym, actions: Sequence[str], **options: Any) -> list[Step]:
    return asyncio.run(play(gym, actions, **options))


def replies(steps: Sequence[Step]) -> list[str]:
    """What was answered in each step."""
    out, seen = [], 2
    for step in steps:
        new = step.observation.messages[seen:]
        seen = len(step.observation.messages)
        out.append("\n".join(m.text for m in new if m.role != "assistant"))
    return out


def transcript(steps: Sequence[Step]) -> str:
    """All that an episode showed and paid."""
    return repr([(s.observation.messages, s.reward, s.terminated, s.truncated, sorted(s.info.items())) for s in steps])
