"""A gym made from logs, served: 64 episodes at once are those in process; its tools over MCP."""

from __future__ import annotations

import asyncio

import pytest
from mcp import Client
from openenv.core.generic_client import GenericEnvClient

from rlready.dream.domain import Domain
from rlready.dream.gym import Gym
from rlready.dream.library import Library
from rlready.dream.serve import Limits, Server
from rlready.dream.serve.mcp_server import mcp_server
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.state import StateRules
from rlready.experience.logs.episodes import common_rules, episode_of
from rlready.worlds.fiction import FictionWorld, play_logs


@pytest.fixture(scope="module")
def gym() -> Gym:
    recordings = play_logs(FictionWorld(0, sizes={"train": 20}), episodes=60)
    rules = common_rules(recordings)
    logged = [episode_of(recording, rules=rules)[0] for recording in recordings]
    domain = Domain.learn(logged, rules=rules)
    state = StateRules.learn(logged, domain)
    library = Library(logged, domain, state)
    return Gym(domain, state, library, Retrieval(library))


def test_sixty_four_served_episodes_are_those_in_process(gym: Gym) -> None:
    tasks = gym.tasks("train")
    logged = list(gym.library.episodes.values())
    plan = [(tasks[n % len(tasks)], n, logged[(7 * n) % len(logged)].actions) for n in range(64)]
    Seen = list[tuple[str, float | None, bool]]

    async def in_process(n: int) -> Seen:
        task, seed, actions = plan[n]
        env = gym.env()
        await env.reset(task, seed)
        seen: Seen = []
        for action in actions:
            step = await env.step(action)
            last = step.observation.messages[-1]
            said = "" if last.role == "assistant" else last.text
            seen.append((said, step.reward, step.terminated or step.truncated))
            if seen[-1][2]:
                break
        await env.close()
        return seen

    async def served(url: str, n: int) -> Seen:
        task, seed, actions = plan[n]
        seen: Seen = []
        async with GenericEnvClient(base_url=url, connect_timeout_s=120, message_timeout_s=120) as env:
            first = await env.reset(task=task.id, seed=seed)
            assert first.observation["messages"] == [m.to_json() for m in task.prompt]
            for action in actions:
                result = await env.step({"text": action})
                seen.append((result.observation["text"], result.reward, result.done))
                if result.done:
                    break
        return seen

    async def run() -> None:
        async with Server(gym.env, tasks, limits=Limits(deadline=100)) as server:
            theirs = await asyncio.gather(*(served(server.url, n) for n in range(64)))
            counts = server.book.metrics()["counts"]
            assert counts["errors"] == counts["timeouts"] == 0
        ours = await asyncio.gather(*(in_process(n) for n in range(64)))
        assert theirs == ours and sum(map(len, ours)) > 100

    asyncio.run(run())


def test_its_tools_over_mcp(gym: Gym) -> None:
    async def run() -> None:
        async with Client(mcp_server(gym.env, gym.tasks("train"), gym.domain)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(gym.domain.tools) <= set(tools)
            begun = await client.call_tool("begin_task", {"task": 0, "seed": 1})
            assert gym.tasks("train")[0].data["instruction"] in begun.content[0].text  # type: ignore[union-attr]
            wrong = await client.call_tool("no_such_tool", {})
            assert wrong.is_error and wrong.content[0].text  # type: ignore[union-attr]
            episode = next(e for e in gym.library.episodes.values() if e.task_id == gym.tasks("train")[0].id)
            (action,) = gym.domain.parse(episode.actions[0])
            right = await client.call_tool(action.tool, dict(action.arguments or {}))
            assert not right.is_error and right.content[0].text  # type: ignore[union-attr]

    asyncio.run(run())
