"""A small real training run that can be interrupted; used by `test_train` in-process and as a program of its own.

python resume_child.py ROOT ALGORITHM STEPS [--resume NAME] [--kill-at STEP]
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rlready.algorithms import PPO, Algorithm, Reinforce
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.stopping import EntropyFall
from rlready.tasks.base import TaskSet
from rlready.train import train
from rlready.types import Group, Message, Task

DIGITS = [str(d) for d in range(6)]


class TwoWords(Env):
    """Two turns; free text in the second, so that lengths differ."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.messages, self.turn = task, task.prompt, 0
        return Observation(self.messages, DIGITS)

    async def step(self, action: str) -> Step:
        self.turn += 1
        self.messages = (*self.messages, Message("assistant", action), Message.user("again"))
        return Step(
            Observation(self.messages), reward=float(self.task.data["digit"] in action), terminated=self.turn == 2
        )


Fault = Callable[[], None]


@dataclass(frozen=True)
class FaultyPPO(PPO):
    fault: Fault | None = None
    at: int = 0

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        metrics = await super().update(policy, groups)
        return _strike(self, policy, metrics)


@dataclass(frozen=True)
class FaultyReinforce(Reinforce):
    fault: Fault | None = None
    at: int = 0

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        metrics = await super().update(policy, groups)
        return _strike(self, policy, metrics)


def _strike(algorithm: FaultyPPO | FaultyReinforce, policy: Policy, metrics: dict[str, float]) -> dict[str, float]:
    """The fault comes after the weights changed and before anything of the step is logged or saved."""
    assert policy.learner is not None
    if (
        algorithm.fault is not None
        and policy.learner.version == algorithm.at * algorithm.minibatches * algorithm.epochs
    ):
        algorithm.fault()
    return metrics


def build(name: str, fault: Fault | None = None, at: int = 0) -> Algorithm:
    if name == "ppo":
        return FaultyPPO(minibatches=2, entropy=0.01, fault=fault, at=at)
    return FaultyReinforce(advantage="running", kl=0.05, minibatches=3, fault=fault, at=at)


def play(root: Path, algorithm: Algorithm, steps: int, resume: str | None = None) -> tuple[Policy, Run]:
    torch.set_num_threads(1)
    torch.manual_seed(5)  # nothing draws from torch's own generator, but its state is compared as well
    renderer = ChatRenderer(word_tokenizer(["digit again", *DIGITS], specials=("<s>", ">", "<end>")), end="<end>")
    config = TinyConfig(dim=16, layers=1, heads=2, max_len=48)
    optimizer = OptimizerConfig(lr=1e-2, warmup=3, schedule="cosine", total=40, ema=0.9)
    policy = TinyPolicy.create(renderer, config, 7, optimizer)
    assert policy.learner is not None
    policy.learner.freeze_reference()
    tasks = TaskSet([Task.of(f"digit {d}", digit=d) for d in DIGITS], name="digits")
    collector = Collector(
        policy,
        TwoWords,
        tasks,
        Uniform(tasks, 5),
        group_size=4,
        params=SamplingParams(temperature=0.8, top_p=0.95, max_tokens=5, entropy=True),
        seed=5,
    )
    with Run.create("t", seed=5, root=root, progress="quiet", resume=resume, log_groups=None) as run:
        train(
            policy, collector, algorithm, run, steps=steps, groups_per_step=4, save_every=2, stop_rules=[EntropyFall()]
        )
    return policy, run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("algorithm")
    parser.add_argument("steps", type=int)
    parser.add_argument("--resume")
    parser.add_argument("--kill-at", type=int, default=0)
    args = parser.parse_args()

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    play(args.root, build(args.algorithm, kill, args.kill_at), args.steps, args.resume)
