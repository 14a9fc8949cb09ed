"""What kinds of fictional world have in common: tables, tickets, tools over the tables, and what is right.

Tables are plain mappings, table -> key -> row, so that two states are compared by `==`. A row is a small JSON object
that holds its own key. Tools return JSON objects; an error is an object with the one key "error".
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from rlready.toolcalls import render_call
from rlready.types import Task
from rlready.worlds.fiction.rules import RuleSet

Record = dict[str, Any]
Tables = dict[str, dict[str, Record]]
Ticket = Mapping[str, Any]
Play = Generator[str, str, None]
Tools = Sequence[Callable[..., Any]]

CLOSING = "Done."
"""The words that close an episode."""

UNKNOWN_ORDER, UNKNOWN_ITEM, UNKNOWN_CUSTOMER = "unknown_order", "unknown_item", "unknown_customer"
NOT_ALLOWED = "not_allowed"


class Setting(ABC):
    """A kind of fictional world.

    Attributes:
        name: short.
        rules: the policy.
        cap: most turns of an episode, the closing one included.
        max_calls: calls executed per turn.
        actions: every action as text, where they are few; else None.
    """

    name: str
    rules: RuleSet
    cap: int
    max_calls: int
    actions: tuple[str, ...] | None

    @property
    @abstractmethod
    def instructions(self) -> str:
        """What the agent is told once: the system message."""

    @abstractmethod
    def tables(self, seed: int) -> Tables:
        """The records of one shop; a function of the seed."""

    @abstractmethod
    def ticket(self, tables: Tables, chance: random.Random) -> dict[str, Any]:
        """A ticket about one of the orders, JSON-ready: "kind", "order", "text", and what else scripts may know."""

    @abstractmethod
    def tools(self, tables: Tables) -> Tools:
        """Functions that read and change these tables."""

    @abstractmethod
    def facts(self, tables: Tables, ticket: Ticket) -> dict[str, str]:
        """The hidden facts that the rules ask of a ticket."""

    @abstractmethod
    def settle(self, tables: Tables, ticket: Ticket, resolution: str) -> None:
        """Carry out a resolution of the ticket as the policy wants it, in place."""

    @abstractmethod
    def play(self, task: Task, chance: random.Random, skip: float, waste: float) -> Play:
        """Look, then act by the rules.

        Args:
            task: its ticket is all that the player knows at first.
            chance: of what is skipped and wasted.
            skip: probability that a look-up is left out; its facts are then assumed (`Fact.assumed`).
            waste: probability of a useless look before each useful one.
        """

    @abstractmethod
    def play_blind(self, task: Task, chance: random.Random, resolution: str) -> Play:
        """Carry out a resolution with as few looks as the tools allow."""

    def texts(self) -> Sequence[str]:
        """Every ticket and every reply of a tool, where they are few; else nothing."""
        return ()

    @abstractmethod
    def random_action(self, task: Task, chance: random.Random) -> str:
        """Any action, wrong ones among them."""

    def gold(self, tables: Tables, ticket: Ticket) -> str:
        """The right resolution of a ticket."""
        return self.rules.resolution(str(ticket["kind"]), self.facts(tables, ticket))


def call(tool: str, /, **arguments: Any) -> str:
    """A tool call as text, arguments in sorted order."""
    return render_call(tool, dict(sorted(arguments.items())))


def error(kind: str) -> Record:
    """What a tool returns where it cannot do what was asked; nothing is changed."""
    return {"error": kind}


def read(reply: str) -> Record:
    """A reply as a JSON object; empty where it is an error or none."""
    try:
        found = json.loads(reply)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "error" not in found else {}


def ticket_of(task: Task) -> Ticket:
    """The ticket in a task's data."""
    ticket: Ticket = task.data["ticket"]
    return ticket
