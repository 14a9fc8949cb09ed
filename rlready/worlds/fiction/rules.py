"""The policy of a fictional shop: which resolution a ticket deserves, as a function of hidden facts.

A rule set is drawn from a seed. For each kind of complaint it is a small decision tree: the first question is the
order's status, a branch may ask one or two more facts, a leaf names a resolution. Drawing is repeated until no
resolution is right too often, so that acting without looking cannot pay, and until doing nothing is right somewhere.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlready.errors import UserError
from rlready.seeds import rng

Facts = Mapping[str, str]
NOTHING = "nothing"
_TRIES = 20_000


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a rule may ask.

    Attributes:
        name: such as "stock".
        chances: probability of each value, as the tables are drawn; they sum to 1.
        assumed: what somebody who does not look takes for granted.
    """

    name: str
    chances: Mapping[str, float]
    assumed: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One path of a tree: for this kind of complaint, where these facts hold, this resolution is right."""

    kind: str
    when: Facts
    then: str

    def fits(self, kind: str, facts: Facts) -> bool:
        """Whether the rule speaks of this ticket."""
        return kind == self.kind and all(facts[name] == value for name, value in self.when.items())

    @property
    def text(self) -> str:
        """As a sentence for the agent."""
        return f"{self.kind}, {', '.join(f'{name} {value}' for name, value in self.when.items())}: {self.then}."


@dataclass(frozen=True)
class RuleSet:
    """All rules of a shop. For every kind and every combination of facts exactly one rule fits.

    Attributes:
        facts: what rules may ask; the first is asked first.
        rules: in the order of kinds and branches.
    """

    facts: tuple[Fact, ...]
    rules: tuple[Rule, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of complaint."""
        return tuple(dict.fromkeys(rule.kind for rule in self.rules))

    @property
    def text(self) -> str:
        """The policy, one rule a line."""
        return "\n".join(rule.text for rule in self.rules)

    def resolution(self, kind: str, facts: Facts) -> str:
        """What is right."""
        return next(rule.then for rule in self.rules if rule.fits(kind, facts))

    def possible(self, kind: str) -> tuple[str, ...]:
        """Every resolution that is right for some facts, in order of first mention."""
        return tuple(dict.fromkeys(rule.then for rule in self.rules if rule.kind == kind))

    def asked(self, kind: str, facts: Facts) -> tuple[str, ...]:
        """The facts that decide this ticket, in the order of asking."""
        return tuple(next(rule.when for rule in self.rules if rule.fits(kind, facts)))

    def chances(self, kind: str) -> dict[str, float]:
        """How often each resolution is right, as the tables are drawn."""
        out: defaultdict[str, float] = defaultdict(float)
        names = [fact.name for fact in self.facts]
        for values in itertools.product(*(fact.chances.items() for fact in self.facts)):
            p = 1.0
            for _, chance in values:
                p *= chance
            out[self.resolution(kind, dict(zip(names, (v for v, _ in values), strict=True)))] += p
        return dict(out)

    @property
    def assumed(self) -> dict[str, str]:
        """What somebody who does not look takes for granted."""
        return {fact.name: fact.assumed for fact in self.facts}


def draw_rules(
    seed: int,
    kinds: Sequence[str],
    facts: Sequence[Fact],
    options: Mapping[str, Sequence[str]],
    *,
    needs: Mapping[str, tuple[str, str]] | None = None,
    depth: int = 1,
    most: float = 0.36,
    least_kinds: int = 3,
    least_facts: int = 1,
) -> RuleSet:
    """Draw a rule set.

    Args:
        seed: of the family.
        kinds: of complaints.
        facts: the first is the root of every tree.
        options: the resolutions that may be right for each value of the first fact.
        needs: resolution -> (fact, value) without which it cannot be right.
        depth: questions beyond the first on a path, at most.
        most: how often the commonest resolution of a kind may be right.
        least_kinds: distinct resolutions per kind, at least.
        least_facts: facts that every path asks, at least; never more than `depth` + 1.

    Raises:
        UserError: no rule set meets the conditions.
    """
    chance = rng(seed, "fiction", "rules")
    root = facts[0]
    found: list[Rule] = []
    for kind in kinds:
        for _ in range(_TRIES):
            rules = [
                Rule(kind, when, then)
                for value in root.chances
                for when, then in _branch({root.name: value}, facts[1:], options[value], needs or {}, depth, chance)
            ]
            drawn = RuleSet(tuple(facts), tuple(rules))
            shares = drawn.chances(kind)
            asked = min(len(rule.when) for rule in rules)
            if (
                asked >= least_facts
                and len(shares) >= least_kinds
                and max(shares.values()) <= most
                and NOTHING in shares
            ):
                found += rules
                break
        else:
            raise UserError(
                f'fiction: no rules for "{kind}" with each resolution right in at most {most:.0%} of cases were found '
                f"in {_TRIES} draws. Allow more, or offer more resolutions."
            )
    return RuleSet(tuple(facts), tuple(found))


def _branch(
    when: dict[str, str],
    facts: Sequence[Fact],
    options: Sequence[str],
    needs: Mapping[str, tuple[str, str]],
    depth: int,
    chance: random.Random,
) -> Iterator[tuple[dict[str, str], str]]:
    """The paths below a node: its answers so far, and the resolution."""
    open_facts = [fact for fact in facts if fact.name not in when]
    if depth and open_facts and chance.random() < 0.75:
        fact = chance.choice(open_facts)
        paths = [
            path
            for value in fact.chances
            for path in _branch({**when, fact.name: value}, facts, options, needs, depth - 1, chance)
        ]
        if len({then for _, then in paths}) > 1:  # else the question decides nothing
            yield from paths
        else:
            yield when, paths[0][1]
        return
    able = [o for o in options if o not in needs or when.get(needs[o][0]) == needs[o][1]]
    yield when, chance.choice(able)
