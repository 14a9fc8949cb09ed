"""From tasks and an environment to a trained policy in one call, as a newcomer writes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rlready as rl
from rlready.algorithms import PolicyGradient
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.policy.tiny import TinyConfig
from rlready.start import build_tokenizer, listen, texts_of
from rlready.types import Group, Trajectory, Turn

SMALL = TinyConfig(dim=32, layers=1, heads=2, kv_heads=1)


class Thermostat(rl.Env):
    """Hidden: how fast the room loses heat. Its words are in no task."""

    async def reset(self, task: rl.Task, seed: int) -> rl.Observation:
        self.degrees, self.target = 18, task.data["target"]
        self.leak = round(rl.hashed_uniform(seed, "leak"))
        return self.look()

    async def step(self, action: str) -> rl.Step:
        self.degrees += {"heat": 2, "cool": -2, "wait": 0}[action] - self.leak
        done = abs(self.degrees - self.target) <= 1
        return rl.Step(self.look(), reward=float(done), terminated=done)

    def look(self) -> rl.Observation:
        return rl.Observation(f"{self.degrees} degrees, target {self.target}", actions=["heat", "cool", "wait"])


TASKS = rl.TaskSet([rl.Task(data={"target": t}) for t in (14, 15, 22, 23)], name="rooms")


def test_an_environment_is_learned_from_in_one_call(tmp_path: Path) -> None:
    policy = rl.tiny_policy(TASKS, Thermostat, shape=SMALL)
    rl.fit(TASKS, Thermostat, "grpo", policy=policy, steps=25, groups=8, max_steps=6, root=tmp_path, dev=TASKS)
    metrics = rl.load_run("rooms-1", tmp_path).metrics
    first, last = metrics["success"][:3].mean(), metrics["success"][-3:].mean()
    assert last > 0.75 > first + 0.1, (first, last)
    assert metrics["eval/success"][-1] >= 0.75 and rl.load_run("rooms-1", tmp_path).header["state"] == "done"


def test_what_an_environment_says_can_be_read_also_what_it_says_later() -> None:
    heard = listen(TASKS, Thermostat)
    assert {"heat", "cool", "wait", "18 degrees, target 14"} <= set(heard)
    assert not any("degrees" in text for text in texts_of(TASKS))
    policy = rl.tiny_policy(TASKS, Thermostat, shape=SMALL)
    tokenizer = policy.renderer.tokenizer  # type: ignore[attr-defined]
    for text in ("-3 degrees, target 14", "the boiler exploded é \u2028"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    again = rl.tiny_policy(TASKS, Thermostat, shape=SMALL).renderer.tokenizer  # type: ignore[attr-defined]
    assert again.backend.to_str() == tokenizer.backend.to_str(), "the same seed hears the same"


def test_a_broken_environment_is_passed_over_while_listening() -> None:
    class Broken(Thermostat):
        async def step(self, action: str) -> rl.Step:
            raise ValueError("no")

    assert "18 degrees, target 14" in listen(TASKS, Broken)


def test_words_are_the_choice_for_few_words_without_an_environment() -> None:
    assert len(build_tokenizer(["a b c"])) == 6
    assert len(build_tokenizer([" ".join(f"w{i}" for i in range(2001))])) > 256
    assert len(rl.tiny_policy([rl.Task.of("say a", answer="a")], shape=SMALL).renderer.tokenizer) == 5  # type: ignore[attr-defined]


def test_tasks_without_any_reward_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="questions have no score, and without an environment nothing else gives"):
        rl.fit(rl.TaskSet([rl.Task.of("say a")], name="questions"), root=tmp_path)
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_a_text_for_a_prompt_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"Task\.of\("):
        rl.Task("say a")  # type: ignore[arg-type]


def test_an_author_need_not_think_of_failed_episodes() -> None:
    @dataclass(frozen=True)
    class MaxRL(PolicyGradient):
        async def credit(self, groups: list[Group], policy: Policy) -> None:
            for group in groups:
                m = group.rewards.mean()
                for trajectory, r in zip(group.trajectories, group.rewards, strict=True):
                    trajectory.assign((r - m) / m if m > 0 else 0.0)

    policy = rl.tiny_policy([rl.Task.of("say a", answer="a")], shape=SMALL)

    def episode(reward: float, failure: str | None = None) -> Trajectory:
        turn = Turn([0, 3, 1], [4, 2], [-1.0, -1.0])
        return Trajectory(TASKS[0], [turn], reward=reward, verdict=rl.Verdict.RIGHT, failure=failure)

    group = Group(TASKS[0], [episode(1.0), episode(np.nan, "the fuse blew"), episode(0.0)])
    metrics = asyncio.run(MaxRL().update(policy, [group]))
    assert metrics["rows"] == 2 and [t.turns[0].advantage for t in group] == [1.0, None, -1.0]
