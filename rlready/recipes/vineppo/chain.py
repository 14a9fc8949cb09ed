"""The task of the small preset: chains of arithmetic modulo 100, worked one operation at a time.

    prompt       3 7 +8 *3 -5 *7
    solution     +8 4 5 ; *3 3 5 ; -5 3 0 ; *7 1 0 ; = 1 0

A step is an operation and the running number after it; the answer stands after `=`. Digits, operations and signs are
the tokens, so a step has four of them and a whole solution at most 32, its end included.

The task has what credit assignment needs: an answer of 4 to 7 steps is paid at its end alone, one wrong step spoils it,
and fresh rollouts can tell which one it was. Not every mistake is equally bad: a product with an even number or 5
forgets a part of what came before, so some mistakes heal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from rlready.policy.base import Renderer
from rlready.policy.render import ChatRenderer
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.steps import StepRule
from rlready.scoring import last_turn
from rlready.tasks.base import TaskSet
from rlready.types import Row, Score, Task, Trajectory

MODULUS = 100
LENGTHS = (4, 7)
SIGNS = "+-*"
OPERANDS = range(2, 6)
MAX_TOKENS = 40
"""Length cap of a completion: some slack above the longest solution."""
STEPS = StepRule(kind="separator", separator=";", answer="=")


def problem(chance: random.Random, index: int, lengths: tuple[int, int] = LENGTHS) -> Task:
    """Draw one problem; `data` holds the worked solution and the answer."""
    number = chance.randrange(MODULUS)
    prompt, steps = [_digits(number)], []
    for _ in range(chance.randint(*lengths)):
        sign, operand = chance.choice(SIGNS), chance.choice(OPERANDS)
        number = {"+": number + operand, "-": number - operand, "*": number * operand}[sign] % MODULUS
        prompt.append(f"{sign}{operand}")
        steps.append(f"{sign}{operand} {_digits(number)} ;")
    return Task.of(" ".join(prompt), answer=_digits(number), solution=" ".join([*steps, "=", _digits(number)]))


def right(task: Task, trajectory: Trajectory) -> Score:
    """1 where what stands after the last `=` is the answer, else 0; cut off or without a `=`, there is no answer."""
    turn = last_turn(trajectory)
    if turn is None or turn.stop == "length" or "=" not in turn.text:
        return Score.no_answer()
    return Score.right() if turn.text.rpartition("=")[2].strip() == task.data["answer"] else Score.wrong()


def chains(n: int, seed: int, lengths: tuple[int, int] = LENGTHS) -> dict[str, TaskSet]:
    """Distinct problems of so many operations, cut by hash into train, dev and test."""
    tasks = TaskSet.from_generator(partial(problem, lengths=lengths), n, seed, right, name="chain-arithmetic")
    return tasks.split({"train": 0.8, "dev": 0.1, "test": 0.1})


def renderer() -> ChatRenderer:
    """Digits, operations and signs as tokens; a completion ends with `<end>`."""
    words = [*"0123456789;=", *(f"{sign}{operand}" for sign in SIGNS for operand in OPERANDS)]
    return ChatRenderer(word_tokenizer(words, ("<s>", ">", "<end>")), end="<end>")


def demonstrations(tasks: Sequence[Task], render: Renderer, column: str = "solution") -> list[Row]:
    """Worked solutions as supervised rows."""
    return [
        Row.from_segments([(render.render(task.prompt), 0.0), (render.encode_completion(str(task.data[column])), 1.0)])
        for task in tasks
    ]


def _digits(number: int) -> str:
    return " ".join(f"{number:02d}")
