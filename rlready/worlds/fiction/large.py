"""The large setting, "shop": hundreds of records, invented names, long look-ups, pages; for language models.

A ticket names a customer and a good, in words. The order must be found (by family name, page by page; then among the
customer's orders), and what is right depends on up to three of five facts that stand in as many tables. Writes need
arguments that must be looked up as well: an amount, a warehouse, a team.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.seeds import rng
from rlready.types import Task
from rlready.worlds.fiction.names import CATEGORIES, goods, numbers, people
from rlready.worlds.fiction.rules import NOTHING, Fact, draw_rules
from rlready.worlds.fiction.setting import (
    NOT_ALLOWED,
    UNKNOWN_CUSTOMER,
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

PAGE = 5
WAREHOUSES = ("north", "east", "south")
TEAMS = ("claims", "freight", "quality")
STATUSES = ("placed", "shipped", "delivered")
KINDS = ("broken", "late", "unwanted", "wrong")
LEAST_ROWS, MOST_ROWS = 60, 2000
_TEXTS = {
    "broken": ("the {good} I ordered does not work", "there is a crack in my {good}"),
    "late": ("I am still waiting for news of my {good}", "my {good} takes too long"),
    "unwanted": ("I do not want the {good} any more", "please call back the {good}, I changed my mind"),
    "wrong": ("the {good} is not what I meant to order", "I took the {good} for another model"),
}
_FACTS = (
    Fact("status", dict.fromkeys(STATUSES, 1 / 3), "delivered"),
    Fact("stock", {"some": 2 / 3, "none": 1 / 3}, "some"),
    Fact("age", {"in time": 1 / 2, "too late": 1 / 2}, "in time"),
    Fact("size", {"small": 1 / 2, "large": 1 / 2}, "small"),
    Fact("tier", {"gold": 1 / 3, "plain": 2 / 3}, "plain"),
)
_OPTIONS = {
    "placed": ("cancel", "escalate", NOTHING),
    "shipped": ("refund", "replace", "escalate", NOTHING),
    "delivered": ("refund", "replace", "escalate", NOTHING),
}
_MEANING = """A ticket is settled by one of: refund, replace, cancel, escalate, nothing. Facts of an order:
stock is "some" where a warehouse holds at least the ordered quantity, else "none";
age is "in time" where the order's days are at most the category's return_days, else "too late";
size is "small" where quantity times price is at most the category's refund_limit, else "large";
tier is the customer's. A refund pays quantity times price. A replacement is sent from the warehouse that holds most.
An escalation goes to the category's team. For "nothing", change nothing. The rules, by complaint:"""
_TOOLS = (
    "find_customer", "list_orders", "get_order", "get_item", "check_stock", "get_policy", "refund", "replace", "cancel",
    "escalate",
)  # fmt: skip


class ShopTools:
    """The tools over one shop's tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def find_customer(self, name: str, page: int = 1) -> Record:
        """Customers whose name contains a text, a page at a time."""
        rows = [row for row in self._tables["customers"].values() if name.casefold() in row["name"].casefold()]
        return _page("customers", rows, page) if rows else error(UNKNOWN_CUSTOMER)

    def list_orders(self, customer: str, page: int = 1) -> Record:
        """The orders of a customer, by customer id, a page at a time."""
        if customer not in self._tables["customers"]:
            return error(UNKNOWN_CUSTOMER)
        items = self._tables["items"]
        rows = [
            {"order": row["order"], "item": row["item"], "name": items[row["item"]]["name"]}
            for row in self._tables["orders"].values()
            if row["customer"] == customer
        ]
        return _page("orders", rows, page)

    def get_order(self, order: str) -> Record:
        """Show an order, by its id. Days are counted since it was delivered, shipped or placed."""
        return self._tables["orders"].get(order) or error(UNKNOWN_ORDER)

    def get_item(self, item: str) -> Record:
        """Show an item, by its id."""
        return self._tables["items"].get(item) or error(UNKNOWN_ITEM)

    def check_stock(self, item: str) -> Record:
        """Units of an item in each warehouse."""
        if item not in self._tables["items"]:
            return error(UNKNOWN_ITEM)
        return {"item": item, "units": {w: self._tables["stock"][f"{item}@{w}"]["units"] for w in WAREHOUSES}}

    def get_policy(self, category: str) -> Record:
        """The limits of a category of items."""
        return self._tables["policies"].get(category) or error(UNKNOWN_ITEM)

    def refund(self, order: str, amount: int) -> Record:
        """Pay an amount back for a shipped or delivered order."""
        row = self._tables["orders"].get(order)
        if row is None:
            return error(UNKNOWN_ORDER)
        if row["status"] not in ("shipped", "delivered") or not 0 < amount <= self._worth(row):
            return error(NOT_ALLOWED)
        row.update(status="refunded", paid_back=amount)
        return row

    def replace(self, order: str, warehouse: str) -> Record:
        """Send a shipped or delivered order anew from a warehouse that holds enough."""
        row = self._tables["orders"].get(order)
        if row is None:
            return error(UNKNOWN_ORDER)
        stock = self._tables["stock"].get(f"{row['item']}@{warehouse}")
        if row["status"] not in ("shipped", "delivered") or stock is None or stock["units"] < row["quantity"]:
            return error(NOT_ALLOWED)
        stock["units"] -= row["quantity"]
        row.update(status="replaced", sent_from=warehouse)
        return row

    def cancel(self, order: str) -> Record:
        """Call off an order that is not yet shipped."""
        row = self._tables["orders"].get(order)
        if row is None:
            return error(UNKNOWN_ORDER)
        if row["status"] != "placed":
            return error(NOT_ALLOWED)
        row["status"] = "cancelled"
        return row

    def escalate(self, order: str, team: str) -> Record:
        """Hand an order over to a team."""
        row = self._tables["orders"].get(order)
        if row is None:
            return error(UNKNOWN_ORDER)
        if row["status"] not in STATUSES or team not in TEAMS:
            return error(NOT_ALLOWED)
        row.update(status="escalated", team=team)
        return row

    def _worth(self, row: Record) -> int:
        return int(row["quantity"]) * int(self._tables["items"][row["item"]]["price"])


def _page(name: str, rows: Sequence[Record], page: int) -> Record:
    """One page of rows; a page that there is not is empty."""
    first = (page - 1) * PAGE if page >= 1 else len(rows)
    return {name: list(rows[first : first + PAGE]), "page": page, "pages": max(1, -(-len(rows) // PAGE))}


class Large(Setting):
    """The shop; see the module's docstring."""

    def __init__(self, seed: int = 0, *, rows: int = 400, cap: int = 24) -> None:
        """Draw the rules.

        Args:
            seed: of the family of shops: its rules.
            rows: records per shop, about.
            cap: most turns of an episode.

        Raises:
            UserError: the number of rows cannot work.
        """
        if not LEAST_ROWS <= rows <= MOST_ROWS:
            raise UserError(f"A shop has {LEAST_ROWS} to {MOST_ROWS} rows, not {rows}.")
        self.name, self.cap, self.max_calls, self.actions = "shop", cap, 8, None
        self.rows = rows
        self.rules = draw_rules(
            seed, KINDS, _FACTS, _OPTIONS, needs={"replace": ("stock", "some")}, depth=2, most=0.36, least_kinds=4
        )

    @property
    def instructions(self) -> str:
        """The trade, what the facts mean, and the rules."""
        head = f"You work at the service desk of a shop. Settle the ticket in at most {self.cap} turns."
        return f"{head} {_MEANING}\n{self.rules.text}"

    def tables(self, seed: int) -> Tables:
        """Customers (a quarter of the rows), orders (two fifths), items and their stock (a third), policies."""
        chance = rng(seed, "fiction", "shop")
        buyers, kinds, sales = self.rows // 4, max(8, self.rows // 12), self.rows * 2 // 5
        customers: list[Record] = [
            {"customer": number, "name": name, "tier": _draw(chance, "tier")}
            for number, name in zip(numbers(chance, "K", buyers), people(chance, buyers), strict=True)
        ]
        items: list[Record] = [
            {"item": number, "name": name, "category": category, "price": chance.randint(4, 60)}
            for number, (name, category) in zip(numbers(chance, "A", kinds, 4), goods(chance, kinds), strict=True)
        ]
        stock: list[Record] = []
        for item in items:
            most = chance.randint(6, 40) if _draw(chance, "stock") == "some" else 0
            held = [most, *chance.sample(range(most), 2)] if most else [0, 0, 0]  # distinct, so that "most" is one
            chance.shuffle(held)
            stock += [{"item": item["item"], "warehouse": w, "units": n} for w, n in zip(WAREHOUSES, held, strict=True)]
        policies: list[Record] = [
            {
                "category": c,
                "return_days": chance.randint(10, 40),
                "refund_limit": chance.randint(30, 120),
                "team": chance.choice(TEAMS),
            }
            for c in CATEGORIES
        ]
        owners = chance.choices(customers[: max(1, buyers // 3)], k=sales // 2) + chance.choices(
            customers, k=sales - sales // 2
        )
        taken: set[tuple[str, str]] = set()
        orders: list[Record] = []
        for number, owner in zip(numbers(chance, "B", sales), owners, strict=True):
            free = [item for item in items if (owner["customer"], item["item"]) not in taken]
            if free:
                item = chance.choice(free)
                taken.add((owner["customer"], item["item"]))
                orders.append(_order(number, owner, item, chance))
        return {
            "customers": {row["customer"]: row for row in customers},
            "items": {row["item"]: row for row in items},
            "stock": {f"{row['item']}@{row['warehouse']}": row for row in stock},
            "policies": {row["category"]: row for row in policies},
            "orders": {row["order"]: row for row in orders},
        }

    def ticket(self, tables: Tables, chance: random.Random) -> dict[str, Any]:
        """A complaint about one of the orders, by names."""
        order = tables["orders"][chance.choice(sorted(tables["orders"]))]
        kind = chance.choice(KINDS)
        customer, good = tables["customers"][order["customer"]]["name"], tables["items"][order["item"]]["name"]
        text = f"This is {customer}: {chance.choice(_TEXTS[kind]).format(good=good)}."
        return {"kind": kind, "order": order["order"], "customer": customer, "good": good, "text": text}

    def tools(self, tables: Tables) -> Tools:
        """The ten."""
        made = ShopTools(tables)
        return [getattr(made, name) for name in _TOOLS]

    def facts(self, tables: Tables, ticket: Ticket) -> dict[str, str]:
        """The five facts."""
        order = tables["orders"][ticket["order"]]
        item = tables["items"][order["item"]]
        units = {w: tables["stock"][f"{order['item']}@{w}"]["units"] for w in WAREHOUSES}
        tier = tables["customers"][order["customer"]]["tier"]
        return _facts(order, item, tables["policies"][item["category"]], units, tier)

    def settle(self, tables: Tables, ticket: Ticket, resolution: str) -> None:
        """Use the tools as the policy wants."""
        if resolution == NOTHING:
            return
        order = tables["orders"][ticket["order"]]
        item = tables["items"][order["item"]]
        units = {w: tables["stock"][f"{order['item']}@{w}"]["units"] for w in WAREHOUSES}
        arguments = _arguments(resolution, order, item, tables["policies"][item["category"]], units)
        getattr(ShopTools(tables), resolution)(**arguments)

    def play(self, task: Task, chance: random.Random, skip: float, waste: float) -> Play:
        """Find the order, look up what the rules ask, act. What is not looked up is assumed."""
        ticket = ticket_of(task)
        found = yield from self._find(ticket)
        if found is None:
            return
        customer, order = found
        item = read((yield call("get_item", item=order["item"])))
        if not item:
            return
        if chance.random() < waste:
            yield call("check_stock", item=order["item"])
        looked = self.rules.assumed | {"status": order["status"], "tier": customer["tier"]}
        limits: Record = {}
        units: dict[str, int] = {}
        known = {"status", "tier"}
        while True:
            ask = [name for name in self.rules.asked(ticket["kind"], looked) if name not in known]
            if not ask:
                break
            known.add(ask[0])
            if chance.random() < skip:
                continue
            if ask[0] == "stock":
                units = read((yield call("check_stock", item=order["item"]))).get("units", {})
                looked["stock"] = "some" if units and max(units.values()) >= order["quantity"] else "none"
            else:
                limits = limits or read((yield call("get_policy", category=item["category"])))
                if limits:
                    looked |= {k: v for k, v in _facts(order, item, limits, {}, "").items() if k in ("age", "size")}
                    known |= {"age", "size"}
        yield from self._act(self.rules.resolution(ticket["kind"], looked), order, item, limits, units)

    def play_blind(self, task: Task, chance: random.Random, resolution: str) -> Play:
        """Find the order, which writing needs, and carry the resolution out."""
        if resolution == NOTHING:
            return
        found = yield from self._find(ticket_of(task))
        if found is not None:
            item = read((yield call("get_item", item=found[1]["item"])))
            yield from self._act(resolution, found[1], item, {}, {})

    def random_action(self, task: Task, chance: random.Random) -> str:
        """A tool with arguments from the ticket, from thin air, or of wrong kinds."""
        ticket = ticket_of(task)
        words = [ticket["customer"], ticket["customer"].split()[-1], ticket["good"], "B-00000", *CATEGORIES, *TEAMS]
        tool = chance.choice((*_TOOLS, "get_customer"))
        names = {
            "find_customer": "name",
            "list_orders": "customer",
            "get_item": "item",
            "check_stock": "item",
            "get_policy": "category",
        }
        return call(tool, **{names.get(tool, "order"): chance.choice(words)})

    def _find(self, ticket: Ticket) -> Any:
        """Customer and order by their names, page by page; None where they are not found."""
        family = ticket["customer"].split()[-1]
        customer = yield from _pages("find_customer", "customers", "name", ticket["customer"], name=family)
        if customer is None:
            return None
        row = yield from _pages("list_orders", "orders", "name", ticket["good"], customer=customer["customer"])
        if row is None:
            return None
        order = read((yield call("get_order", order=row["order"])))
        return (customer, order) if order else None

    def _act(self, resolution: str, order: Record, item: Record, limits: Record, units: dict[str, int]) -> Play:
        """The write, after looking up what its arguments need."""
        if resolution == NOTHING or not item:
            return
        if resolution == "replace" and not units:
            units = read((yield call("check_stock", item=order["item"]))).get("units", {})
        if resolution == "escalate" and not limits:
            limits = read((yield call("get_policy", category=item["category"])))
        if (resolution != "replace" or units) and (resolution != "escalate" or limits):
            yield call(resolution, **_arguments(resolution, order, item, limits, units))


def _pages(tool: str, column: str, key: str, wanted: str, **arguments: Any) -> Any:
    """Turn pages until a row has the wanted value; None where none has."""
    page = pages = 1
    while page <= pages:
        seen = read((yield call(tool, **arguments, **({"page": page} if page > 1 else {}))))
        rows: Iterable[Record] = seen.get(column, ())
        for row in rows:
            if row[key] == wanted:
                return row
        pages, page = seen.get("pages", 0), page + 1
    return None


def _order(number: str, owner: Record, item: Record, chance: random.Random) -> Record:
    return {
        "order": number,
        "customer": owner["customer"],
        "item": item["item"],
        "quantity": chance.randint(1, 4),
        "status": chance.choice(STATUSES),
        "days": chance.randint(1, 50),
    }


def _draw(chance: random.Random, name: str) -> str:
    chances = next(fact.chances for fact in _FACTS if fact.name == name)
    return chance.choices(list(chances), list(chances.values()))[0]


def _facts(order: Record, item: Record, limits: Record, units: dict[str, int], tier: str) -> dict[str, str]:
    return {
        "status": order["status"],
        "stock": "some" if units and max(units.values()) >= order["quantity"] else "none",
        "age": "in time" if order["days"] <= limits["return_days"] else "too late",
        "size": "small" if order["quantity"] * item["price"] <= limits["refund_limit"] else "large",
        "tier": tier,
    }


def _arguments(resolution: str, order: Record, item: Record, limits: Record, units: dict[str, int]) -> dict[str, Any]:
    out: dict[str, Any] = {"order": order["order"]}
    if resolution == "refund":
        out["amount"] = order["quantity"] * item["price"]
    elif resolution == "replace":
        out["warehouse"] = max(units, key=lambda w: units[w])
    elif resolution == "escalate":
        out["team"] = limits["team"]
    return out
