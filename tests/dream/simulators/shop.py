"""A small shop with tools, played at random: the fixture of the simulators' tests.

The stock of each item is fixed. `stock` reads, `order` changes; the task asks for so many of one item, and is achieved
by ordering just these, whether or not one looked at the stock before.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlready.dream.domain import Domain, Ending, ToolSpec, call_text
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import rng

STOCK = {"apples": 3, "books": 2}
DOMAIN = Domain(
    tools={name: ToolSpec(name, {}) for name in ("stock", "order")}, says=True, ending=Ending(words_close=True, cap=8)
)


@dataclass(frozen=True)
class Reads:
    """What a library asks of state rules."""

    reads: frozenset[str] = frozenset({"stock"})


def stock(item: str) -> str:
    return call_text("stock", {"item": item})


def order(item: str, n: int) -> str:
    return call_text("order", {"item": item, "n": n})


def play(task: int, run: int) -> LoggedEpisode:
    """One random run of a task; half of the runs end with the right order."""
    r = rng("shop", task, run)
    items = sorted(STOCK)
    item = items[task % 2]
    wanted = 1 + task // 2 % 2
    left = dict(STOCK)
    actions, replies, errors, done = list[str](), list[str](), list[int](), dict[str, int]()

    def act(action: str, which: str, n: int) -> None:
        actions.append(action)
        if n == 0:
            replies.append(f"{left[which]} {which} left")
        elif n > left[which]:
            errors.append(len(actions) - 1)
            replies.append(f"Error: only {left[which]} {which} left")
        else:
            left[which] -= n
            done[which] = done.get(which, 0) + n
            replies.append(f"ordered {n} {which}")

    for _ in range(r.randrange(3)):
        which = r.choice(items)
        act(stock(which), which, 0)
    kind = r.randrange(4)
    if kind < 2:
        act(order(item, wanted), item, wanted)
    elif kind == 2:
        which, n = r.choice(items), r.randrange(1, 5)
        act(order(which, n), which, n)
    if r.random() < 0.5:
        which = r.choice(items)
        act(stock(which), which, 0)
    actions.append("done")
    replies.append("")
    return LoggedEpisode(
        f"t{task}", f"order {wanted} {item}", tuple(actions), tuple(replies), done == {item: wanted}, True,
        errors=tuple(errors), seed=0,
    )  # fmt: skip


def episodes(runs: int, tasks: int = 4) -> list[LoggedEpisode]:
    return [play(task, run) for task in range(tasks) for run in range(runs)]
