"""Gyms that are broken as public simulators were: the gate stops them, the report names them, reality shows why."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlready.aio import run_sync
from rlready.dream.base import Moment
from rlready.dream.gym import Gym
from rlready.dream.report import DreamReport, to_markdown
from rlready.dreaming.fit import fit
from rlready.dreaming.options import FitOptions
from rlready.dreaming.rounds import RealSide
from rlready.dreaming.train import check_gate
from rlready.envs.base import Env
from rlready.errors import UserError
from rlready.tasks.base import TaskSet
from rlready.types import Task
from rlready.worlds.fiction import FictionWorld, play_logs, write_logs
from rlready.worlds.fiction.desk import WORLD, Desk
from rlready.worlds.fiction.setting import call, read

FOLDER = Path(__file__).parents[2] / "benchmarks"
MIX = {"blind": 3.0, "careful": 4.0, "random": 2.0}
WRITES = ("refund", "replace", "cancel")


def module(name: str) -> ModuleType:
    """A module of benchmarks/, which is no package."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


gyms = module("broken_gyms")
TASKS = list(WORLD.splits["train"])[:40]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Gym:
    """A gym in which nearly everything that decides a ticket was looked up by somebody."""
    folder = tmp_path_factory.mktemp("gym")
    few = FictionWorld(0, "desk", sizes={"train": len(TASKS)})
    assert [t.id for t in few.splits["train"]] == [t.id for t in TASKS]
    write_logs(play_logs(few, MIX, 12 * len(TASKS), 0), folder / "desk.jsonl")
    fit([folder / "desk.jsonl"], folder / "gym", FitOptions(curve=False), progress="quiet")
    return Gym.load(folder / "gym")


async def play(env: Env, task: Task, actions: list[str], seed: int = 0) -> tuple[float, list[str]]:
    """Reward and replies of given actions."""
    seen, reward = await env.reset(task, seed), 0.0
    replies = []
    for action in actions:
        step = await env.step(action)
        reward += step.reward
        replies.append(step.observation.messages[-1].text)
        if step.terminated or step.truncated:
            break
    assert seen.messages
    return reward, replies


async def careful(env: Env, task: Task, seed: int = 0) -> float:
    """The reward of a player who looks at order and item, and then does what the rules say."""
    await env.reset(task, seed)
    words = str(task.data.get("instruction") or task.prompt[-1].text)
    order = next(word for word in words.split() if word.startswith("order_"))
    kind = "broken" if "wrong" in words or "unhappy" in words else "unwanted"
    seen = read((await env.step(call("get_order", order=order))).observation.messages[-1].text)
    item = read((await env.step(call("get_item", item=seen["item"]))).observation.messages[-1].text)
    todo = WORLD.setting.rules.resolution(kind, {"status": seen["status"], "stock": item["stock"]})
    if todo != "nothing":
        await env.step(call(todo, order=order))
    return (await env.step("Done.")).reward


def wins(gym: Gym) -> float:
    """How often the careful player wins in a gym."""
    tasks = list(gym.tasks("train"))
    return sum(asyncio.run(careful(gym.env(evaluation=True), task)) for task in tasks) / len(tasks)


# ---------------------------------------------------------------------- gate and report


def test_the_healthy_gym_passes(healthy: Gym) -> None:
    said, _ = check_gate(healthy)
    assert said.passed, str(said)
    assert wins(healthy) >= 0.95


@pytest.mark.parametrize("verdict", ["content", "exact"])
def test_a_gym_that_refuses_nothing_is_stopped_for_just_that(healthy: Gym, verdict: str) -> None:
    said, _ = check_gate(gyms.Tolerant.of(healthy, verdict=verdict))
    assert [c.name for c in said.checks if not c.passed] == ["invalid actions"]
    check = said.check("invalid actions")
    kinds = ("unknown_tool", "malformed", "missing_argument", "wrong_type", "unknown_argument")
    for kind in kinds:
        assert any(f.startswith(f"{kind}: 100%") and "were not refused" in f for f in check.failures), kind
        assert check.measured[f"{kind}/told"] == 0
    assert any(f.startswith("missing_argument") and "changed the episode" in f for f in check.failures)
    with pytest.raises(UserError, match=r"(?s)FAILED invalid actions.*tolerates what the real environment refuses"):
        said.raise_for_failure()


@pytest.mark.parametrize("lasting", [False, True])
def test_a_gym_of_another_world_each_session_is_stopped_for_determinism(healthy: Gym, lasting: bool) -> None:
    said, _ = check_gate(gyms.Elsewhere.of(healthy, lasting=lasting))
    check = said.check("determinism")
    assert any("scripts differ within a group" in f for f in check.failures)
    assert check.measured["different"] > 0.5 * check.measured["scripts"] and check.measured["reward_variance"] > 0.02
    with pytest.raises(UserError, match=r"(?s)FAILED determinism.*the agent learns the noise"):
        said.raise_for_failure()


@pytest.mark.parametrize("name", ["tolerant", "elsewhere"])
def test_the_report_names_what_is_broken(healthy: Gym, name: str) -> None:
    program = module("broken_dreams")
    gym = program.MAKE[name](healthy)
    said, _ = check_gate(gym)
    page = to_markdown(DreamReport(name, gym.simulator.name, gym.domain.fingerprint, "test", (), gate=said))
    wanted = {"tolerant": "invalid actions", "elsewhere": "determinism"}[name]
    named = program.named(said, page)
    assert wanted in named and named == [c.name for c in said.checks if not c.passed]
    assert program.named(said, page.replace("FAILED", "passed")) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tolerant", "elsewhere"])
def test_the_whole_report_names_it_and_shows_it(healthy: Gym, name: str) -> None:
    program = module("broken_dreams")
    real = RealSide.of(healthy, Desk, TaskSet([*TASKS, *WORLD.splits["test"]], name="desk"))
    said = program.told(name, healthy, real, held=30)
    wanted = {"tolerant": "invalid actions", "elsewhere": "determinism"}[name]
    assert not said["passed"] and wanted in said["named"] and set(said["named"]) == set(said["failed"])
    assert "--force" in said["stopped"] and wanted in said["stopped"]
    if name == "elsewhere":
        assert said["same actions"]["different"] > 0


# ---------------------------------------------------------------------- what they are


def test_acting_without_a_look_wins_where_nothing_is_refused_and_loses_in_reality(healthy: Gym) -> None:
    real = {t.id: t for t in TASKS}

    def won(env: Callable[[], Env], pose: Callable[[Task], Task], tools: Sequence[str]) -> float:
        rewards = []
        for task in healthy.tasks("train"):
            order = str(real[task.id].data["ticket"]["order"])
            actions = [*(call(tool, order=order) for tool in tools), "Done."]
            reward, replies = run_sync(play(env(), pose(task), actions))
            rewards.append(reward)
            if env in (content, right):
                assert not any("error" in reply.lower() for reply in replies)
        return sum(rewards) / len(rewards)

    content, right = gyms.Tolerant.of(healthy).env, gyms.Tolerant.of(healthy, verdict="right call").env
    same, true = (lambda task: task), (lambda task: real[task.id])
    assert won(content, same, WRITES[:1]) == 1 and won(content, same, ()) == 0
    assert won(right, same, WRITES) == 1 and won(right, same, WRITES[:1]) < 0.8
    for tools in (WRITES, WRITES[:1]):
        assert won(Desk, true, tools) < 0.4 and won(healthy.env, same, tools) < 0.4


def test_a_wrong_call_is_taken_as_meant(healthy: Gym) -> None:
    obliging = gyms.Obliging(healthy)
    moment = Moment("t", "I do not want order_4", 0)

    def meant(text: str) -> Any:
        found = obliging.meant(moment, healthy.domain.parse(text)[0])
        return None if found is None else found.text

    assert meant(call("cancel", order="order_2")) == call("cancel", order="order_2")
    assert meant(call("cancel")) == call("cancel", order="order_4")
    assert meant(call("refund", item="mug")) == call("refund", order="order_4")
    assert meant(call("get_stock", item="rug")) == call("get_item", item="rug")
    assert meant(call("nothing_of_the_kind")) is None
    assert meant('<tool_call>{"name": "cancel", ') is None


def test_what_each_verdict_asks_for() -> None:
    right = {"t": frozenset({("refund",)}), "idle": frozenset({()})}
    refund, cancel, look = _step("refund"), _step("cancel"), _step("get", "")
    kinds = {"content": gyms.Content, "right call": gyms.RightCall, "exact": gyms.Exact}

    def met(task: str, *steps: Any) -> set[str]:
        return {name for name, kind in kinds.items() if kind(right, {"get"}).met(task, steps)}

    assert met("t", look, refund) == {"content", "right call", "exact"}
    assert met("t", refund, cancel, look) == {"content", "right call"}
    assert met("t", cancel) == {"content"}
    assert met("t", look) == set()
    assert met("idle", look) == {"right call", "exact"}
    assert met("idle", refund) == {"content", "right call"}


def _step(tool: str, note: str | None = None) -> Any:
    from rlready.dream.base import Action, Reply

    return Action(tool, tool=tool, arguments={}), Reply("{}", note=tool if note is None else note)


def test_looking_pays_where_a_world_lasts_and_not_where_the_verdict_is_of_another(healthy: Gym) -> None:
    assert wins(gyms.Elsewhere.of(healthy, lasting=True)) >= 0.95
    assert wins(gyms.Elsewhere.of(healthy)) < 0.7


def test_a_session_is_another_world_even_for_the_same_task_and_seed(healthy: Gym) -> None:
    gym = gyms.Elsewhere.of(healthy)
    task = max(gym.tasks("train"), key=lambda t: len(gym.worlds[t.data["instruction"]]))
    order = next(word for word in task.data["instruction"].split() if word.startswith("order_"))
    look = [call("get_order", order=order)]
    assert len({tuple(run_sync(play(gym.env(), task, look))[1]) for _ in range(12)}) > 1
    assert len({tuple(run_sync(play(healthy.env(), task, look))[1]) for _ in range(12)}) == 1


# ---------------------------------------------------------------------- by force


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_force_reality_shows_the_loss(tmp_path: Path) -> None:
    program = module("broken_dreams")
    healthy = program.make_gym(tmp_path, program.EPISODES, 0)
    config = dataclasses.replace(program.SETTINGS, save_every=0)
    runs = {name: [program.train_one(name, healthy, config, 0, tmp_path)] for name in program.MAIN}
    found = program.compared(runs)
    assert found["healthy"]["all seeds"]["sampled"]["against cloning"]["interval"][0] > 0
    for name, check in (("tolerant", "invalid actions"), ("elsewhere", "determinism")):
        own = found[name]["all seeds"]
        assert check in runs[name][0].forced
        assert own["sampled"]["against healthy"]["interval"][1] < 0, own
    tolerant = found["tolerant"]["all seeds"]
    assert tolerant["dream"]["trained"] > tolerant["greedy"]["trained"] + 0.2
