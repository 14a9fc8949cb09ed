"""Scripted play in any world: mixing scripts, and playing one in an environment."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from rlready.envs.base import Env
from rlready.errors import UserError, did_you_mean
from rlready.experience.episode import LoggedEpisode
from rlready.types import Task
from rlready.worlds.base import Script

if TYPE_CHECKING:
    from rlready.worlds.base import World


def mix(world: World, weights: Mapping[str, float]) -> Script:
    """A script that draws one of the world's scripts for each episode: `mix(world, {"look": 7, "blind": 2})`.

    Args:
        world: whose scripts are mixed.
        weights: how often each is drawn, relative to the others.

    Raises:
        UserError: the world has no such script, or the weights are not positive numbers.
    """
    scripts = world.scripts
    for name, weight in weights.items():
        if name not in scripts:
            raise did_you_mean(f"script of {world.name}", name, scripts)
        if not weight > 0:
            raise UserError(f'The weight of script "{name}" is {weight}; it must be a positive number.')
    if not weights:
        raise UserError(f"A mixture of scripts of {world.name} needs at least one script and its weight.")
    names, shares = list(weights), list(weights.values())

    def script(task: Task, rng: random.Random) -> Generator[str, str, None]:
        name = rng.choices(names, shares)[0]
        yield from scripts[name](task, rng)

    return script


async def play(
    env: Env, task: Task, script: Script, rng: random.Random, *, closing: str, seed: int = 0, source: str = "script"
) -> LoggedEpisode:
    """Play one episode with a script and log it. The environment is closed afterwards, also after a failure.

    Args:
        env: a fresh environment.
        task: the task to play.
        script: a generator of actions; when it returns, the closing action is played.
        rng: the script's own randomness.
        closing: the world's closing action.
        seed: the environment's seed.
        source: how the log is labelled.
    """
    actions: list[str] = []
    replies: list[str] = []
    try:
        observation = await env.reset(task, seed)
        instruction = observation.messages[-1].text
        player = script(task, rng)
        action = next(player, closing)
        while True:
            step = await env.step(action)
            last = step.observation.messages[-1]
            actions.append(action)
            replies.append("" if last.role == "assistant" else last.text)
            if step.terminated or step.truncated:
                break
            try:
                action = player.send(replies[-1])
            except StopIteration:
                action = closing
    finally:
        await env.close()
    return LoggedEpisode(
        task_id=task.id,
        instruction=instruction,
        actions=tuple(actions),
        replies=tuple(replies),
        success=step.terminated and step.reward > 0,
        finished=step.terminated,
        source=source,
        seed=seed,
    )
