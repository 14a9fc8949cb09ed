"""Logs for the tests of domains and state rules: a small shop played by a script, and the real airline log."""

from __future__ import annotations

import json
import random
from pathlib import Path

from rlready.dream.domain import call_text
from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs import read_logs
from rlready.experience.logs.episodes import common_rules, episode_of

TAU = Path(__file__).parents[3] / "shared" / "cases" / "logs" / "tau_airline_gpt4o.json"


def episode(task: str, steps: list[tuple[str, str]], *, finished: bool = True, errors: tuple[int, ...] = ()):
    """An episode from (action, reply) pairs."""
    return LoggedEpisode(
        task, f"do {task}", [a for a, _ in steps], [r for _, r in steps], True, finished, errors=errors
    )


class Shop:
    """A world with three orders: reads, a writer that returns the document, a writer that says one word, sums."""

    def __init__(self, world: str) -> None:
        r = random.Random(world)
        self.orders = {
            f"#{r.randrange(10**6):06d}": {
                "status": "open",
                "total": r.randrange(1, 500) / 4,
                "items": [{"sku": f"s{r.randrange(99)}", "n": r.randrange(1, 5)} for _ in range(2)],
                "note": None,
            }
            for _ in range(3)
        }

    def call(self, name: str, a: dict) -> str:
        """The real reply; errors begin with "Error"."""
        if name == "calculate":
            return str(round(eval(a["expression"], {"__builtins__": {}}), 2))
        if name == "list_orders":
            return json.dumps(sorted(self.orders))
        if name == "think":
            return ""
        if name not in ("get_order", "set_status", "void_order"):
            return f"Error: tool {name} does not exist"
        order = self.orders.get(a.get("order_id"))
        if order is None:
            return f"Error: order {a.get('order_id')} not found"
        if name == "set_status":
            order["status"] = a["status"]
        if name == "void_order":
            order["items"] = []
            return "done"
        return json.dumps({"order_id": a["order_id"], **order})


def play(n: int, *, seed: int = 0, fails: bool = True) -> list[LoggedEpisode]:
    """Random play of n tasks, each in a world of its own; the last action is said and closes the episode."""
    out = []
    for i in range(n):
        r = random.Random(f"{seed}/{i}")
        shop = Shop(f"{seed}/{i}")
        steps, errors = [], []
        for _ in range(12):
            id = r.choice(list(shop.orders))
            pick = r.randrange(9 if fails else 8)
            name, a = [
                ("get_order", {"order_id": id}),
                ("get_order", {"order_id": id}),
                ("get_order", {"order_id": id}),
                ("set_status", {"order_id": id, "status": f"state {r.randrange(10**6)}"}),
                ("void_order", {"order_id": id}) if r.random() < 0.3 else ("think", {"thought": f"hm {r.random()}"}),
                ("list_orders", {}),
                ("calculate", {"expression": f"{r.randrange(99)} * {r.randrange(99)} / 4"}),
                ("think", {"thought": f"so {r.random()}"}),
                ("get_order", {"order_id": "#none"}) if r.random() < 0.5 else ("fly", {"to": "Rome"}),
            ][pick]
            reply = shop.call(name, a)
            if reply.startswith("Error"):
                errors.append(len(steps))
            steps.append((call_text(name, a), reply))
        steps.append((f"All done, {r.random()}.", ""))
        out.append(episode(f"{seed}/{i}", steps, errors=tuple(errors)))
    return out


def airline() -> tuple[list[LoggedEpisode], str]:
    """The real log as episodes, and the system prompt that its runs share."""
    recordings = list(read_logs([TAU]))
    rules = common_rules(recordings)
    return [episode_of(recording, rules=rules)[0] for recording in recordings], rules
