"""A task that is trivially solvable, with real parts all the way: answer the digit in the prompt.

Six digits, six admissible answers, chance 1/6; a transformer of some 13,000 weights, random at first.
"""

from __future__ import annotations

import numpy as np
import torch

from rlready.aio import run_sync
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.tasks.base import TaskSet
from rlready.types import Group, Message, Task

torch.set_num_threads(1)
DIGITS = [str(d) for d in range(6)]
TASKS = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")


class SayDigit(Env):
    """One answer, or two: then the first must be the digit as well, and what is said between is masked."""

    def __init__(self, turns: int = 1) -> None:
        self.turns = turns

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.said = task, 0
        self.messages = task.prompt
        return Observation(self.messages, DIGITS)

    async def step(self, action: str) -> Step:
        self.said += 1
        self.messages = (*self.messages, Message("assistant", action), Message.user("again"))
        done = self.said == self.turns
        reward = float(action == self.task.data["digit"]) / self.turns
        return Step(Observation(self.messages, DIGITS), reward=reward, terminated=done)


def tiny(seed, lr=1e-2):
    renderer = ChatRenderer(word_tokenizer(["digit again", *DIGITS]))
    config = TinyConfig(dim=32, layers=1, heads=2, max_len=16)
    return TinyPolicy.create(renderer, config, seed, OptimizerConfig(lr=lr))


def collector_of(policy: Policy, seed: int, *, turns: int = 1, group_size: int = 10) -> Collector:
    return Collector(
        policy,
        lambda: SayDigit(turns),
        TASKS,
        Uniform(TASKS, seed),
        group_size=group_size,
        params=SamplingParams(),
        seed=seed,
    )


def batches(policy: Policy, seed: int, n: int, **options) -> list[list[Group]]:
    """Groups of so many updates, all sampled by the policy as it is."""
    collector = collector_of(policy, seed, **options)
    return [collector.collect_sync(len(DIGITS)) for _ in range(n)]


def learn(algorithm, seed, steps, *, turns=1, policy: Policy | None = None):
    """Train; the first step's mean reward, the mean of the last three, and the last update's metrics."""
    policy = policy or tiny(seed)
    if algorithm.needs_reference:
        assert policy.learner is not None
        policy.learner.freeze_reference()
    collector = collector_of(policy, seed, turns=turns)
    rewards, metrics = [], {}
    for _ in range(steps):
        groups = collector.collect_sync(len(DIGITS))
        rewards.append(collector.metrics()["reward"])
        metrics = run_sync(algorithm.update(policy, groups))
    return float(np.mean(rewards[:1])), float(np.mean(rewards[-3:])), metrics
