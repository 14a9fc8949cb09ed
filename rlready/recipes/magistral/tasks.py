r"""Arithmetic and unit problems in four languages, demonstrations of how to think about them, and their reward.

A problem is a sentence whose numbers are written by place ("300 40 2"), so that the tokenizer is one of
words and the model must reckon. Problems with the same numbers fall into the same split, whatever language they are in.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rlready.recipes.magistral.languages import KINDS, LANGUAGES, NAMES, Language
from rlready.rewards import ThinkFormat, answer_of, compose, same_language, soft_length, think_format, verify_number
from rlready.rewards.language import Classify
from rlready.scoring import RewardFn, declare
from rlready.seeds import rng
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory

FORM = ThinkFormat(open="<think>", close="</think>", answer="boxed")
CODES = tuple(LANGUAGES)
RANGES = {
    "add": ((11, 89), (2, 9)),
    "subtract": ((21, 99), (2, 9)),
    "multiply": ((11, 99), (2, 4)),
    "hours": ((2, 9), (5, 55)),
    "metres": ((2, 9), (11, 99)),
}
SPLITS = {"sft": 0.5, "rl": 0.35, "dev": 0.05, "test": 0.1}


def problem(chance: random.Random, index: int) -> Task:
    """One problem; `data` has the answer as it is to be written, language, kind and the two numbers."""
    language = LANGUAGES[CODES[index % len(CODES)]]
    kind = chance.choice(KINDS)
    a, b = _numbers(kind, chance)
    thing = {"hours": language.minutes, "metres": language.centimetres}.get(kind) or chance.choice(language.things)
    said = chance.choice(language.questions[kind])
    text = said.format(a=places(a), b=places(b), n=thing, p=chance.choice(NAMES))
    data = {
        "answer": places(result(kind, a, b)),
        "language": language.code,
        "kind": kind,
        "a": a,
        "b": b,
        "thing": thing,
    }
    return Task.of(text, **data)


def problems(n: int, seed: int) -> dict[str, TaskSet]:
    """Problems in splits "sft", "rl", "dev" and "test"; no two splits share a pair of numbers of a kind."""
    drawn = TaskSet.from_generator(problem, n, seed, name="problems")
    return drawn.split(SPLITS, seed=seed, key=lambda t: f"{t.data['kind']} {t.data['a']} {t.data['b']}")


def _numbers(kind: str, chance: random.Random) -> tuple[int, int]:
    first, second = RANGES[kind]
    return chance.randint(*first), chance.randint(*second)


def result(kind: str, a: int, b: int) -> int:
    """The right answer."""
    return {"add": a + b, "subtract": a - b, "multiply": a * b, "hours": 60 * a + b, "metres": 100 * a + b}[kind]


def reckoning(kind: str, a: int, b: int) -> list[tuple[int, str, int]]:
    """The steps on the way to the answer, each two numbers and an operation; a later one takes up earlier results."""
    tens, ones = a // 10 * 10, a % 10
    return {
        "add": [(ones, "+", b), (tens, "+", ones + b)],
        "subtract": [(a, "-", b)],
        "multiply": [(tens, "*", b), (ones, "*", b), (tens * b, "+", ones * b)],
        "hours": [(a, "*", 60), (a * 60, "+", b)],
        "metres": [(a, "*", 100), (a * 100, "+", b)],
    }[kind]


def done(x: int, operation: str, y: int) -> int:
    """What one step comes to."""
    return {"+": x + y, "-": x - y, "*": x * y}[operation]


def formula(kind: str, a: int, b: int) -> str:
    r"""The steps in LaTeX, which is the same in every language: `\( 7 + 5 = 10 2 , 40 + 10 2 = 50 2 \)`."""
    parts = [f"{places(x)} {op} {places(y)} = {places(done(x, op, y))}" for x, op, y in reckoning(kind, a, b)]
    return rf"\( {' , '.join(parts)} \)"


def places(number: int) -> str:
    """A number below 1000 as words, one for each place that is not 0: 342 is "300 40 2"."""
    parts = [number // 100 * 100, number // 10 % 10 * 10, number % 10]
    return " ".join(str(part) for part in parts if part) or "0"


def number(text: str) -> str:
    """Inverse of `places`, as digits; empty where the words are no number."""
    parts = text.split()
    if not all(part.isdecimal() for part in parts):
        return ""
    total = sum(int(part) for part in parts)
    return str(total) if parts and total < 1000 and places(total) == text else ""


def demonstration(task: Task, chance: random.Random, english: float, wordy: float) -> str:
    """A right answer to a problem, thoughts first.

    Args:
        task: the problem.
        chance: chooses among the ways to say it.
        english: share of thoughts on problems in other languages that are in English all the same.
        wordy: share of thoughts that check themselves until they are long.
    """
    own = LANGUAGES[str(task.data["language"])]
    language = LANGUAGES["en"] if own.code != "en" and chance.random() < english else own
    kind, a, b = str(task.data["kind"]), int(task.data["a"]), int(task.data["b"])
    answer = places(result(kind, a, b))
    thoughts = [chance.choice(language.openers), chance.choice(language.steps[kind])]
    if chance.random() < wordy:
        thoughts += chance.choices(language.checks, k=chance.choice((2, 3, 4)))
    said = " ".join(filter(None, thoughts)).format(f=formula(kind, a, b), r=answer)
    box = rf"\boxed{{ {answer} }}"
    return FORM.write(said, chance.choice(own.answers).format(x=box, n=task.data["thing"]))


def demonstrations(tasks: TaskSet, n: int, seed: int, *, english: float, wordy: float) -> list[tuple[Task, str]]:
    """Problems with an answer each, going round the tasks."""
    return [
        (task, demonstration(task, rng(seed, "demonstration", i), english, wordy))
        for i, task in zip(range(n), _round(tasks), strict=False)
    ]


def _round(tasks: TaskSet) -> Iterator[Task]:
    while True:
        yield from tasks


def vocabulary() -> list[str]:
    """Texts that hold every word of every language, for the tokenizer."""
    out = [*NAMES, *(places(n) for n in range(1000)), FORM.open, FORM.close, r"\boxed{ }", r"\( + - * = \)"]
    for language in LANGUAGES.values():
        out += [re.sub(r"\{\w\}", " ", text) for text in _sentences(language)]
        out += [*language.things, language.minutes, language.centimetres]
    return out


def _sentences(language: Language) -> list[str]:
    said = [*language.openers, *language.checks, *language.answers]
    for kind in KINDS:
        said += [*language.questions[kind], *language.steps[kind]]
    return said


def normal(trajectory: Trajectory) -> str:
    """The number in the box, as digits; empty where there is none."""
    return number(" ".join(answer_of(FORM, trajectory).split()))


def correct() -> RewardFn:
    """1 where the number in the box is the task's answer, else 0."""

    def correct(task: Task, trajectory: Trajectory) -> Score:
        return verify_number(normal(trajectory), number(str(task.data["answer"])))

    return declare(correct, name="correct", columns=["answer"])


def reward(
    l_max: int,
    l_cache: int,
    bonus: float = 0.1,
    classify: Classify | None = None,
    *,
    languages: Sequence[str] = CODES,
    form: ThinkFormat = FORM,
    right: RewardFn | None = None,
) -> RewardFn:
    """The paper's reward: format gate 0.1, correctness 0.9, soft length penalty, language bonus.

    With a bonus of 0 the language is measured and not paid; without languages it is not looked at.

    Args:
        l_max: tokens at which the length penalty is whole.
        l_cache: tokens below `l_max` within which it grows.
        bonus: for one language throughout.
        classify: text to language.
        languages: to be told apart.
        form: of answers.
        right: what correctness is; None: numbers written by place.
    """
    parts: dict[str, RewardFn | tuple[float, RewardFn]] = {
        "format": (0.1, think_format(form)),
        "correct": (0.9, right or correct()),
        "length": soft_length(l_max, l_cache),
    }
    if languages:
        parts["language"] = (bonus, same_language(languages, form, classify=classify))
    return compose(parts, stops=["format"], verdict="correct")


class Lexicon:
    """Which language a text of ours is in, by words that only one of the four has: a second opinion on a classifier."""

    def __init__(self) -> None:
        """Collect each language's own words."""
        words = {code: {w for text in _sentences(each) for w in text.split()} for code, each in LANGUAGES.items()}
        counts = Counter(word for each in words.values() for word in each)
        self._owner = {w: code for code, each in words.items() for w in each if counts[w] == 1 and w[0].isalpha()}

    def __call__(self, text: str) -> str:
        """The language with the most words of its own; empty where there is none."""
        found = Counter(self._owner[word] for word in text.split() if word in self._owner)
        return found.most_common(1)[0][0] if found else ""

    def purity(self, text: str) -> float:
        """Share of telling words that belong to the commonest language; 1 where there are none."""
        found = Counter(self._owner[word] for word in text.split() if word in self._owner)
        return max(found.values()) / found.total() if found else 1.0


def plant(tasks: TaskSet, share: float, seed: int) -> tuple[TaskSet, set[str]]:
    """Give a share of tasks, at least one, a wrong reference near the right one.

    Returns:
        The tasks in their order, and the ids of the wrong ones.
    """
    chance = rng(seed, "plant")
    chosen = set(chance.sample(range(len(tasks)), max(1, round(share * len(tasks)))))
    out, wrong = [], set()
    for i, task in enumerate(tasks):
        if i in chosen:
            off = int(number(task.data["answer"])) + chance.choice((-10, -2, -1, 1, 2, 10))
            task = Task(task.prompt, dict(task.data) | {"answer": places(off)}, task.meta)
            wrong.add(task.id)
        out.append(task)
    planted = TaskSet(out, name=f"{tasks.name}, planted")
    planted.scorer = tasks.scorer
    return planted, wrong
