"""Numbers and expressions with units and percent signs, by rules that are stated.

Units, `units=`:

    "given"    (the rule) where both sides have a unit, they must be the same amount: 18 cm is 0.18 m and not 18 m.
               Where only one side has one, it is taken as read. Words that are no known unit ("apples") must share a
               word.
    "needed"   as "given", and a unit of the gold must not be missing in the answer
    "ignored"  only the numbers count

Percent, `percent=`:

    "either"   (the rule) where only one side has the sign, 50% may stand for 0.5 as well as for 50
    "value"    50% is 0.5 and nothing else
    "sign"     the sign is a unit: 50% is 50% or a plain 50
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlready.rewards.mathematics.decide import Answer, Prover, equal
from rlready.rewards.mathematics.tree import Budget, Node, num, walk
from rlready.rewards.mathematics.words import Unit

UnitRule = Literal["given", "needed", "ignored"]
PercentRule = Literal["either", "value", "sign"]
UNIT_RULES = ("given", "needed", "ignored")
PERCENT_RULES = ("either", "value", "sign")
_ANGLE = (("angle", 1),)
_ANY = frozenset(("unit", "units"))


@dataclass(frozen=True, slots=True)
class Rules:
    """The stated rules; see the module."""

    units: UnitRule = "given"
    percent: PercentRule = "either"


def same_quantity(gold: Node, given: Node, rules: Rules, budget: Budget, prover: Prover | None) -> Answer:
    """Whether two numbers or expressions, with or without unit or percent sign, are the same."""
    if gold.op == "unit" or given.op == "unit":
        return _units(gold, given, rules, budget, prover)
    if (gold.op == "percent") != (given.op == "percent"):
        return _percents(gold, given, rules, budget, prover)
    if gold.op == "percent":
        gold, given = gold.args[0], given.args[0]
    return equal(gold, given, budget, prover)


def _percents(gold: Node, given: Node, rules: Rules, budget: Budget, prover: Prover | None) -> Answer:
    answers = []
    for drop in {"either": (True, False), "value": (False,), "sign": (True,)}[rules.percent]:
        a, b = (n.args[0] if drop and n.op == "percent" else n for n in (gold, given))
        answers.append(equal(a, b, budget, prover))
        if answers[-1].equal:
            return Answer(True, f"one side is in percent, rule {rules.percent!r}")
    return next((a for a in answers if a.equal is None), answers[0])


def _units(gold: Node, given: Node, rules: Rules, budget: Budget, prover: Prover | None) -> Answer:
    if gold.op != given.op:
        plain, quantity = (gold, given) if given.op == "unit" else (given, gold)
        if len(quantity.args) == 2 and any(n.op == "sym" for n in walk(plain)):  # "5 m" may be 5 times m
            whole = quantity.args[1]
            return equal(gold, whole, budget, prover) if plain is gold else equal(whole, given, budget, prover)
        if gold.op == "unit" and rules.units == "needed":
            return Answer(False, "the gold's unit is missing")
        a, b = (n.args[0] if n.op == "unit" else n for n in (gold, given))
        verdict = same_quantity(a, b, rules, budget, prover)
        if verdict.equal is False and quantity.value.dims == _ANGLE and rules.units != "ignored":
            a, b = (_radians(n) if n.op == "unit" else n for n in (gold, given))
            verdict = equal(a, b, budget, prover)
        return verdict
    a, b = gold.args[0], given.args[0]
    one, other = gold.value, given.value
    if rules.units == "ignored" or one == other:
        return same_quantity(a, b, rules, budget, prover)
    if one.noun or other.noun:
        if _share(one, other):
            return same_quantity(a, b, rules, budget, prover)
        return Answer(False, "the units differ")
    if one.dims != other.dims:
        return Answer(False, "the units differ")
    return equal(_scaled(a, one), _scaled(b, other), budget, prover)


def _share(a: Unit, b: Unit) -> bool:
    words, others = (set(u.noun.split()) for u in (a, b))
    if words <= _ANY or others <= _ANY:
        return True
    return bool({_stem(w) for w in words} & {_stem(w) for w in others})


def _stem(word: str) -> str:
    return word[:-2] if word.endswith("es") and len(word) > 4 else word[:-1] if word.endswith("s") else word


def _scaled(node: Node, unit: Unit) -> Node:
    return Node("mul", (node, num(Fraction(unit.factor))))


def _radians(node: Node) -> Node:
    return Node("fn", (_scaled(node.args[0], node.value),), "degree")
