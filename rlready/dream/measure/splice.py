"""Action sequences that nobody recorded, made of recorded ones: the start of one run and the end of another.

They are played in worlds that are known (those of training tasks), and are still new: what the dream says of them
cannot be a replay. For gyms whose verdicts rest on what is known of a task they are the only fair script of a closed
loop.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive, rng

if TYPE_CHECKING:
    from rlready.dream.gym import Gym


def spliced(gym: Gym, n: int, seed: int = 0) -> list[LoggedEpisode]:
    """Up to `n` scripts, one for each task with two finished recordings that differ.

    Args:
        gym: whose recordings.
        n: how many.
        seed: of the choice.

    Returns:
        Episodes whose actions are new for their task; their replies and success mean nothing.
    """
    library = gym.library
    tasks = sorted(library.by_task, key=lambda task: derive("splice", seed, task))
    out: list[LoggedEpisode] = []
    for task in tasks:
        if len(out) >= n:
            break
        runs = [library.episodes[id] for id in library.by_task[task]]
        runs = [e for e in runs if e.finished and len(e) > 1]
        chance = rng("splice", seed, task)
        chance.shuffle(runs)
        recorded = {e.actions for e in library.episodes.values() if e.task_id == task} if len(runs) > 1 else set()
        for a, b in pairwise(runs):
            head, tail = a.actions[: chance.randint(1, len(a) - 1)], b.actions[chance.randint(0, len(b) - 1) :]
            actions = head + tail
            if actions not in recorded:
                made = LoggedEpisode(
                    task, a.instruction, actions, ("",) * len(actions), False, True, source="spliced", seed=a.seed
                )
                out.append(made)
                break
    return out
