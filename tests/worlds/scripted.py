"""Scripted play for tests of worlds, through the house's own rollouts, but without a vocabulary."""

import asyncio

from rlready.experience.episode import from_trajectory
from rlready.rollout.actors import ScriptActor
from rlready.rollout.episode import play


class NoTokens:
    """Scripts need no token ids."""

    stop_ids = ()

    def render(self, messages):
        return [0]

    def extend(self, prompt_ids, completion_ids, new):
        return [0]

    def encode_completion(self, text):
        return [0]

    def decode(self, completion_ids):
        return ""


def trajectories(scripts, tasks, make_env, *, mix=None, seed=0):
    """One episode per task, one after the other; a failed one fails the test."""
    actor = ScriptActor(scripts, NoTokens(), closing="done", mix=mix, seed=seed)

    async def go():
        return [await play(task, make_env, actor, tasks, seed=0, deadline=None) for task in tasks]

    played = asyncio.run(go())
    assert not [t.failure for t in played if t.failure]
    return played


def logs(scripts, tasks, make_env, *, mix=None, seed=0):
    """The same as logs."""
    return [from_trajectory(t, source="script") for t in trajectories(scripts, tasks, make_env, mix=mix, seed=seed)]
