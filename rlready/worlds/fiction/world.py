"""Fictional worlds: a family drawn from a seed, with splits, scripted players and the environment.

    world = FictionWorld(seed=0)                        # the small setting, "desk"
    world = FictionWorld(seed=0, setting="shop", rows=400)      # hundreds of records, invented names, paging
    tasks, env = world.splits["train"], world.env()

The records exist nowhere but in the tables, so nothing that a model has read elsewhere answers a ticket. The rules
belong to the family (`seed`); each ticket has a shop of its own, or shares one with others of its split. No two shops
have the same records, no shop serves two splits, and ticket ids are unique.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from rlready.aio import run_sync
from rlready.envs.base import Script
from rlready.errors import UserError, did_you_mean
from rlready.seeds import derive, rng
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task
from rlready.worlds.fiction.env import FictionEnv
from rlready.worlds.fiction.setting import CLOSING, Setting
from rlready.worlds.fiction.small import Small

Kind = Literal["desk", "shop"]
KINDS: tuple[Kind, ...] = ("desk", "shop")
SIZES: Mapping[str, int] = MappingProxyType({"train": 1200, "dev": 100, "test": 200})
MIXED: Mapping[str, float] = MappingProxyType({"blind": 6.0, "sloppy": 2.5, "random": 1.5})
"""Play of mixed quality: an agent that mostly acts without looking, with some random play beside."""


class FictionWorld:
    """A family of fictional worlds (`worlds.base.World`)."""

    def __init__(
        self,
        seed: int = 0,
        setting: Kind | Setting = "desk",
        *,
        sizes: Mapping[str, int] = SIZES,
        rows: int = 400,
        tickets_per_shop: int | None = None,
    ) -> None:
        """Draw rules and tickets.

        Args:
            seed: of everything.
            setting: "desk" (small), "shop" (large), or one of your own.
            sizes: tickets per split.
            rows: records per shop, of "shop" only.
            tickets_per_shop: tickets that share a shop's records; default: 1 of a desk, 10 of a shop.

        Raises:
            UserError: there is no such setting, or a number cannot work.
        """
        if isinstance(setting, str):
            setting = _setting(setting, seed, rows)
        share = tickets_per_shop or (1 if setting.actions is not None else 10)
        if share < 1 or any(n < 1 for n in sizes.values()):
            raise UserError("FictionWorld: sizes and tickets_per_shop must be positive.")
        self.seed, self.setting = seed, setting
        self._sizes, self._share = dict(sizes), share
        self._splits = self._draw()

    def _draw(self) -> dict[str, TaskSet]:
        seen: set[int] = set()
        out: dict[str, TaskSet] = {}
        for split, size in self._sizes.items():
            tasks: list[Task] = []
            number = 0
            while len(tasks) < size:
                shop = derive(self.seed, "fiction", self.setting.name, split, number)
                number += 1
                tables = self.setting.tables(shop)
                mark = derive(repr(tables))
                if mark in seen:
                    continue
                seen.add(mark)
                chance = rng(shop, "tickets")
                asked: set[str] = set()
                for _ in range(min(self._share, size - len(tasks))):
                    ticket = self.setting.ticket(tables, chance)
                    if ticket["order"] not in asked:  # one ticket an order, or two would differ in nothing hidden
                        asked.add(ticket["order"])
                        tasks.append(self._task(split, len(tasks), shop, ticket, self.setting.gold(tables, ticket)))
            out[split] = TaskSet(tasks, name=f"{self.name}/{split}")
        return out

    def _task(self, split: str, number: int, shop: int, ticket: dict[str, Any], gold: str) -> Task:
        prompt = (Message("system", self.setting.instructions), Message.user(ticket["text"]))
        meta = {"kind": ticket["kind"], "gold": gold, "split": split}
        data = {"tables": shop, "ticket": ticket}
        return Task(prompt, data, meta, id=f"{self.setting.name}-{self.seed}-{split}-{number:04d}")

    @property
    def name(self) -> str:
        """The world's short name."""
        return f"fiction-{self.setting.name}"

    @property
    def splits(self) -> Mapping[str, TaskSet]:
        """Disjoint sets: train, dev, test."""
        return self._splits

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Scripted policies by name; see `scripts_of`."""
        return scripts_of(self.setting)

    @property
    def actions(self) -> Sequence[str]:
        """Every action of a desk; empty for a shop, whose actions are too many to list."""
        return self.setting.actions or ()

    @property
    def vocabulary(self) -> Sequence[str]:
        """Every blank-separated word of a desk's tickets, replies and actions; empty for a shop."""
        if self.setting.actions is None:
            return ()
        task = next(iter(next(iter(self._splits.values()))))
        texts = [*self.setting.actions, *self.setting.texts(), *run_sync(self._heard(task))]
        return tuple(dict.fromkeys(word for text in texts for word in text.split()))

    async def _heard(self, task: Task) -> list[str]:
        """What is said at the start, and in answer to each action as the first: errors of arguments among it."""
        out: list[str] = []
        for action in self.actions:
            env = self.env()
            await env.reset(task, 0)
            out += [m.text for m in (await env.step(action)).observation.messages]
        return out

    @property
    def closing(self) -> str:
        """The words that close an episode."""
        return CLOSING

    def env(self) -> FictionEnv:
        """A fresh environment; this method can be pickled and called in another process."""
        return FictionEnv(self.setting)


def scripts_of(setting: Setting, *, skip: float = 0.75, waste: float = 0.1) -> dict[str, Script]:
    """Scripted players.

    Args:
        setting: whose.
        skip: how often "sloppy" leaves out a look and assumes the best.
        waste: how often "sloppy" looks at something useless.

    Returns:
        random (any action, closes with chance 0.2 before each), blind (a resolution that may be right, without
        looking), sloppy, careful (looks at what decides, then acts right).
    """

    def random_play(task: Task, chance: random.Random) -> Generator[str, str, None]:
        while chance.random() >= 0.2:
            yield setting.random_action(task, chance)

    def looking(skip: float, waste: float) -> Script:
        return lambda task, chance: setting.play(task, chance, skip, waste)

    def blind(task: Task, chance: random.Random) -> Generator[str, str, None]:
        return setting.play_blind(task, chance, chance.choice(setting.rules.possible(task.data["ticket"]["kind"])))

    return {"random": random_play, "blind": blind, "sloppy": looking(skip, waste), "careful": looking(0.0, 0.0)}


def _setting(name: str, seed: int, rows: int) -> Setting:
    if name == "desk":
        return Small(seed)
    if name == "shop":
        from rlready.worlds.fiction.large import Large

        return Large(seed, rows=rows)
    raise did_you_mean("setting of a fictional world", name, KINDS)
