"""An order desk: a small world with tools, written out by hand, and simulators that answer from a script.

Every task is an order; what stands in it is hashed from (task, seed). `get_order` reads, `cancel_order` writes, plain
words close the episode, which succeeds where the order was cancelled exactly if it was open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlready.dream.actions import ActionChecks
from rlready.dream.base import Action, Moment, Reply
from rlready.dream.domain import Domain, Ending, ToolSpec, call_text
from rlready.envs.base import Env, Observation, Step
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive
from rlready.types import Message, Task

ORDER = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
DOMAIN = Domain(
    rules="You serve customers.",
    tools={
        "get_order": ToolSpec("get_order", ORDER, calls=9),
        "cancel_order": ToolSpec("cancel_order", ORDER, calls=5),
        "list_orders": ToolSpec("list_orders", {"type": "object", "properties": {}}, calls=1),
    },
    says=False,
    ending=Ending(words_close=True, cap=10),
)
READS = frozenset({"get_order", "list_orders"})


def get(order: str) -> str:
    return call_text("get_order", {"order_id": order})


def cancel(order: str) -> str:
    return call_text("cancel_order", {"order_id": order})


LIST = call_text("list_orders", {})


def task(n: int) -> Task:
    words = f"Cancel order W{n} if it is open."
    return Task(DOMAIN.prompt(words), {"instruction": words, "order": f"W{n}"}, id=f"t{n}")


class Rules:
    """State rules that keep the documents of entities."""

    reads = READS

    def start(self, facts: Sequence[tuple[Action, Reply]]) -> Mapping[str, Any]:
        return {}

    def observe(self, state: Mapping[str, Any], action: Action, reply: Reply) -> Mapping[str, Any]:
        return {**state, "steps": state.get("steps", 0) + 1}


RULES: Any = Rules()


class Desk(Env):
    """The real thing, and a dream where it is asked to be one; `swap` turns single replies."""

    def __init__(self, domain: Domain = DOMAIN, *, salt: object = 0) -> None:
        self.domain, self.salt = domain, salt

    async def reset(self, task: Task, seed: int) -> Observation:
        self.order = str(task.data["order"])
        open_ = derive(self.salt, "open", task.id, seed) % 2 == 0
        price = derive(self.salt, "price", task.id, seed) % 90 + 10
        self.document = {"order_id": self.order, "status": "open" if open_ else "sent", "price": price}
        self.was_open, self.turns = open_, 0
        self.messages = self.first(str(task.data["instruction"]))
        return Observation(self.messages)

    def first(self, words: str) -> tuple[Message, ...]:
        return self.domain.prompt(words)

    async def step(self, action: str) -> Step:
        self.turns += 1
        self.messages += (Message("assistant", action),)
        for i, part in enumerate(self.domain.parse(action)):
            reply = self.check(part)
            if reply is None and not part.tool:
                done = (self.document["status"] == "cancelled") == self.was_open
                return Step(Observation(self.messages), float(done and bool(part.text)), terminated=True)
            self.messages += (self.show(part, reply or Reply(self.reply(part)), i),)
        return Step(Observation(self.messages), truncated=self.turns >= self.domain.ending.cap)

    def check(self, action: Action) -> Reply | None:
        return ActionChecks(self.domain).reply(Moment("", "", 0), action)

    def show(self, action: Action, reply: Reply, index: int) -> Message:
        return self.domain.answer(action, reply, self.turns, index)

    def reply(self, action: Action) -> str:
        arguments = action.arguments or {}
        if action.tool == "list_orders":
            return json.dumps([self.order])
        if arguments.get("order_id") != self.order:
            return json.dumps({"error": "no such order"})
        if action.tool == "cancel_order":
            if self.document["status"] != "open":
                return json.dumps({"error": "it has been sent"})
            self.document = {**self.document, "status": "cancelled"}
        return json.dumps(self.document)


class Scripted:
    """A simulator that answers by a function; it may raise what a simulator may raise."""

    def __init__(
        self,
        reply: Callable[[Moment, Action], Reply | str],
        judge: Callable[[Moment], float] = lambda m: 0.5,
        name: str = "scripted",
    ) -> None:
        self._reply, self._judge, self.name = reply, judge, name
        self.seen: list[tuple[Moment, Action]] = []
        self.released: list[int] = []

    async def reply(self, moment: Moment, action: Action) -> Reply:
        self.seen.append((moment, action))
        said = self._reply(moment, action)
        return said if isinstance(said, Reply) else Reply(said)

    async def judge(self, moment: Moment) -> float:
        return self._judge(moment)

    def release(self, world: int) -> None:
        self.released.append(world)


def doc(order: str = "W1", status: str = "open", price: int = 10, **more: Any) -> str:
    return json.dumps({"order_id": order, "status": status, "price": price, **more})


def episode(*steps: tuple[str, str], task_id: str = "t1", success: bool = True, **more: Any) -> LoggedEpisode:
    """An episode from (action, reply) pairs."""
    return LoggedEpisode(
        task_id,
        f"Cancel order {task_id.replace('t', 'W')} if it is open.",
        tuple(a for a, _ in steps),
        tuple(r for _, r in steps),
        success,
        more.pop("finished", True),
        **more,
    )
