"""The small fictional world, ready for use: an environment that takes no arguments, and its tickets.

rlready dream train DIR --real rlready/worlds/fiction/desk.py:Desk
rlready train rlready/worlds/fiction/desk.py:tasks --env rlready/worlds/fiction/desk.py:Desk
"""

from __future__ import annotations

from rlready.worlds.fiction.env import FictionEnv
from rlready.worlds.fiction.world import FictionWorld

WORLD = FictionWorld(seed=0, setting="desk")
"""The family of desks with seed 0: 1,200 tickets to train on, 100 for development, 200 to test."""

tasks = WORLD.splits["train"]
dev_tasks = WORLD.splits["dev"]
test_tasks = WORLD.splits["test"]


class Desk(FictionEnv):
    """One episode at the desk."""

    def __init__(self) -> None:
        super().__init__(WORLD.setting)
