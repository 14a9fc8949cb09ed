"""Invented names, by syllables: nobody and nothing is called so outside the tables."""

from __future__ import annotations

import random

_STARTS = (
    "Bra",
    "Cel",
    "Dor",
    "Fen",
    "Gal",
    "Hes",
    "Jor",
    "Kel",
    "Lum",
    "Mar",
    "Nov",
    "Orl",
    "Pel",
    "Quin",
    "Ras",
    "Sel",
)
_MIDDLES = ("a", "e", "i", "o", "u", "an", "el", "ir", "os", "un")
_ENDS = ("dan", "fer", "gil", "ka", "lo", "mir", "nax", "pen", "rix", "sa", "ton", "vek")
_FAMILIES = (
    "Tovin",
    "Ambrel",
    "Kestik",
    "Noravel",
    "Pashun",
    "Ruldek",
    "Wyzan",
    "Ostrel",
    "Imbasi",
    "Dovenka",
    "Lirrup",
    "Gantesh",
)
_LOOKS = ("amber", "brass", "copper", "folding", "grey", "linen", "oak", "painted", "quilted", "round", "tall", "woven")
_THINGS = {
    "home": ("lamp", "rug", "clock", "stool", "shelf"),
    "kitchen": ("kettle", "pan", "mug", "scale", "tray"),
    "garden": ("hose", "rake", "pot", "lantern", "bench"),
    "travel": ("bag", "flask", "tent", "map case", "pillow"),
}
CATEGORIES = tuple(_THINGS)


def people(chance: random.Random, count: int) -> list[str]:
    """Distinct full names; family names repeat."""
    out: dict[str, None] = {}
    while len(out) < count:
        given = chance.choice(_STARTS) + chance.choice(_MIDDLES) + chance.choice(_ENDS)
        out[f"{given} {chance.choice(_FAMILIES)}"] = None
    return list(out)


def goods(chance: random.Random, count: int) -> list[tuple[str, str]]:
    """Distinct names of goods, each with its category; at most 240."""
    every = [
        (f"{look} {thing}", category) for category, things in _THINGS.items() for thing in things for look in _LOOKS
    ]
    return chance.sample(every, count)


def numbers(chance: random.Random, prefix: str, count: int, digits: int = 5) -> list[str]:
    """Distinct ids such as K-40213, in no order."""
    return [f"{prefix}-{n}" for n in chance.sample(range(10 ** (digits - 1), 10**digits), count)]
