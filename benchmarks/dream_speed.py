"""Dreamt steps per second, and where the time of a training step goes, in reality and in the dream.

An agent and an experience model of 0.8M parameters each are made from scripted play of the telecom world: enough to
dream whole episodes, not to dream well. Then

- scripted players, who cost nothing, play in the dream and in the real simulator, so many episodes at once;
- GRPO steps (16 tasks x 8 rollouts, two minibatches) alternate between reality and the dream.

No peer: rates are of this machine, shares are of one and the same run.

    python benchmarks/dream_speed.py    # writes benchmarks/results/dream_speed.json
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from parts import Loop, write

from rlready.algorithms.presets import GRPO
from rlready.curriculum.samplers import Uniform
from rlready.dream.annotate import ProgramAnnotator, paired
from rlready.dream.env import DreamEnv
from rlready.dream.format import DreamFormat
from rlready.dream.model import DreamConfig, ExperienceModel
from rlready.envs.base import Env
from rlready.experience.episode import from_trajectory
from rlready.policy.base import OptimizerConfig
from rlready.policy.render import ChatRenderer
from rlready.policy.supervised import fit, plan
from rlready.policy.tiny import TinyConfig, TinyPolicy, clone_policy
from rlready.policy.tokenize import word_tokenizer
from rlready.rollout.actors import ScriptActor
from rlready.rollout.collect import Collector, play_many
from rlready.rollout.compile import compile_trajectory
from rlready.worlds.tau2 import DEMONSTRATIONS, Hindsight, Tau2Telecom, telecom

SHAPE = TinyConfig(dim=128, layers=4, heads=4, kv_heads=1)
AT_ONCE = (1, 8, 32, 128)
GROUPS, GROUP = 16, 8

EnvFactory = Callable[[], Env]


def prepare(world: Tau2Telecom, loop: Loop, episodes: int) -> tuple[TinyPolicy, ExperienceModel, ScriptActor]:
    """A cloned agent, an experience model, and the scripted players that both were made from."""
    renderer = ChatRenderer(word_tokenizer(world.vocabulary, specials=("<pad>", "<s>", ">")))
    script = ScriptActor(world.scripts, renderer, closing=world.closing, mix=DEMONSTRATIONS)
    (played,) = loop.run(play_many(world.splits["train"], world.env, script, episodes, 0))
    rows = [row for t in played if not t.excluded for row in compile_trajectory(t, streams=("nll",))]
    agent = TinyPolicy.create(renderer, SHAPE, optimizer=OptimizerConfig(lr=1e-3), max_batch=GROUPS * GROUP)
    fit(agent, rows, plan([len(row) for row in rows], 3, 3000, 0))
    logs = [from_trajectory(t, source="script") for t in played if not t.excluded]
    kept, notes = paired(logs, ProgramAnnotator(Hindsight().fit(logs)).annotate(logs))
    form = DreamFormat.build(world.actions, world.closing, world.vocabulary, kept, notes, demos=1)
    config = DreamConfig(model=SHAPE, epochs=2, held_out=0.0)
    (model,) = loop.run(ExperienceModel.fit(kept, notes, form, config=config))
    return agent, model, script


def rates(
    world: Tau2Telecom, model: ExperienceModel, script: ScriptActor, loop: Loop, rounds: int
) -> dict[str, dict[str, float]]:
    """Steps per second by the number of episodes at once; medians over rounds, the first left out."""
    stats = model.policy.sampler.stats  # type: ignore[attr-defined]
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for index in range(rounds + 1):
        for at_once in AT_ONCE:
            sides: tuple[tuple[str, EnvFactory], ...] = (("dream", lambda: DreamEnv(model)), ("real", world.env))
            for name, env in sides:
                stats.reset()
                gc.collect()
                n = max(4, at_once)
                play = play_many(world.splits["train"], env, script, n, index, concurrency=at_once, deadline=600.0)
                began = time.perf_counter()
                with model.memory.aside():
                    (played,) = loop.run(play)
                wall = time.perf_counter() - began
                model.worlds.clear()
                steps = sum(t.env_steps for t in played)
                if index:
                    found.setdefault(f"{name}, {at_once} at once", []).append(
                        (steps / wall, stats.tokens / steps, stats.forward / wall, sum(t.excluded for t in played) / n)
                    )
    names = ("steps per second", "tokens per step", "forward passes", "failed episodes")
    return {
        side: dict(zip(names, (statistics.median(each) for each in zip(*values, strict=True)), strict=True))
        for side, values in found.items()
    }


def shares(
    world: Tau2Telecom, agent: TinyPolicy, model: ExperienceModel, loop: Loop, rounds: int
) -> dict[str, dict[str, float]]:
    """Where the wall-clock time of a GRPO step goes; medians over rounds, the first two left out.

    rollout: the agent's engine. environment: simulator or experience model (its engine and what stands around it), and
    the grader. update: credit, compilation, gradients, new weights to the sampler. waiting: the event loop had nothing
    to do. framework: the rest, that is everything around the engines in a rollout.
    """
    tasks = world.splits["train"]
    sides: list[tuple[str, TinyPolicy, Collector]] = []
    envs: tuple[tuple[str, EnvFactory], ...] = (("real", world.env), ("dream", lambda: DreamEnv(model)))
    for name, env in envs:
        policy = clone_policy(agent, OptimizerConfig(lr=3e-4))
        collector = Collector(policy, env, tasks, Uniform(tasks), group_size=GROUP, max_failures=1.0, deadline=600.0)
        sides.append((name, policy, collector))
    algorithm = GRPO(minibatches=2)
    dreaming = model.policy.sampler.stats  # type: ignore[attr-defined]
    found: dict[str, list[dict[str, float]]] = {}
    for index in range(rounds + 2):
        for name, policy, collector in sides:
            acting = policy.sampler.stats  # type: ignore[attr-defined]
            acting.reset()
            dreaming.reset()
            gc.collect()
            idle, began = loop.idle, time.perf_counter()
            model.memory.commit(policy.version)
            (groups,) = loop.run(collector.collect(GROUPS))
            collected = time.perf_counter()
            loop.run(algorithm.update(policy, groups))
            total = time.perf_counter() - began
            times = collector.metrics()
            step = {
                "rollout": acting.busy,
                "environment": dreaming.busy + (times["time/env"] + times["time/score"]) * times["seconds"],
                "update": total - (collected - began),
                "waiting": loop.idle - idle,
            }
            step["framework"] = total - sum(step.values())
            step = {part: seconds / total for part, seconds in step.items()}
            step |= {"seconds": total, "transitions": times["env_steps"], "failed episodes": times["failures"]}
            if index >= 2:
                found.setdefault(name, []).append(step)
    return {side: _medians(steps) for side, steps in found.items()}


def _medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {part: statistics.median(step[part] for step in steps) for part in steps[0]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1500, help="scripted episodes to learn from")
    parser.add_argument("--rounds", type=int, default=5, help="measurements behind each median")
    args = parser.parse_args()
    torch.set_num_threads(1)
    world, loop = telecom(), Loop()
    agent, model, script = prepare(world, loop, args.episodes)
    out: dict[str, Any] = {
        "threads": 1,
        "rates": rates(world, model, script, loop, args.rounds),
        "step": shares(world, agent, model, loop, args.rounds),
    }
    write("dream_speed", out)
    for part in ("rates", "step"):
        for name, numbers in out[part].items():
            print(part, name, {k: round(v, 3) for k, v in numbers.items()})


if __name__ == "__main__":
    main()
