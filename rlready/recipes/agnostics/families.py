"""Families of small programming tasks: what is asked, how inputs are drawn, and the answer by a Python reference.

A task is a family with its own settings, such as "the sum of the multiples of 7". The families share nothing with any
language: their tests come from the functions here, and how they are written in Python, Lua or OCaml stands in
`programs/`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
Numbers = list[int]

READS = {
    "ints": "one line of whole numbers",
    "words": "one line of words",
    "int": "one whole number",
}
ONE, LINES, WORDS = "one number", "one number per line", "one word per line"
LETTERS = "abcdeglmoprstu"
SMALL, WIDE = range(2, 10), range(2, 22)


@dataclass(frozen=True)
class Family:
    """One kind of task.

    Attributes:
        name: key of its programs.
        says: ways to ask for it; settings stand in braces.
        reads: what its input holds, a key of `READS`.
        prints: what its output holds.
        settings: every value of `k` (and what goes with it) that it may have.
        answer: the lines to print, from what was read and the settings.
        fits: whether an input tells a right program from a wrong one.
    """

    name: str
    says: tuple[str, ...]
    reads: str
    prints: str
    settings: tuple[Settings, ...]
    answer: Callable[[Any, Settings], Iterable[Any]]
    fits: Callable[[Any, Settings], bool] = lambda read, s: True

    def draw(self, chance: random.Random, settings: Settings) -> str:
        """An input."""
        k = settings.get("k", 5)
        while True:
            read: Any
            if self.reads == "int":
                read = chance.randint(1, 12)
                if self.name in ("count_down", "sum_up"):
                    read = k + chance.randint(1, 3 * min(k, 8))
                elif self.name == "divisions":
                    read = chance.randint(1, 30) * k ** chance.randint(0, 3)
            elif self.reads == "words":
                read = [_word(chance, settings.get("c")) for _ in range(chance.randint(3, 5))]
            else:
                read = [_number(chance, settings) for _ in range(chance.randint(4, 6))]
            if self.fits(read, settings):
                return str(read) if self.reads == "int" else " ".join(map(str, read))

    def solve(self, text: str, settings: Settings) -> str:
        """What a right program prints for an input."""
        read: Any = text.split()
        if self.reads == "int":
            read = int(text)
        elif self.reads == "ints":
            read = [int(word) for word in read]
        return "\n".join(str(each) for each in self.answer(read, settings))


def _number(chance: random.Random, settings: Settings) -> int:
    """A number near the settings: often a multiple of k, sometimes k itself."""
    k = int(settings.get("k", 5))
    kind = chance.random()
    if kind < 0.15:
        return k
    if kind < 0.45:
        return k * chance.randint(1, 5)
    return chance.randint(1, 40)


def _word(chance: random.Random, letter: str | None) -> str:
    first = letter if letter and chance.random() < 0.4 else chance.choice(LETTERS)
    return first + "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, 7)))


def _with(values: Iterable[int]) -> tuple[Settings, ...]:
    return tuple({"k": k} for k in values)


def _some(holds: Callable[[int, int], bool]) -> Callable[[Numbers, Settings], bool]:
    """Some of the numbers hold and some do not."""
    return lambda xs, s: 0 < sum(holds(x, s["k"]) for x in xs) < len(xs)


def _running(first: int, xs: Numbers, join: Callable[[int, int], int]) -> list[int]:
    out, now = [], first
    for x in xs:
        now = join(now, x)
        out.append(now)
    return out


def _divisions(n: int, k: int) -> int:
    count = 0
    while n % k == 0:
        n, count = n // k, count + 1
    return count


_over = _some(lambda x, k: x > k)
_under = _some(lambda x, k: x < k)
_multiple = _some(lambda x, k: x % k == 0)
_alone = lambda xs, s: len({abs(x - s["k"]) for x in xs}) == len(set(xs))  # noqa: E731  no two are equally near

FAMILIES: tuple[Family, ...] = (
    Family(
        "sum_multiples", ("Add up the numbers that are multiples of {k}.", "Print the sum of all multiples of {k}."),
        "ints", ONE, _with(WIDE), lambda xs, s: [sum(x for x in xs if x % s["k"] == 0)], _multiple,
    ),
    Family(
        "count_multiples", ("Count the numbers that are multiples of {k}.", "How many multiples of {k} are there?"),
        "ints", ONE, _with(WIDE), lambda xs, s: [sum(x % s["k"] == 0 for x in xs)], _multiple,
    ),
    Family(
        "sum_above", ("Add up the numbers greater than {k}.", "Print the sum of all numbers greater than {k}."),
        "ints", ONE, _with(WIDE), lambda xs, s: [sum(x for x in xs if x > s["k"])], _over,
    ),
    Family(
        "count_below", ("Count the numbers less than {k}.", "How many numbers less than {k} are there?"),
        "ints", ONE, _with(WIDE[1:]), lambda xs, s: [sum(x < s["k"] for x in xs)], _under,
    ),
    Family(
        "greatest_rest", ("Print the greatest remainder after division by {k}.",
                          "Divide each number by {k} and print the greatest remainder."),
        "ints", ONE, _with(WIDE[1:]), lambda xs, s: [max(x % s["k"] for x in xs)], _some(lambda x, k: x % k > 0),
    ),
    Family(
        "nearest", ("Print the number nearest to {k}.", "Which number is nearest to {k}?"),
        "ints", ONE, _with(WIDE), lambda xs, s: [min(xs, key=lambda x: abs(x - s["k"]))], _alone,
    ),
    Family(
        "position", ("Print the place of the first {k}, counted from 1.", "At which place, from 1, is the first {k}?"),
        "ints", ONE, _with(WIDE), lambda xs, s: [xs.index(s["k"]) + 1], lambda xs, s: s["k"] in xs[1:],
    ),
    Family(
        "sum_first", ("Add up the first {k} numbers.", "Print the sum of the first {k} numbers."),
        "ints", ONE, _with(range(2, 5)), lambda xs, s: [sum(xs[: s["k"]])], lambda xs, s: len(xs) > s["k"],
    ),
    Family(
        "add_each", ("Add {k} to each number.", "Print each number plus {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [x + s["k"] for x in xs],
    ),
    Family(
        "times_each", ("Multiply each number by {k}.", "Print each number times {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [x * s["k"] for x in xs],
    ),
    Family(
        "rest_each", ("Print the remainder of each number after division by {k}.",
                      "Divide each number by {k} and print the remainder."),
        "ints", LINES, _with(WIDE), lambda xs, s: [x % s["k"] for x in xs], _some(lambda x, k: x % k > 0),
    ),
    Family(
        "distance_each", ("Print how far each number is from {k}.", "Print the distance of each number from {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [abs(x - s["k"]) for x in xs], _under,
    ),
    Family(
        "cap_each", ("Print each number, but {k} where it is greater than {k}.",
                     "Replace each number greater than {k} by {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [min(x, s["k"]) for x in xs], _over,
    ),
    Family(
        "keep_above", ("Print the numbers greater than {k}.", "Keep only the numbers greater than {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [x for x in xs if x > s["k"]], _over,
    ),
    Family(
        "drop_multiples", ("Print the numbers that are not multiples of {k}.", "Leave out the multiples of {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: [x for x in xs if x % s["k"]], _multiple,
    ),
    Family(
        "swap_value", ("Replace each {k} by {j}.", "Print each number, but {j} in place of {k}."),
        "ints", LINES, tuple({"k": k, "j": (7 * k) % 23 + 1} for k in WIDE),
        lambda xs, s: [s["j"] if x == s["k"] else x for x in xs], _some(lambda x, k: x == k),
    ),
    Family(
        "running_sum", ("Start at {k} and print the running sum.", "Print the running sum, beginning with {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: _running(s["k"], xs, lambda a, b: a + b),
    ),
    Family(
        "running_greatest", ("Start at {k} and print the greatest so far.",
                             "Print the greatest number so far, beginning with {k}."),
        "ints", LINES, _with(WIDE), lambda xs, s: _running(s["k"], xs, max), _over,
    ),
    Family(
        "from_place", ("Print the numbers from place {k} on.", "Leave out what comes before place {k}."),
        "ints", LINES, _with(range(2, 5)), lambda xs, s: xs[s["k"] - 1 :], lambda xs, s: len(xs) >= s["k"],
    ),
    Family(
        "multiples_up", ("Read n and print the first n multiples of {k}.", "Print the n smallest multiples of {k}."),
        "int", LINES, _with(WIDE), lambda n, s: [i * s["k"] for i in range(1, n + 1)],
    ),
    Family(
        "count_down", ("Count down from n by {k} while above 0.", "From n go down by {k} as long as it is above 0."),
        "int", LINES, _with(SMALL), lambda n, s: range(n, 0, -s["k"]),
    ),
    Family(
        "sum_up", ("Add up the numbers from {k} to n.", "Print the sum of the numbers from {k} to n."),
        "int", ONE, _with(WIDE), lambda n, s: [sum(range(s["k"], n + 1))],
    ),
    Family(
        "divisions", ("How often can n be divided by {k}?", "Count how often {k} divides n."),
        "int", ONE, _with(SMALL), lambda n, s: [_divisions(n, s["k"])],
    ),
    Family(
        "longer_words", ("Count the words longer than {k} letters.", "How many words are longer than {k} letters?"),
        "words", ONE, _with(range(2, 7)), lambda ws, s: [sum(len(w) > s["k"] for w in ws)],
        lambda ws, s: 0 < sum(len(w) > s["k"] for w in ws) < len(ws),
    ),
    Family(
        "cut_words", ("Print the first {k} letters of each word.", "Cut each word after {k} letters."),
        "words", WORDS, _with(range(2, 7)), lambda ws, s: [w[: s["k"]] for w in ws],
        lambda ws, s: any(len(w) > s["k"] for w in ws),
    ),
    Family(
        "starting_words", ('Print the words that start with "{c}".', 'Keep only the words that start with "{c}".'),
        "words", WORDS, tuple({"c": c} for c in LETTERS), lambda ws, s: [w for w in ws if w[0] == s["c"]],
        lambda ws, s: 0 < sum(w[0] == s["c"] for w in ws) < len(ws),
    ),
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}
