"""A world in two answers: say the digit, then say it again. Admissible answers are the digits."""

from __future__ import annotations

import random
from collections.abc import Generator

import torch

from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import OptimizerConfig
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task

DIGITS = ("0", "1", "2", "3")
TASKS = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")


class SayDigit(Env):
    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.said = task, list[str]()
        self.messages = task.prompt
        return Observation(self.messages, DIGITS)

    async def step(self, action: str) -> Step:
        self.said.append(action)
        self.messages = (*self.messages, Message("assistant", action), Message.user("again"))
        won = float(self.task.data["digit"] in self.said)
        return Step(Observation(self.messages, DIGITS), won if len(self.said) == 2 else 0.0, len(self.said) == 2)


def right(task: Task, chance: random.Random) -> Generator[str, str, None]:
    yield task.data["digit"]
    yield task.data["digit"]


def wrong(task: Task, chance: random.Random) -> Generator[str, str, None]:
    other = str((int(task.data["digit"]) + 1) % 4)
    yield other
    yield other


def tiny(seed: int = 1) -> TinyPolicy:
    torch.set_num_threads(1)
    renderer = ChatRenderer(word_tokenizer(["digit again", *DIGITS]))
    return TinyPolicy.create(
        renderer, TinyConfig(dim=16, layers=1, heads=2, max_len=16), seed, OptimizerConfig(lr=1e-2)
    )
