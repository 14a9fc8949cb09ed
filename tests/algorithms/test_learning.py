"""Every algorithm learns a task that is trivially solvable: answer the digit in the prompt.

Six digits, six admissible answers, chance 1/6; a transformer of some 13,000 weights, random at first. Real parts all
the way: environment, collector, sampler, compile, learner. After 25 steps of 60 episodes the policy, sampled at
temperature 1, must be right at least 70% of the time in the mean of the last three steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rlready.aio import run_sync
from rlready.algorithms import GRPO, PPO, SFT, PolicyGradient, algorithm, nll
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.tasks.base import TaskSet
from rlready.types import Group, Message, Row, Task

torch.set_num_threads(1)
DIGITS = [str(d) for d in range(6)]


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


TASKS = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")


def tiny(seed, lr=1e-2):
    renderer = ChatRenderer(word_tokenizer(["digit again", *DIGITS]))
    config = TinyConfig(dim=32, layers=1, heads=2, max_len=16)
    return TinyPolicy.create(renderer, config, seed, OptimizerConfig(lr=lr))


def learn(algo, seed, steps, *, turns=1, policy: Policy | None = None):
    policy = policy or tiny(seed)
    if algo.needs_reference:
        assert policy.learner is not None
        policy.learner.freeze_reference()
    collector = Collector(
        policy, lambda: SayDigit(turns), TASKS, Uniform(TASKS, seed), group_size=10, params=SamplingParams(), seed=seed
    )
    rewards, metrics = [], {}
    for _ in range(steps):
        groups = collector.collect_sync(len(DIGITS))
        rewards.append(collector.metrics()["reward"])
        metrics = run_sync(algo.update(policy, groups))
    return float(np.mean(rewards[:1])), float(np.mean(rewards[-3:])), metrics


OWN = {
    name: algorithm(name, minibatches=2)
    for name in (
        "reinforce", "rloo", "grpo", "drgrpo", "dapo", "gspo", "luspo", "gmpo", "reinforce++", "maxrl", "ngrpo",
        "cispo", "sapo", "dppo", "magistral",
    )
}  # fmt: skip
OTHERS = {
    "ppo": PPO(minibatches=2),
    "expert-iteration": SFT(only_right=True, minibatches=2),
}
VARIANTS = {
    "grpo-kl-entropy": GRPO(kl=0.01, entropy=0.001, minibatches=2),
    "grpo-kl-reward": GRPO(kl=0.01, kl_in="reward", minibatches=2),
    "decoupled": GRPO(anchor="start", mismatch="truncate", minibatches=2),
    "interpolated": GRPO(anchor="interpolated", minibatches=2),
    "masks": GRPO(mismatch="geometric", veto=1e-4, opsm=0.5, minibatches=2),
    "imitating": PolicyGradient(imitate=0.1, average="group", minibatches=2),
}
SEEDS = [*((name, 0) for name in OTHERS), ("ppo", 1), ("grpo", 1)]


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in (*OWN, *VARIANTS)), *SEEDS])
def test_learns_to_answer(name, seed):
    first, last, metrics = learn({**OWN, **OTHERS, **VARIANTS}[name], seed, steps=25)
    assert first < 0.4 and last >= 0.7, (first, last)
    assert all(np.isfinite(v) for v in metrics.values()), metrics


def test_pass_k_learns_that_one_of_k_is_right():
    """Its credit is spent once two of the ten are right, so it is pass@10 that goes to 1, and not pass@1."""
    first, last, _ = learn(algorithm("passk", minibatches=2), 0, steps=25)
    assert first < 0.2 and last > 0.35
    assert 1 - (1 - last) ** 10 > 0.98


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_learns_over_two_turns(name):
    first, last, _ = learn({**OWN, **OTHERS}[name], 0, steps=30, turns=2)
    assert first < 0.4 and last >= 0.7, (first, last)


def test_without_reward_nothing_is_learnt():
    """The control: with advantages of zero the same loop stays at chance, so it is the reward that teaches."""

    @dataclass(frozen=True)
    class Nothing(PolicyGradient):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            for group in groups:
                for trajectory in group.valid:
                    trajectory.assign(0.0)

    _, last, _ = learn(Nothing(), 0, steps=10)
    assert last < 0.35


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sft_learns_from_demonstrations(seed):
    policy = tiny(seed)
    renderer = policy.renderer
    rows = [
        Row.from_segments([(renderer.render(task.prompt), 0.0), (renderer.encode_completion(task.data["digit"]), 1.0)])
        for task in TASKS
    ]
    before = nll(policy, rows)
    SFT().fit_rows(policy, rows * 4, epochs=20, batch_tokens=100)
    assert before > 2 and nll(policy, rows) < 0.1
