"""`check_env` on sound environments, and on one for every fault it is to find."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlready import Env, Message, Observation, Step, Task, TaskSet, check_env, hashed_uniform
from rlready.envs import ChatEnv, ProcessPool, ToolEnv, from_gym
from rlready.errors import UserError
from rlready.findings import Findings

TASKS = TaskSet([Task.of(f"Reach {i}", target=i) for i in (3, 4, 5)])


class Walk(Env):
    """A sound environment: walk from a hidden start to the target."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.at = int(6 * hashed_uniform(seed, "start"))
        self.target = task.data["target"]
        self.over = False
        self.messages: list[Message] = list(task.prompt)
        return self.look()

    def look(self) -> Observation:
        return Observation(self.messages, ["up", "down"])

    async def step(self, action: str) -> Step:
        if self.over:
            raise RuntimeError("over")
        self.at += {"up": 1, "down": -1}.get(action, 0)
        self.over = self.at == self.target
        self.messages += [Message("assistant", action), Message.user(self.text())]
        return Step(self.look(), float(self.over), self.over)

    def text(self) -> str:
        return f"at {self.at}"

    async def fork(self) -> Env:
        other = type(self)()
        other.__dict__.update(self.__dict__, messages=list(self.messages))
        return other


class Markov(Walk):
    """Sound as well: every observation is one message."""

    def look(self) -> Observation:
        return Observation(f"at {self.at}, target {self.target}", ["up", "down"])

    async def fork(self) -> Env:
        raise NotImplementedError


def faults(env: Callable[[], Env], check: str, **options: Any) -> list[str]:
    return [f.text for f in check_env(env, options.pop("tasks", TASKS), **options).errors if f.check == check]


@pytest.mark.parametrize("env", [Walk, Markov])
def test_sound_environments_pass(env: type[Env]) -> None:
    found = check_env(env, TASKS)
    assert found.ok and not found.warnings, str(found)
    assert "check_env" in str(found) and ": ok" in str(found) and found.of("time")
    found.raise_for_errors()
    assert bool(found.of("fork")) == (env is Markov)


def test_our_own_environments_pass() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    chat = check_env(ChatEnv, TASKS)
    assert chat.ok and not chat.warnings, str(chat)
    calls = ['<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', "<tool_call>", "3"]
    tools = check_env(functools.partial(ToolEnv, [add]), TASKS, actions=calls)
    assert tools.ok and not tools.warnings, str(tools)
    gym = check_env(from_gym("CartPole-v1", render=lambda o: np.array2string(o)), TASKS, max_steps=40)
    assert gym.ok and not gym.warnings, str(gym)


def test_a_hosted_environment_passes() -> None:
    from pathlib import Path

    with ProcessPool(f"{Path(__file__).parent / 'hosted.py'}:Counter", deadline=10) as pool:
        found = check_env(pool, TASKS, max_steps=2, episodes=2)
    # its info tells how many episodes its process has seen, which is no part of the episode itself
    assert found.ok, str(found)


def test_types() -> None:
    class Bare(Walk):
        def look(self) -> Any:
            return "at home"

    assert "it is a str, not an Observation" in faults(Bare, "types")[0]

    class Empty(Walk):
        def look(self) -> Observation:
            return Observation([])

    assert "it has no messages" in faults(Empty, "types")[0]

    for actions, words in (([], "empty list"), (["up", " "], "no text or empty"), (["up", "up"], "stands twice")):

        class Offers(Walk):
            offered = actions

            def look(self) -> Observation:
                return Observation("x", self.offered)

        assert words in faults(Offers, "types")[0]

    for change, words in (
        ({"reward": float("nan")}, "its reward is nan"),
        ({"reward": "1"}, "its reward is '1', not a number"),
        ({"terminated": 1}, "terminated is 1, not a bool"),
        ({"info": {"x": object()}}, "cannot be logged as JSON (keys: x)"),
        ({"observation": "text"}, "not an Observation"),
    ):

        class Steps(Walk):
            changes = change

            async def step(self, action: str) -> Step:
                step = await super().step(action)
                for name, value in self.changes.items():
                    setattr(step, name, value)
                return step

        assert words in faults(Steps, "types")[0]

    class Sync(Walk):
        def reset(self, task: Task, seed: int) -> Any:
            return Observation("x")

    assert "reset must be `async def`" in faults(Sync, "types")[0]


def test_factories() -> None:
    one = Walk()
    assert "same object twice" in faults(lambda: one, "factory")[0]
    assert "gave a str, not an Env" in faults(lambda: "env", "factory")[0]  # type: ignore[arg-type,return-value]
    assert "raised ZeroDivisionError" in faults(lambda: 1 / 0, "factory")[0]  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="at least one task"):
        check_env(Walk, [])


class Luck(Walk):
    def text(self) -> str:
        return f"at {self.at}, noise {random.random()}"


class NumpyLuck(Walk):
    def text(self) -> str:
        return f"at {self.at}, noise {np.random.rand()}"


class Clock(Walk):
    def text(self) -> str:
        return f"at {self.at} on day {int(time.time() // 86400)}"


class Habit(Walk):
    walked = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        type(self).walked += 1
        return await super().reset(task, seed)

    def text(self) -> str:
        return f"at {self.at}, walk {self.walked}"


@pytest.mark.parametrize("env", [Luck, NumpyLuck, Clock, Habit])
def test_hidden_state_breaks_determinism(env: type[Env]) -> None:
    Habit.walked = 0
    (text, *_) = faults(env, "determinism")
    assert "The same seed and actions gave another episode" in text and "the observation after step 1" in text


def test_seeding_the_global_generator_is_seen() -> None:
    class Seeder(Walk):
        async def reset(self, task: Task, seed: int) -> Observation:
            random.seed(seed)
            return await super().reset(task, seed)

    found = check_env(Seeder, TASKS)
    assert found.ok and "seeds the global random generator" in found.warnings[0].text


def test_state_shared_between_two_episodes_at_once() -> None:
    class Shared(Walk):
        async def reset(self, task: Task, seed: int) -> Observation:
            first = await super().reset(task, seed)
            type(self).position = self.at
            return first

        async def step(self, action: str) -> Step:
            self.at = type(self).position
            step = await super().step(action)
            type(self).position = self.at
            return step

        async def fork(self) -> Env:
            raise NotImplementedError

    Shared.position = 0  # type: ignore[attr-defined]
    assert "disturb each other" in faults(Shared, "shared state", seed=1)[0]
    assert not faults(Shared, "determinism", seed=1)


def test_contexts_that_lose_or_falsify_what_was_said() -> None:
    class Mute(Walk):
        async def step(self, action: str) -> Step:
            step = await super().step(action)
            del self.messages[-2]
            return Step(self.look(), step.reward, step.terminated)

    assert "goes on without what the policy said" in faults(Mute, "context")[0]

    class Forger(Walk):
        async def step(self, action: str) -> Step:
            step = await super().step(action)
            self.messages[-2] = Message("assistant", action.upper())
            return Step(self.look(), step.reward, step.terminated)

    assert "the policy wrote 'UP', but it wrote 'up'" in " ".join(faults(Forger, "context"))

    class Forgetful(Walk):
        def look(self) -> Observation:
            return Observation(self.messages[-1:] if len(self.messages) == 5 else self.messages, ["up", "down"])

    found = check_env(Forgetful, TASKS)
    assert "sometimes continued and sometimes rewritten" in found.of("context")[0].text


def test_pay_after_the_end_and_close() -> None:
    class Generous(Walk):
        async def step(self, action: str) -> Step:
            self.over = False
            self.at = self.target - (action == "up")
            return await super().step("up" if action == "up" else action)

    found = check_env(Generous, TASKS, actions=["up"])
    (told,) = found.of("end")
    assert "after the end paid 1.0" in told.text and told.level == "warning"

    class Sticky(Walk):
        closed = 0

        async def close(self) -> None:
            self.closed += 1
            if self.closed > 1 or not hasattr(self, "at"):
                raise RuntimeError("no")

    texts = faults(Sticky, "close")
    assert any("before reset" in t for t in texts) and any("called twice" in t for t in texts)


def test_odd_actions_and_raising() -> None:
    class Brittle(Walk):
        async def step(self, action: str) -> Step:
            {"up": 1, "down": -1}[action]
            return await super().step(action)

    found = check_env(Brittle, TASKS)
    assert found.ok and "raised KeyError" in found.of("odd action")[0].text

    class Broken(Walk):
        async def step(self, action: str) -> Step:
            raise LookupError("lost")

    assert "raised LookupError: lost (task" in faults(Broken, "step")[0]


def test_tasks_must_not_be_changed() -> None:
    class Scribbler(Walk):
        async def reset(self, task: Task, seed: int) -> Observation:
            task.data["target"] += 0  # type: ignore[index]
            task.data["seen"] = True  # type: ignore[index]
            return await super().reset(task, seed)

    tasks = [Task.of("a", target=3)]
    assert "changed the data of task" in faults(Scribbler, "purity", tasks=tasks)[0]


def test_start_states_that_are_already_right() -> None:
    def lazy(task: Task, trajectory: Any) -> bool:
        return task.data["target"] == 4 or bool(trajectory.turns and trajectory.turns[-1].text == "done")

    (before, by_closing) = faults(Walk, "start state", tasks=TaskSet(list(TASKS), lazy), closing="done")
    assert before.startswith("1 of 3 tasks are right before any action")
    assert by_closing.startswith("3 of 3 tasks are right by 'done' alone")


def test_forks() -> None:
    class Linked(Walk):
        async def fork(self) -> Env:
            other = type(self)()
            other.__dict__.update(self.__dict__)  # the list of messages is shared
            return other

    assert "A fork disturbs its origin" in " ".join(faults(Linked, "fork"))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_hangs_are_named(where: str) -> None:
    async def hang(self: Env, *args: Any) -> Any:
        time.sleep(5)

    env = type("Hanging", (Walk,), {where: hang})
    began = time.monotonic()
    found = check_env(env, TASKS, deadline=0.3)
    assert time.monotonic() - began < 3
    assert f"{where}(" in found.errors[0].text and "has not returned after 0.3 seconds" in found.errors[0].text


def test_inside_a_running_loop_and_as_json() -> None:
    async def notebook() -> Findings:
        return check_env(Walk, TASKS)

    found = asyncio.run(notebook())
    assert found.ok and found.to_json()["ok"] is True
    bad = check_env(Luck, TASKS)
    with pytest.raises(UserError, match="another episode"):
        bad.raise_for_errors()
