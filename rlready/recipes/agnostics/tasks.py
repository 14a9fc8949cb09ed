"""The small preset's tasks: families with their settings, cut 70/30 by settings, and programs to begin with."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rlready.recipes.agnostics.families import BY_NAME, FAMILIES, READS, Family, Settings
from rlready.recipes.agnostics.programs import written
from rlready.recipes.agnostics.prompts import Problem, fenced, write_prompt
from rlready.rewards.code import Language, Test
from rlready.seeds import rng
from rlready.tasks.base import TaskSet
from rlready.types import Task

TESTS = 3
HELD_OUT, DEV = 0.3, 0.1
_TRIES = 2000

Combo = tuple[Family, Settings]


def cut(seed: int) -> dict[str, list[Combo]]:
    """Every family with every of its settings, in "train", "dev" and "test"; the cut is made within each family."""
    out: dict[str, list[Combo]] = {"train": [], "dev": [], "test": []}
    for family in FAMILIES:
        every = list(family.settings)
        rng(seed, "cut", family.name).shuffle(every)
        test, dev = max(1, round(HELD_OUT * len(every))), round(DEV * len(every))
        parts = {"test": every[:test], "dev": every[test : test + dev], "train": every[test + dev :]}
        for name, part in parts.items():
            out[name] += [(family, settings) for settings in part]
    return out


def problem(family: Family, settings: Settings, chance: random.Random) -> Problem:
    """A task record. Its tests are not all answered alike, so that no program that prints a constant is right."""
    tests: dict[str, str] = {}
    for attempt in range(_TRIES):
        given = family.draw(chance, settings)
        printed = family.solve(given, settings)
        answers = set(tests.values())
        if given not in tests and (printed not in answers or (len(answers) > 1 and attempt > _TRIES // 10)):
            tests[given] = printed
        if len(tests) == TESTS:
            break
    else:
        raise ValueError(f"{family.name} {settings} has no {TESTS} tests that tell programs apart")
    return Problem(
        id="",
        description=chance.choice(family.says).format(**settings),
        input_format=READS[family.reads],
        output_format=family.prints,
        tests=tuple(Test(given, printed) for given, printed in tests.items()),
    )


def tasks(combos: Sequence[Combo], language: Language, n: int, seed: int, name: str) -> TaskSet:
    """So many tasks, going round the families; tips are left out, as a constant text says nothing to a small model.

    A task's data have the record, and a right response as "solution".
    """
    by_family: dict[str, list[Settings]] = {}
    for family, settings in combos:
        by_family.setdefault(family.name, []).append(settings)
    names = list(by_family)

    def one(chance: random.Random, index: int) -> Task:
        family = BY_NAME[names[index % len(names)]]
        settings = chance.choice(by_family[family.name])
        made = problem(family, settings, chance)
        prompt = write_prompt(made, language.prompt, "bare", tips=False)
        program = written(language.name).program(family.name, family.reads, settings, chance)
        data = made.to_json() | {"lang": language.name, "family": family.name, "settings": settings}
        return Task.of(prompt, **data, solution=fenced(program))

    return TaskSet.from_generator(one, n, seed, name=name)
