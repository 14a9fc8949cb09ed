"""Steps per second of a served dream, beside the same dream in process.

64 episodes at once, the same tasks, seeds and actions on both sides:

    in process    64 coroutines step environments on one event loop
    served        64 connections of openenv-core's own `GenericEnvClient`, in another process, to `rlready dream serve`

Both sides are processes of their own that live through the whole measurement, and take turns, a round of the one, a
round of the other; ratios are of neighbouring rounds. Every reply of the served side is compared with the one in
process. What is played:

    no-op        an environment that does nothing and shows a growing context: all that is left is the cost of serving
    simulated    a simulator of 2 ms of work a step, a fifth of it once a batch, that batches what is asked at once
    retrieval    a gym of the fictional desk, answered from its recordings
    tiny         the same gym, answered by the embedded small transformer

The two gyms are asked for actions of other tickets' recordings, so that no recording fits exactly.

    python benchmarks/dream_serve.py    # writes benchmarks/results/dream_serve.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from parts import write

from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.tasks.base import TaskSet
from rlready.types import Message, Task

AT_ONCE = 64
TEXT = "The reservation has been found; it holds two passengers and one bag that can be changed until noon. " * 2
ROUNDS = {"no-op": 30, "simulated": 12, "retrieval": 12, "tiny": 12}
Plan = list[tuple[str, int, list[str]]]
"""Task, seed and actions of each episode."""


class NoOp(Env):
    """Shows a growing context and does nothing."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin."""
        self.messages = list(task.prompt)
        return Observation(self.messages)

    async def step(self, action: str) -> Step:
        """Say the same again."""
        self.messages += [Message("assistant", action), Message.user(TEXT)]
        return Step(Observation(self.messages))


class Batching:
    """Works 2 ms of processor time for each of 64 questions asked at once; a fifth of that is the batch's own."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self.asked: list[asyncio.Future[None]] = []
        self.sizes: list[int] = []

    async def ask(self) -> None:
        """Be answered with the next batch."""
        loop = asyncio.get_running_loop()
        if not self.asked:
            loop.call_soon(loop.call_soon, self._answer)
        future = loop.create_future()
        self.asked.append(future)
        await future

    def _answer(self) -> None:
        asked, self.asked = self.asked, []
        self.sizes.append(len(asked))
        ends = time.thread_time() + 0.4e-3 * AT_ONCE + 1.6e-3 * len(asked)
        while time.thread_time() < ends:
            pass
        for future in asked:
            if not future.done():
                future.set_result(None)


class Simulated(NoOp):
    """The same after a batch of the simulator."""

    simulator = Batching()

    async def step(self, action: str) -> Step:
        """Ask, then answer."""
        await self.simulator.ask()
        return await super().step(action)


def fixed(env: EnvFactory) -> tuple[EnvFactory, TaskSet, Plan]:
    """Tasks and episodes of the two environments above."""
    tasks = TaskSet([Task((Message("system", TEXT * 3), Message.user(f"task {i}")), {"i": i}) for i in range(16)])
    return env, tasks, [(tasks[i % 16].id, i, [f"look {i} {j}" for j in range(12)]) for i in range(AT_ONCE)]


def make_gyms(folder: Path, episodes: int, steps: int) -> None:
    """Two gyms of one fictional desk, in `folder/retrieval` and `folder/tiny`."""
    from rlready.dream.domain import Domain
    from rlready.dream.gym import Gym
    from rlready.dream.library import Library
    from rlready.dream.simulators.fitting import TextConfig
    from rlready.dream.simulators.retrieval import Retrieval
    from rlready.dream.simulators.text import TextModel
    from rlready.dream.state import StateRules
    from rlready.experience.logs.episodes import common_rules, episode_of
    from rlready.worlds.fiction import FictionWorld, play_logs

    recordings = play_logs(FictionWorld(0), episodes=episodes)
    rules = common_rules(recordings)
    logged = [episode_of(recording, rules=rules)[0] for recording in recordings]
    domain = Domain.learn(logged, rules=rules)
    state = StateRules.learn(logged, domain)
    library = Library(logged, domain, state)
    Gym(domain, state, library, Retrieval(library)).save(folder / "retrieval")
    model = asyncio.run(TextModel.fit(library, domain, config=TextConfig(max_steps=steps)))
    model.save(folder / "model")
    Gym(domain, state, library, model).save(folder / "tiny", model=folder / "model")


def load_gym(folder: Path) -> tuple[EnvFactory, TaskSet, Plan]:
    """A gym, its tasks, and episodes that no recording fits."""
    from rlready.dream.gym import Gym

    gym = Gym.load(folder)
    tasks = gym.tasks("train")
    logged = sorted(gym.episodes("train"), key=lambda e: (e.task_id, e.actions))
    plan = []
    for i in range(AT_ONCE):
        task = tasks[i % len(tasks)]
        others = [e for e in logged if e.task_id != task.id and len(e.actions) >= 4]
        plan.append((task.id, i, list(others[(37 * i) % len(others)].actions)))
    return (lambda: gym.env(evaluation=True)), tasks, plan


def load(name: str, folder: Path) -> tuple[EnvFactory, TaskSet, Plan]:
    """What is played."""
    return {"no-op": lambda: fixed(NoOp), "simulated": lambda: fixed(Simulated)}.get(name, lambda: load_gym(folder))()


def cpu(pid: int) -> float:
    """Seconds of processor time of a process so far; NaN where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def in_process(factory: EnvFactory, tasks: TaskSet, plan: Plan) -> dict[str, Any]:
    """One round in this process."""
    by_id = {task.id: task for task in tasks}
    origins: Counter[str] = Counter()

    async def episode(task: str, seed: int, actions: list[str]) -> list[str]:
        env = factory()
        seen = [(await env.reset(by_id[task], seed)).messages[-1].text]
        for action in actions:
            step = await env.step(action)
            origins[str(step.info.get("origin", ""))] += 1
            last = step.observation.messages[-1]
            seen.append("" if last.role == "assistant" else last.text)
            if step.terminated or step.truncated:
                break
        await env.close()
        return seen

    began = time.perf_counter()
    seen = await asyncio.gather(*(episode(*each) for each in plan))
    return {"wall": time.perf_counter() - began, "seen": seen, "origins": dict(origins)}


async def connect(url: str) -> list[Any]:
    """As many public clients as there are episodes at once."""
    from openenv.core.generic_client import GenericEnvClient

    clients = [GenericEnvClient(base_url=url) for _ in range(AT_ONCE)]
    for client in clients:
        await client.connect()
    return clients


async def served(clients: list[Any], plan: Plan) -> dict[str, Any]:
    """One round through the public client."""

    async def episode(client: Any, task: str, seed: int, actions: list[str]) -> list[str]:
        seen = [(await client.reset(task=task, seed=seed)).observation["text"]]
        for action in actions:
            result = await client.step({"text": action})
            seen.append(result.observation["text"])
            if result.done:
                break
        return seen

    began = time.perf_counter()
    seen = await asyncio.gather(*(episode(c, *each) for c, each in zip(clients, plan, strict=True)))
    return {"wall": time.perf_counter() - began, "seen": seen}


def side(kind: str, name: str, folder: Path) -> None:
    """A process of one side: rounds as they are asked for, or the server."""
    import torch

    torch.set_num_threads(1)
    factory, tasks, plan = load(name, folder)
    if kind == "server":
        from rlready.dream.serve import serve

        serve(factory, tasks, port=0, ready=lambda url: print(json.dumps({"url": url, "plan": plan}), flush=True))
        return
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.new_event_loop()
    while sys.stdin.readline():
        print(orjson.dumps(loop.run_until_complete(in_process(factory, tasks, plan))).decode(), flush=True)


def start(kind: str, name: str, folder: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A side, once it is ready."""
    command = [sys.executable, __file__, "--side", kind, "--what", name, "--folder", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Rates of both sides, medians over rounds, the first left out."""
    local, _ = start("local", name, folder)
    server, hello = start("server", name, folder)
    assert local.stdin is not None and local.stdout is not None
    loop = asyncio.new_event_loop()
    clients = loop.run_until_complete(connect(hello["url"]))
    pairs: list[dict[str, float]] = []
    origins: dict[str, int] = {}
    try:
        for index in range(rounds + 1):
            alone = cpu(local.pid)
            local.stdin.write("go\n")
            local.stdin.flush()
            ours = json.loads(local.stdout.readline())
            alone = cpu(local.pid) - alone
            before = cpu(server.pid), time.process_time()
            theirs = loop.run_until_complete(served(clients, hello["plan"]))
            after = cpu(server.pid), time.process_time()
            if theirs["seen"] != ours["seen"]:
                raise SystemExit(f"{name}: the served episodes differ from those in process.")
            steps = sum(len(seen) - 1 for seen in ours["seen"])
            origins = ours["origins"]
            if index:
                pairs.append(
                    {
                        "in process": steps / ours["wall"],
                        "served": steps / theirs["wall"],
                        "alone": alone / steps,
                        "server": (after[0] - before[0]) / steps,
                        "client": (after[1] - before[1]) / steps,
                    }
                )
    finally:
        for client in clients:
            loop.run_until_complete(client.close())
        local.stdin.close()
        server.terminate()
        local.wait(timeout=30)
        server.wait(timeout=30)
        loop.close()
    ratios = [pair["served"] / pair["in process"] for pair in pairs]
    middle = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    total = sum(origins.values())
    return {
        "steps a round": steps,
        "steps per second": {side: middle[side] for side in ("in process", "served")},
        "share": statistics.median(ratios),
        "shares": [min(ratios), max(ratios)],
        "added microseconds a step": 1e6 * (1 / middle["served"] - 1 / middle["in process"]),
        "processor microseconds a step": {
            "in process" if side == "alone" else side: 1e6 * middle[side] for side in ("alone", "server", "client")
        },
        "share by processor time": middle["alone"] / middle["server"],
        "answered by": {origin: n / total for origin, n in sorted(origins.items()) if origin},
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(ROUNDS), help="measure one of the four and write nothing")
    parser.add_argument("--rounds", type=int, help="rounds of each, instead of those behind the results")
    parser.add_argument("--episodes", type=int, default=400, help="recordings of the gyms")
    parser.add_argument("--fit-steps", type=int, default=150, help="training steps of the transformer")
    parser.add_argument("--side", choices=["local", "server"], help=argparse.SUPPRESS)
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args.side, args.what, args.folder)
        return
    names = [args.only] if args.only else list(ROUNDS)
    out: dict[str, Any] = {"at once": AT_ONCE, "threads": 1, "python": platform.python_version(), "played": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"retrieval", "tiny"} & set(names):
            make_gyms(folder, args.episodes, args.fit_steps)
        for what in names:
            out["played"][what] = found = measure(what, folder / what, args.rounds or ROUNDS[what])
            print(what, json.dumps(found, indent=1))
    if not args.only:
        write("dream_serve", out)


if __name__ == "__main__":
    main()
