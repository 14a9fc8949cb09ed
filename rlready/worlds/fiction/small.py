"""The small setting, "desk": six order numbers, four items, five tools, for policies of a few ten thousand weights.

A shop holds three to five of the orders order_1 ... order_6, each of one of four items with a status; each item is in
stock or not. A ticket names an order and a kind of complaint. What is right depends on the order's status and, on
some paths, on the item's stock, so one or two looks decide it; an episode has at most six turns. A write settles the
order whatever its status is, and cannot be undone, so trying is no way to find out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from rlready.seeds import rng
from rlready.types import Task
from rlready.worlds.fiction.rules import NOTHING, Fact, draw_rules
from rlready.worlds.fiction.setting import (
    CLOSING,
    NOT_ALLOWED,
    UNKNOWN_ITEM,
    UNKNOWN_ORDER,
    Play,
    Record,
    Setting,
    Tables,
    Ticket,
    Tools,
    call,
    error,
    read,
    ticket_of,
)

ORDERS = tuple(f"order_{i}" for i in range(1, 7))
ITEMS = ("lamp", "mug", "rug", "clock")
STATUSES = ("placed", "shipped", "delivered")
STOCKS = ("some", "none")
KINDS = ("broken", "unwanted")
WRITES = {"refund": "refunded", "replace": "replaced", "cancel": "cancelled"}
_TEXTS = {
    "broken": ("there is something wrong with {}", "I am unhappy with {}"),
    "unwanted": ("I do not want {}", "please take back {}"),
}
_FACTS = (
    Fact("status", dict.fromkeys(STATUSES, 1 / 3), "delivered"),
    Fact("stock", dict.fromkeys(STOCKS, 1 / 2), "some"),
)
_OPTIONS = {
    "placed": ("cancel", NOTHING),
    "shipped": ("refund", "replace", NOTHING),
    "delivered": ("refund", "replace", NOTHING),
}


class DeskTools:
    """The five tools over one desk's tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def get_order(self, order: str) -> Record:
        """Show an order."""
        return self._tables["orders"].get(order) or error(UNKNOWN_ORDER)

    def get_item(self, item: str) -> Record:
        """Show an item."""
        return self._tables["items"].get(item) or error(UNKNOWN_ITEM)

    def refund(self, order: str) -> Record:
        """Pay back."""
        return self._write("refund", order)

    def replace(self, order: str) -> Record:
        """Send anew."""
        return self._write("replace", order)

    def cancel(self, order: str) -> Record:
        """Call off."""
        return self._write("cancel", order)

    def _write(self, tool: str, order: str) -> Record:
        row = self._tables["orders"].get(order)
        if row is None:
            return error(UNKNOWN_ORDER)
        if row["status"] not in STATUSES:
            return error(NOT_ALLOWED)
        row["status"] = WRITES[tool]
        return row


_TOOLS = ("get_order", "get_item", *WRITES)
_WRONG = (
    call("get_order", item="lamp"),
    call("get_order", order=1),
    call("refund", item="mug"),
    call("cancel"),
    call("get_stock", item="rug"),
    call("get_item", item="sofa"),
)
"""Calls that can never work: a wrong argument, a wrong type, none at all, a tool and an item that do not exist."""


class Small(Setting):
    """The desk; see the module's docstring."""

    def __init__(self, seed: int = 0, *, stated: bool = False, cap: int = 6) -> None:
        """Draw the rules.

        Args:
            seed: of the family of desks: its rules.
            stated: whether the agent is told the rules. Off by default, since a tiny policy learns them from logs and
                every further word of its context costs time.
            cap: most turns of an episode.
        """
        self.name = "desk"
        self.rules = draw_rules(
            seed, KINDS, _FACTS, _OPTIONS, needs={"replace": ("stock", "some")}, most=0.34, least_kinds=4
        )
        self.cap, self.max_calls, self.stated = cap, 1, stated
        self.actions = (
            *(call("get_order", order=order) for order in ORDERS),
            *(call("get_item", item=item) for item in ITEMS),
            *(call(tool, order=order) for tool in WRITES for order in ORDERS),
            *_WRONG,
            CLOSING,
        )

    @property
    def instructions(self) -> str:
        """One line, and the rules where they are told."""
        head = f"You work at the service desk of a shop. Settle the ticket in at most {self.cap} turns."
        return f"{head} The rules:\n{self.rules.text}" if self.stated else head

    def tables(self, seed: int) -> Tables:
        """Three to five orders and the four items."""
        chance = rng(seed, "fiction", "desk")
        here = sorted(chance.sample(ORDERS, chance.randint(3, 5)))
        return {
            "orders": {o: {"order": o, "item": chance.choice(ITEMS), "status": chance.choice(STATUSES)} for o in here},
            "items": {i: {"item": i, "stock": chance.choice(STOCKS)} for i in ITEMS},
        }

    def ticket(self, tables: Tables, chance: random.Random) -> dict[str, Any]:
        """A complaint about one of the orders that there are."""
        order, kind = chance.choice(sorted(tables["orders"])), chance.choice(KINDS)
        return {"kind": kind, "order": order, "text": chance.choice(_TEXTS[kind]).format(order)}

    def tools(self, tables: Tables) -> Tools:
        """The five."""
        made = DeskTools(tables)
        return [getattr(made, name) for name in _TOOLS]

    def facts(self, tables: Tables, ticket: Ticket) -> dict[str, str]:
        """Status of the order, stock of its item."""
        order = tables["orders"][ticket["order"]]
        return {"status": order["status"], "stock": tables["items"][order["item"]]["stock"]}

    def settle(self, tables: Tables, ticket: Ticket, resolution: str) -> None:
        """Write the order's new status."""
        if resolution != NOTHING:
            tables["orders"][ticket["order"]]["status"] = WRITES[resolution]

    def play(self, task: Task, chance: random.Random, skip: float, waste: float) -> Play:
        """Look at the order, then at its item; act; close. The order is left out a third as often as the item."""
        ticket = ticket_of(task)
        kind, order = ticket["kind"], ticket["order"]
        facts = self.rules.assumed
        item = None
        if chance.random() >= skip / 3:
            yield from self._wasted(chance, waste)
            seen = read((yield call("get_order", order=order)))
            facts["status"], item = seen.get("status", facts["status"]), seen.get("item")
        if item and "stock" in self.rules.asked(kind, facts) and chance.random() >= skip:
            yield from self._wasted(chance, waste)
            facts["stock"] = read((yield call("get_item", item=item))).get("stock", facts["stock"])
        resolution = self.rules.resolution(kind, facts)
        if resolution != NOTHING:
            yield call(resolution, order=order)

    def play_blind(self, task: Task, chance: random.Random, resolution: str) -> Play:
        """One write, or none."""
        if resolution != NOTHING:
            yield call(resolution, order=ticket_of(task)["order"])

    def texts(self) -> Sequence[str]:
        """All tickets, all records in every status, all errors."""
        statuses = (*STATUSES, *WRITES.values())
        rows: list[Record] = [{"order": o, "item": i, "status": s} for o in ORDERS for i in ITEMS for s in statuses]
        rows += [{"item": i, "stock": s} for i in ITEMS for s in STOCKS]
        rows += [error(kind) for kind in (UNKNOWN_ORDER, UNKNOWN_ITEM, NOT_ALLOWED)]
        tickets = [text.format(order) for texts in _TEXTS.values() for text in texts for order in ORDERS]
        return [*tickets, *(json.dumps(row) for row in rows)]

    def _wasted(self, chance: random.Random, waste: float) -> Play:
        while chance.random() < waste:
            about_orders = chance.random() < 0.5
            yield (
                call("get_order", order=chance.choice(ORDERS))
                if about_orders
                else call("get_item", item=chance.choice(ITEMS))
            )

    def random_action(self, task: Task, chance: random.Random) -> str:
        """Half the time about the ticket's order, else anything."""
        assert self.actions is not None
        about = [a for a in self.actions if f'"{ticket_of(task)["order"]}"' in a]
        return chance.choice(about if chance.random() < 0.5 else self.actions[:-1])
