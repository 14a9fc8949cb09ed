"""Gymnasium both ways."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from rlready import Env, Message, Observation, Step, Task, TaskSet, Trajectory
from rlready.envs import ChatEnv, from_gym, to_gym
from rlready.errors import EnvError, GraderError, UserError


class Corridor(gymnasium.Env[int, int]):
    """Walk to the right end; where it starts is random."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(10)
        self.action_space = spaces.Discrete(2, start=1)
        self.at = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(8)) if options is None else options["at"]
        return self.at, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.at = min(9, max(0, self.at + (1 if action == 2 else -1)))
        return self.at, float(self.at == 9), self.at == 9, False, {"at": self.at}

    def close(self) -> None:
        self.closed = True


def play(env: Env, task: Task, seed: int, actions: list[str]) -> tuple[Observation, list[Step]]:
    async def run() -> tuple[Observation, list[Step]]:
        first = await env.reset(task, seed)
        steps = [await env.step(a) for a in actions]
        await env.close()
        return first, steps

    return asyncio.run(run())


def test_from_gym_conversation_rewards_and_seeds() -> None:
    make = from_gym(Corridor, render=lambda at: f"at {at}", actions=["left", "right"], instruction="Go right.")
    task = Task(data={"options": {"at": 7}})
    first, steps = play(make(), task, 3, ["left", "right", "right", "right"])
    assert [m.text for m in first.messages] == ["Go right.", "at 7"] and first.actions == ("left", "right")
    assert [s.reward for s in steps] == [0.0, 0.0, 0.0, 1.0] and steps[-1].terminated
    assert [m.role for m in steps[0].observation.messages] == ["system", "user", "assistant", "user"]
    assert steps[0].observation.messages[2].text == "left" and steps[0].info["at"] == 6
    free = Task.of("walk")
    starts = {play(make(), free, seed, [])[0].messages[-1].text for seed in range(20)}
    assert len(starts) > 3
    assert play(make(), free, 5, [])[0].messages == play(make(), free, 5, [])[0].messages
    assert len({play(make(), Task(data={"seed": 4}), s, [])[0].messages[-1].text for s in range(10)}) == 1


@pytest.mark.parametrize("history", [True, False])
def test_what_is_no_action_is_told_and_counted(history: bool) -> None:
    make = from_gym(Corridor, actions=["left", "right"], history=history)
    _, steps = play(make(), Task(data={"options": {"at": 5}}), 0, ["fly", " right ", "jump"])
    assert steps[0].info["invalid_actions"] == 1 and not steps[0].terminated
    assert "no action: 'fly'. The actions are: left, right." in steps[0].observation.messages[-1].text
    assert steps[1].observation.messages[-1].text == "6"
    assert steps[2].info["invalid_actions"] == 2
    assert len(steps[2].observation.messages) == (7 if history else 1)
    if not history:
        assert steps[2].observation.messages[-1].text.startswith("6\n")


def test_from_gym_by_id_and_by_instance() -> None:
    by_id = from_gym("CartPole-v1", render=lambda obs, info: np.array2string(obs, precision=2))
    first, steps = play(by_id(), Task.of("balance"), 1, ["0", "1"])
    assert first.actions == ("0", "1") and [s.reward for s in steps] == [1.0, 1.0]
    inner = gymnasium.make("CartPole-v1")
    same = from_gym(inner, render=lambda obs, info: np.array2string(obs, precision=2))
    assert play(same(), Task.of("balance"), 1, ["0"])[1][0].observation.messages == steps[0].observation.messages
    inner.close()
    with pytest.raises(UserError, match='Gymnasium cannot make "NoSuch-v0"'):
        from_gym("NoSuch-v0")
    with pytest.raises(UserError, match="pass parse="):
        from_gym("Pendulum-v1")
    with pytest.raises(UserError, match="2 discrete actions need"):
        from_gym(Corridor, actions=["left"])
    pendulum = from_gym("Pendulum-v1", parse=lambda text: np.asarray([float(text)], dtype=np.float32))
    _, steps = play(pendulum(), Task.of("swing"), 0, ["0.5", "9", "up"])
    assert [s.info["invalid_actions"] for s in steps] == [0, 1, 2]


def test_from_gym_forks_and_ends() -> None:
    make = from_gym(Corridor, actions=["left", "right"])

    async def run() -> None:
        env = make()
        with pytest.raises(EnvError, match="has not begun"):
            await env.step("left")
        await env.reset(Task(data={"options": {"at": 4}}), 0)
        other = await env.fork()
        assert (await env.step("left")).observation.messages[-1].text == "3"
        assert (await other.step("right")).observation.messages[-1].text == "5"
        await env.close()
        await env.close()
        await other.close()

    asyncio.run(run())


class Guess(Env):
    """Guess the hidden digit; forbidden hints of global state."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.secret = str(seed % 3)
        self.messages = [*task.prompt]
        return Observation(self.messages, ["0", "1", "2"], {"list": [1]})

    async def step(self, action: str) -> Step:
        await asyncio.sleep(0)
        right = action == self.secret
        self.messages += [Message("assistant", action), Message.user("yes" if right else "no")]
        return Step(Observation(self.messages, ["0", "1", "2"]), float(right), right)


TASKS = TaskSet([Task.of(f"Which digit? Game {i} caf\u00e9") for i in range(5)])


@pytest.mark.parametrize("actions", [None, ["0", "1", "2"]])
def test_to_gym_passes_gymnasiums_own_checker(actions: list[str] | None) -> None:
    env = to_gym(Guess, TASKS, actions=actions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*does not have a spec.*|.*not having a spec.*")
        check_env(env)
    env.close()
    env.close()


def test_to_gym_episode() -> None:
    env = to_gym(Guess, TASKS, actions=["0", "1", "2"], max_steps=5)
    text, info = env.reset(seed=7, options={"task": 2})
    assert "[user] Which digit? Game 2 caf\u00e9" in text and info["actions"] == ["0", "1", "2"]
    assert info["task"] == TASKS[2].id and info["messages"][0]["role"] == "user"
    total, done, steps = 0.0, False, 0
    while not done:
        text, reward, terminated, truncated, info = env.step(steps % 3)
        total, done, steps = total + reward, terminated or truncated, steps + 1
    assert (total, info["verdict"]) == (1.0, "right") and steps <= 3
    assert text.count("[assistant]") == steps and env.render() == text
    with pytest.raises(EnvError, match="is over"):
        env.step(0)
    with pytest.raises(UserError, match="there is no task 9"):
        env.reset(options={"task": 9})
    assert {env.reset(seed=s)[1]["task"] for s in range(30)} == {t.id for t in TASKS}
    env.close()


def test_to_gym_uses_the_task_sets_score() -> None:
    tasks = TaskSet([Task.of("2+2?", answer="4")], lambda task, trajectory: trajectory.turns[-1].text == "4")
    env = to_gym(ChatEnv, tasks)
    for answer, reward in (("4", 1.0), ("5", 0.0)):
        env.reset(seed=0)
        assert env.step(answer)[1] == reward

    def broken(task: Task, trajectory: Trajectory) -> float:
        raise OSError("gone")

    failing = to_gym(ChatEnv, TaskSet(list(tasks), broken))
    failing.reset(seed=0)
    with pytest.raises(GraderError, match="gone"):
        failing.step("4")
    failing.close()
    env.close()


def test_to_gym_inside_a_running_loop_and_round_trip() -> None:
    async def notebook() -> None:
        env = to_gym(Guess, TASKS)
        env.reset(seed=1)
        env.step("0")
        env.close()

    asyncio.run(notebook())
    there_and_back = from_gym(lambda: to_gym(Guess, TASKS, actions=["0", "1", "2"]), actions=["0", "1", "2"])
    _, steps = play(there_and_back(), Task(data={"seed": 3}), 0, ["0"])
    assert "Which digit?" in steps[0].observation.messages[-1].text
